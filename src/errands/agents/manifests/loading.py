"""From a path to everything that stands there, checked as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from errands.agents.manifests.agent_rules import check_agent
from errands.agents.manifests.bundles import read_file
from errands.agents.manifests.cycles import check_cycles
from errands.agents.manifests.documents import Agent, Descriptor, Mount, Tool
from errands.agents.manifests.expressions import Check, cel_check
from errands.agents.manifests.files import texts
from errands.agents.manifests.findings import Finding, ManifestError, Notebook, Source
from errands.agents.manifests.functions import Function
from errands.agents.manifests.library import Library
from errands.agents.manifests.mount_rules import check_mount
from errands.agents.manifests.registering import ToolSource, register
from errands.agents.manifests.tool_rules import check_tool


class Manifests:
    """Agents, tools and the mount of one load, all of them valid."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self.agents: list[Agent] = [loaded.document for loaded in library.agents.values()]
        self.tools: list[Tool] = [loaded.document for loaded in library.tools.values()]
        self.mount: Mount | None = library.mounts[0].document if library.mounts else None
        self.descriptors: list[Descriptor] = [loaded.document for loaded in library.descriptors]

    def functions(self, agent: Agent) -> list[Function]:
        """All functions of an agent, also those that the model does not see: each has a record on the context."""
        return self._library.functions(agent)

    def tool(self, agent: Agent, name: str) -> Tool:
        """The tool that an agent means. Raises `KeyError`."""
        return self._library.tools[agent.namespace, name].document

    def agent(self, agent: Agent, name: str) -> Agent:
        """The other agent that an agent means. Raises `KeyError`."""
        return self._library.agents[agent.namespace, name].document


class Report(msgspec.Struct, frozen=True):
    """What can be said about manifests; without errors, they can be used."""

    #: By file and line.
    findings: list[Finding]
    manifests: Manifests | None

    @property
    def valid(self) -> bool:
        """Whether the manifests can be used; there may be warnings all the same."""
        return self.manifests is not None


def examine(path: str | Path, *, tools: Iterable[ToolSource] = (), check: Check | None = None) -> Report:
    """Everything that is wrong with the manifests in a file or folder.

    `tools` are those that the program brings. `check` is asked about each CEL expression.
    """
    notebook = Notebook()
    library = Library()
    for file, text in texts(Path(path), notebook):
        if text is None:
            library.is_complete = False
        else:
            read_file(file, text, library, notebook)
    register(tools, library, notebook)
    _check(library, check or cel_check)
    found = library.agents or library.tools or library.mounts
    if not found and all(finding.severity == "warning" for finding in notebook.findings):
        notebook.error(Source(str(path)), (), "has no agent, tool or mount", "name a file or folder with manifests")
    findings = sorted(notebook.findings, key=lambda finding: (finding.file, finding.line))
    is_valid = all(finding.severity == "warning" for finding in findings)
    return Report(findings, Manifests(library) if is_valid else None)


def load(path: str | Path, *, tools: Iterable[ToolSource] = (), check: Check | None = None) -> Manifests:
    """The manifests in a file or folder. Raises `ManifestError` with everything that is wrong with them."""
    report = examine(path, tools=tools, check=check)
    if report.manifests is None:
        raise ManifestError(report.findings)
    return report.manifests


def _check(library: Library, check: Check) -> None:
    for tool in library.tools.values():
        check_tool(tool.document, tool.place, check)
    for mount in library.mounts:
        check_mount(mount.document, mount.place)
    for agent in library.agents.values():
        check_agent(agent.document, agent.place, library, check)
    check_cycles(library)
