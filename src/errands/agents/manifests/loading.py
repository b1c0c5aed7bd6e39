"""What each document of a file is, by its kind, and the rules of files with several."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, TypeVar

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
from errands.agents.manifests.expressions import Check, cel_check
from errands.agents.manifests.findings import Finding, ManifestError, Notebook, Place, Source, quoted, suggestion
from errands.agents.manifests.functions import Function, Key, Library, Loaded
from errands.agents.manifests.nodes import Node, Unreadable, documents
from errands.agents.manifests.reading import field_names, read, texts
from errands.agents.manifests.rules import check_agent, check_cycles, check_mount, check_tool

# bundles

D = TypeVar("D", bound=Document)

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
#: Fields by which a document without a kind is known to be a mount, or something that lacks its kind.
_MOUNT_FIELDS = {"path_prefixes", "local", "gcs", "s3"}
_OTHER_FIELDS = {*field_names(Agent), *field_names(Tool)} - {"name", "description", "parameters", "settings"}
_SEMVER = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?", re.ASCII)


def read_file(file: str, text: str, library: Library, notebook: Notebook) -> None:
    """Puts everything that stands in a file into the library."""
    source = Source(file)

    def complain(line: int, problem: str, remedy: str) -> None:
        # Each has its own source, as the notebook hears only once of each place.
        notebook.error(Source(file), (), problem, remedy, line=line)

    try:
        for index, root in enumerate(documents(text, complain)):
            if index == MAX_DOCUMENTS:
                raise Unreadable(root.line, f"has more than {MAX_DOCUMENTS} documents", "make several files of it")
            _read_document(root, Place(notebook, Source(file, root)), index, library)
    except Unreadable as error:
        library.is_complete = False
        notebook.error(source, (), error.problem, error.remedy, line=error.line)


def _read_document(root: Node, place: Place, index: int, library: Library) -> None:
    if not isinstance(root.value, dict):
        return place.error("is no object", "begin with kind: and the other fields of an agent or a tool")
    if "kind" not in root.value:
        return _read_without_kind(root, place, library)
    kind = root.value["kind"].value
    if not isinstance(kind, str):
        return _refuse(place / "kind", library, "is no text", f"write kind: {AGENT_KIND}")
    if kind in _KINDS:
        return _add(_KINDS[kind], root, place, index, library)
    if kind in _NOT_YET:
        problem = f"is {kind}, so the document is skipped: {_NOT_YET[kind]} are not in this version of errands"
        return (place / "kind").warn(problem, "remove the document, or run it elsewhere")
    is_known = kind.startswith(PREFIX)
    remedy = suggestion(kind, _KINDS, "remove the document") if is_known else f"manifests begin with {PREFIX}"
    return (place / "kind").warn(f"is {quoted(kind)}, so the document is skipped", remedy)


def _refuse(place: Place, library: Library, problem: str, remedy: str) -> None:
    """Of what may be an agent or a tool that others use."""
    library.is_complete = False
    place.error(problem, remedy)


def _read_without_kind(root: Node, place: Place, library: Library) -> None:
    fields = root.value.keys()
    if fields & _MOUNT_FIELDS:
        return _add(Mount, root, place, 0, library)
    if fields & _OTHER_FIELDS:
        return _refuse(place / "kind", library, "is missing", f"add kind: {AGENT_KIND} or kind: {TOOL_KIND}")
    return place.warn("is no manifest, as it has no kind, and is skipped", f"add kind: {AGENT_KIND} if it is one")


def _add(kind: type[Document], root: Node, place: Place, index: int, library: Library) -> None:
    document = read(kind, root, place)
    match document:
        case Agent():
            keep(library.agents, Loaded(document, place), (document.namespace, document.name), library)
        case Tool():
            keep(library.tools, Loaded(document, place), (document.namespace, document.name), library)
        case Mount():
            if library.mounts:
                other = library.mounts[0].document.name
                place.error(f"is a second mount beside {quoted(other)}", "keep one: all agents share it")
            library.mounts.append(Loaded(document, place))
        case Descriptor():
            if index:
                place.error("describes the bundle and is not the first document", "put it first, and only once")
            if document.version is not None and not _SEMVER.fullmatch(document.version):
                (place / "version").warn(f"is {quoted(document.version)}", "write a version such as 1.0.0")
            library.descriptors.append(Loaded(document, place))


def keep(shelf: dict[Key, Loaded[D]], loaded: Loaded[D], key: Key, library: Library) -> None:
    """Adds what was loaded to a shelf of the library, unless its name is taken."""
    first = library.agents.get(key) or library.tools.get(key)
    if first is None:
        shelf[key] = loaded
        return
    source = first.place.source
    where = source.file if source.root is None else f"{source.file}:{source.line(('name',))}"
    problem = f"is {quoted(key[1])}, which the namespace {key[0]} has at {where}, too"
    (loaded.place / "name").error(problem, "rename one of the two; tools and agents share their names")


# registering


class ToolSource(Protocol):
    """Something that is a tool, such as a function with `@tool`."""

    #: Where it is written, for messages.
    origin: str
    #: Its namespace is empty: every agent may use it.
    document: Tool


def register(tools: Iterable[ToolSource], library: Library, notebook: Notebook) -> None:
    """Gives every namespace that has an agent these tools. A name that is taken is an error."""
    namespaces = sorted({namespace for namespace, _ in library.agents})
    for tool in tools:
        place = Place(notebook, Source(tool.origin))
        for namespace in namespaces:
            document = msgspec.structs.replace(tool.document, namespace=namespace)
            keep(library.tools, Loaded(document, place), (namespace, document.name), library)


# loading


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
