"""What each document of a file is, by its kind, and the rules of files with several."""

from __future__ import annotations

import re
from typing import TypeVar

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
from errands.agents.manifests.findings import Notebook, Place, Source, quoted, suggestion
from errands.agents.manifests.library import Key, Library, Loaded
from errands.agents.manifests.nodes import Node, Unreadable, documents
from errands.agents.manifests.reading import field_names, read

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
