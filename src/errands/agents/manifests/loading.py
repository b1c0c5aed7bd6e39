"""Load the manifests in a file or folder, checked as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from errands.agents.manifests.documents import (
    AGENT_KIND,
    DESCRIPTOR_KIND,
    TOOL_KIND,
    Agent,
    Descriptor,
    Document,
    Mount,
    Tool,
)
from errands.agents.manifests.findings import Finding, ManifestError, Notebook, Place, Source, quoted, suggestion
from errands.agents.manifests.functions import Function, Library
from errands.agents.manifests.reading import field_names, parse, read, read_files
from errands.agents.manifests.rules import check_agent, check_cycles, check_mount, check_tool

MAX_DOCUMENTS = 200
PREFIX = "commonagents.info/"

#: The specification names the kinds of agents and tools in two ways.
_KINDS: dict[str, type[Document]] = {
    AGENT_KIND: Agent,
    TOOL_KIND: Tool,
    DESCRIPTOR_KIND: Descriptor,
    "commonagents.info/v1/agent": Agent,
    "commonagents.info/v1/tool": Tool,
}
_NOT_YET = {
    "commonagents.info/v1beta2/trigger": "triggers",
    "commonagents.info/v1/trigger": "triggers",
    "commonagents.info/v1/schedule": "schedules",
    "commonagents.info/v1beta2/schedule": "schedules",
}
#: Fields by which a document without a kind is recognised as a mount, or as something that lacks its kind.
_MOUNT_FIELDS = {"path_prefixes", "local", "gcs", "s3"}
_OTHER_FIELDS = {*field_names(Agent), *field_names(Tool)} - {"name", "description", "parameters", "settings"}
_SEMVER = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?", re.ASCII)


class ToolSource(Protocol):
    """A tool of the program, such as a function with `@tool`."""

    #: Where it is defined, for messages.
    origin: str
    #: Its namespace is empty: every agent may use it.
    document: Tool


class Manifests:
    """The agents, tools and mount of one load, all of them valid."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self.agents: list[Agent] = list(library.agents.values())
        self.tools: list[Tool] = list(library.tools.values())
        self.mount: Mount | None = library.mounts[0] if library.mounts else None
        self.descriptors: list[Descriptor] = library.descriptors

    def functions(self, agent: Agent) -> list[Function]:
        """Return all functions of an agent that have a record on the context, including those hidden from the model."""
        return self._library.functions(agent)

    def tool(self, agent: Agent, name: str) -> Tool:
        """Return a tool of the agent's namespace. Raises `KeyError`."""
        return self._library.tools[agent.namespace, name]

    def agent(self, agent: Agent, name: str) -> Agent:
        """Return another agent of the agent's namespace. Raises `KeyError`."""
        return self._library.agents[agent.namespace, name]


class Report(msgspec.Struct, frozen=True):
    """The findings about manifests; without errors, the manifests can be used."""

    #: By file and line.
    findings: list[Finding]
    #: None if there are errors.
    manifests: Manifests | None

    @property
    def valid(self) -> bool:
        """Return whether the manifests can be used; there may still be warnings."""
        return self.manifests is not None


def load(path: str | Path, *, tools: Iterable[ToolSource] = ()) -> Manifests:
    """Load the manifests in a file or folder. Raises `ManifestError` with everything that is wrong with them."""
    report = examine(path, tools=tools)
    if report.manifests is None:
        raise ManifestError(report.findings)
    return report.manifests


def examine(path: str | Path, *, tools: Iterable[ToolSource] = ()) -> Report:
    """Report everything that is wrong with the manifests in a file or folder; `tools` are those of the program."""
    notebook = Notebook()
    library = Library()
    for file, text in read_files(Path(path), notebook):
        for index, place in enumerate([None] if text is None else parse(file, text, notebook)):
            if place is None:
                library.is_complete = False
            elif index == MAX_DOCUMENTS:
                library.is_complete = False
                place.error(f"is one of more than {MAX_DOCUMENTS} documents", "split the file")
                break
            else:
                _add_document(place, index, library)
    namespaces = sorted({namespace for namespace, _ in library.agents})
    for tool in tools:
        place = Place(notebook, Source(tool.origin))
        for namespace in namespaces:
            document = msgspec.structs.replace(tool.document, namespace=namespace)
            _keep(document, place, library)
    for key, tool_document in library.tools.items():
        check_tool(tool_document, library.places[key])
    for key, agent in library.agents.items():
        check_agent(agent, library.places[key], library)
    check_cycles(library)
    if not (library.agents or library.tools or library.mounts or notebook.has_errors):
        notebook.error(Source(str(path)), (), "has no agent, tool or mount", "name a file or folder with manifests")
    findings = sorted(notebook.findings, key=lambda finding: (finding.file, finding.line))
    return Report(findings, None if notebook.has_errors else Manifests(library))


def _add_document(place: Place, index: int, library: Library) -> None:
    """Add a document to the library, by its kind."""
    assert place.source.root is not None
    fields = place.source.root.value
    if not isinstance(fields, dict):
        return place.error("is not an object", "begin with kind: and the other fields of an agent or a tool")
    if "kind" not in fields:
        if fields.keys() & _MOUNT_FIELDS:
            return _add(Mount, place, 0, library)
        if not fields.keys() & _OTHER_FIELDS:
            return place.warn("has no kind, so the document is skipped", f"add kind: {AGENT_KIND} if it is a manifest")
        # It may be an agent or a tool that others use.
        library.is_complete = False
        return (place / "kind").error("is missing", f"add kind: {AGENT_KIND} or kind: {TOOL_KIND}")
    kind = fields["kind"].value
    if not isinstance(kind, str):
        library.is_complete = False
        return (place / "kind").error("is not a string", f"write kind: {AGENT_KIND}")
    if kind in _KINDS:
        return _add(_KINDS[kind], place, index, library)
    if kind in _NOT_YET:
        problem = f"is {kind}, so the document is skipped: {_NOT_YET[kind]} are not in this version of errands"
        return (place / "kind").warn(problem, "remove the document, or run it elsewhere")
    is_known = kind.startswith(PREFIX)
    remedy = suggestion(kind, _KINDS, "remove the document") if is_known else f"manifests begin with {PREFIX}"
    return (place / "kind").warn(f"is {quoted(kind)}, so the document is skipped", remedy)


def _add(kind: type[Document], place: Place, index: int, library: Library) -> None:
    document = read(kind, place)
    match document:
        case Agent() | Tool():
            _keep(document, place, library)
        case Mount():
            if library.mounts:
                other = library.mounts[0].name
                place.error(f"is a second mount beside {quoted(other)}", "keep one: all agents share it")
            library.mounts.append(document)
            check_mount(document, place)
        case Descriptor():
            if index:
                place.error("describes the bundle and is not the first document", "put it first, and only once")
            if document.version is not None and not _SEMVER.fullmatch(document.version):
                (place / "version").warn(f"is {quoted(document.version)}", "write a version such as 1.0.0")
            library.descriptors.append(document)


def _keep(document: Agent | Tool, place: Place, library: Library) -> None:
    """Add an agent or a tool, unless its name is taken."""
    key = (document.namespace, document.name)
    if key in library.places:
        source = library.places[key].source
        where = source.file if source.root is None else f"{source.file}:{source.line(('name',))}"
        problem = f"is {quoted(document.name)}, which the namespace {document.namespace} already has at {where}"
        return (place / "name").error(problem, "rename one of the two; tools and agents share their names")
    library.places[key] = place
    if isinstance(document, Agent):
        library.agents[key] = document
    else:
        library.tools[key] = document
    return None
