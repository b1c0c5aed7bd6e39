"""Tools that a program brings, beside those that are written down."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from errands.agents.manifests.bundles import keep
from errands.agents.manifests.documents import Tool
from errands.agents.manifests.findings import Notebook, Place, Source
from errands.agents.manifests.library import Library, Loaded


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
