"""Manifests: agents, tools and mounts written in YAML, as the Common Agent Specification has them.

    load(path)      gives `Manifests`, or raises `ManifestError` with everything that is wrong
    examine(path)   gives a `Report` and raises nothing

Pure: files are read, and nothing is run or asked. From text to manifests: `files` → `nodes` (YAML with lines) →
`bundles` and `reading` (structs of `documents`) → `agent_rules`, `tool_rules`, `mount_rules`. `functions` says what the
model sees of it.
"""

from errands.agents.manifests.documents import Agent, Capability, Mount, Tool
from errands.agents.manifests.expressions import Check
from errands.agents.manifests.findings import Finding, ManifestError
from errands.agents.manifests.functions import Function
from errands.agents.manifests.loading import Manifests, Report, examine, load

__all__ = [
    "Agent",
    "Capability",
    "Check",
    "Finding",
    "Function",
    "ManifestError",
    "Manifests",
    "Mount",
    "Report",
    "Tool",
    "examine",
    "load",
]
