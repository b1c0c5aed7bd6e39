"""An OpenAPI document: fetched within bounds, read, and looked up by reference."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urljoin

import httpx
import msgspec

from errands.agents.manifests.nodes import Unreadable, documents
from errands.agents.tools.addresses import parsed
from errands.agents.tools.base import BrokenToolError, Equipment
from errands.agents.tools.exchange import send

Object = dict[str, Any]

METHODS = ("get", "put", "post", "patch", "delete")
#: References that lead to references.
_MAX_CHAIN = 20


class Document:
    """A document and the address it came from."""

    def __init__(self, url: str, root: Object) -> None:
        self.url = url
        self.root = root
        #: Schemas of it that were written out so far.
        self.written_out = 0

    def resolved(self, node: Any) -> Object:
        """An object, or the one that its `$ref` leads to; empty when it leads nowhere in this document."""
        for _ in range(_MAX_CHAIN):
            if not isinstance(node, dict):
                return {}
            if not isinstance(node.get("$ref"), str):
                return node
            node = self.at(node["$ref"])
        return {}

    def at(self, reference: str) -> Any:
        """What a local reference such as `#/components/schemas/Pet` points at; None when there is nothing."""
        if not reference.startswith("#/"):
            return None
        node: Any = self.root
        for step in reference[2:].split("/"):
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict):
                node = node.get(name)
            elif isinstance(node, list) and name.isdigit() and int(name) < len(node):
                node = node[int(name)]
            else:
                return None
        return node

    def paths(self) -> Iterator[tuple[str, str, Object, Object]]:
        """Path, method, what holds for the path, and the operation."""
        for path, item in _objects(self.root.get("paths")):
            shared = self.resolved(item)
            for method in METHODS:
                if isinstance(operation := shared.get(method), dict):
                    yield path, method, shared, operation

    def server(self, *holders: Object) -> str:
        """The address that paths are appended to: of the first holder that says one, seen from the document."""
        said = [holder["servers"][0] for holder in (*holders, self.root) if _is_list(holder.get("servers"))]
        first = as_dict(said[0]) if said else {}
        url = str(first.get("url", "/"))
        for name, variable in _objects(first.get("variables")):
            url = url.replace(f"{{{name}}}", str(variable.get("default", "")))
        return str(parsed(urljoin(self.url, url))).rstrip("/")


def as_dict(value: Any) -> Object:
    """The same, or an empty one where a document has something else."""
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> Iterator[tuple[str, Object]]:
    for name, item in as_dict(value).items():
        if isinstance(item, dict):
            yield name, item


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


async def fetch_document(equipment: Equipment, url: str) -> Document:
    """Raises `BrokenToolError` for what is no such document, and `ToolError` when it cannot be had now."""
    headers = {"Accept": "application/json, application/yaml;q=0.9, */*;q=0.5", "Accept-Encoding": "identity"}
    answer = await send(equipment, httpx.Request("GET", parsed(url), headers=headers))
    root = await asyncio.to_thread(_read, url, answer.content)
    version = root.get("openapi") if isinstance(root, dict) else None
    if not isinstance(version, str) or not version.startswith("3."):
        said = f"it says openapi: {version}" if version else "it has no field openapi"
        raise BrokenToolError(f"{url} is no OpenAPI 3 document; {said}")
    return Document(url, root)


def _read(url: str, content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except RecursionError:
        raise BrokenToolError(f"{url} is nested too deeply") from None
    except msgspec.DecodeError as error:
        if content.lstrip()[:1] in (b"{", b"["):
            raise BrokenToolError(f"{url} is no JSON ({error})") from None
    try:
        # Keys such as 200 are passed over; they stand in what we do not read.
        first = next(documents(content.decode("utf-8", "replace"), lambda line, problem, remedy: None), None)
    except Unreadable as error:
        raise BrokenToolError(f"{url}, line {error.line}, {error.problem}") from None
    return first.plain() if first else None
