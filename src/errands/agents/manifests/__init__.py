"""Manifests: agents, tools and mounts in YAML, as in the Common Agent Specification.

    load(path)      returns `Manifests`, or raises `ManifestError` with everything that is wrong
    examine(path)   returns a `Report` and raises nothing

Files are read, and nothing is run or fetched. From text to manifests: `yaml_nodes` (with lines) → `reading` (structs of
`documents`) → `loading` → `rules`. `findings` collects what is wrong. `functions` is what the model sees of manifests.
"""

from errands.agents.manifests.documents import Agent, Capability, Mount, Tool
from errands.agents.manifests.findings import Finding, ManifestError
from errands.agents.manifests.functions import Function, Manifests
from errands.agents.manifests.loading import Report, examine, load

__all__ = [
    "Agent",
    "Capability",
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
