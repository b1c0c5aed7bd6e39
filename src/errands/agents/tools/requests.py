"""Requests as a manifest writes them, with the values of one call filled in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode

import httpx
import msgspec

from errands.agents.manifests import schemas
from errands.agents.manifests.documents import Document, Request
from errands.agents.manifests.templates import references
from errands.agents.manifests.tool_rules import METHODS, is_header_name, is_header_text
from errands.agents.tools.addresses import Value, address
from errands.agents.tools.base import BrokenToolError, Equipment, ToolError
from errands.policy.cel import CelError, Program, Session, Variables, evaluate, scopes
from errands.policy.cel.values import Json
from errands.policy.template import Template, compile_template

T = TypeVar("T")

#: Repeating one of these may do something twice, so a service is told by which call to know it.
REPEATABLE_BY_KEY = frozenset({"POST", "PUT", "PATCH", "DELETE"})

_FORM = "application/x-www-form-urlencoded"


class Filling:
    """The values that the templates of one request see."""

    def __init__(self, variables: Variables, session: Session) -> None:
        self._variables = variables
        self._session = session

    async def value(self, source: str) -> Json:
        """The text, or the value itself when the text is one expression. Raises `ToolError`."""
        return await self._told(source, lambda template: template.value(self._variables, self._session))

    async def text(self, source: str) -> str:
        return _text(await self.value(source))

    async def everywhere(self, value: Any) -> Json:
        """Every text inside of a value filled in; keys stay as they are."""
        if isinstance(value, str):
            return await self.value(value)
        if isinstance(value, dict):
            return {key: await self.everywhere(item) for key, item in value.items()}
        if isinstance(value, list):
            return [await self.everywhere(item) for item in value]
        return value

    async def address(self, source: str) -> httpx.URL:
        """See `addresses`."""
        return address(await self._told(source, self._pieces))

    async def _pieces(self, template: Template) -> list[str | Value]:
        return [
            Value(_text(await evaluate(piece, self._variables, self._session))) if isinstance(piece, Program) else piece
            for piece in template.pieces
        ]

    async def _told(self, source: str, fill: Callable[[Template], Awaitable[T]]) -> T:
        try:
            template = compile_template(scopes.REQUEST, source)
        except CelError as error:
            raise BrokenToolError(f"a request of the tool cannot be used: {error}") from None
        try:
            return await fill(template)
        except CelError as error:
            raise ToolError(f"the request cannot be made: {error}") from None


async def filling(
    equipment: Equipment,
    request: Document,
    *,
    arguments: Mapping[str, Json],
    context: Mapping[str, Json],
    session: Session,
    values: Mapping[str, Json] | None = None,
) -> Filling:
    """What the templates of a request see; `values` are those of a stateful session."""
    files = equipment.files
    roots: dict[str, Json] = {
        "parameters": dict(arguments),
        "settings": schemas.nested(equipment.settings),
        "runtime": dict(equipment.runtime),
        "agent": {"name": equipment.agent.name, "namespace": equipment.agent.namespace},
        "session": dict(values or {}),
        "auth": await _tokens(equipment, request, context),
    }
    if files is not None:
        roots["mount"] = files.described
    return Filling(Variables(context, **roots), session)


async def _tokens(equipment: Equipment, request: Document, context: Mapping[str, Json]) -> dict[str, str]:
    names = {reference.steps[0] for reference in references(request) if reference.root == "auth"}
    tokens: dict[str, str] = {}
    for name in sorted(names):
        try:
            tokens[name] = await equipment.auth(name, context)
        except KeyError:
            raise BrokenToolError(f"there is no auth called {name}; whoever runs this server must add it") from None
    return tokens


async def build(filling: Filling, request: Request, *, key: str) -> httpx.Request:
    """The request to send; `key` is by what the service may recognise a repetition of it. Raises `ToolError`."""
    method = (await filling.text(request.method or "GET")).upper()
    if method not in METHODS:
        raise ToolError(f"the method {method[:20]!r} cannot be used; it must be one of {', '.join(METHODS)}")
    url = await filling.address(request.url or "")
    headers = httpx.Headers()
    for name, source in (request.headers or {}).items():
        put_header(headers, name, await filling.text(source))
    content = body(await filling.everywhere(request.body), headers)
    return finished(method, url, headers, content, key=key)


def finished(method: str, url: httpx.URL, headers: httpx.Headers, content: bytes | None, *, key: str) -> httpx.Request:
    if method in REPEATABLE_BY_KEY and "Idempotency-Key" not in headers:
        headers["Idempotency-Key"] = key
    headers.setdefault("Accept", "application/json, text/*;q=0.8, */*;q=0.1")
    headers.setdefault("Accept-Encoding", "identity")
    headers.setdefault("User-Agent", "errands")
    return httpx.Request(method, url, headers=headers, content=content)


def put_header(headers: httpx.Headers, name: str, text: str) -> None:
    """Raises `ToolError` for a value that would be more than one header."""
    if not is_header_name(name):
        raise BrokenToolError(f"the header {name[:80]!r} cannot be sent; take it away from the tool")
    if not is_header_text(text):
        raise ToolError(f"the value of the header {name} has line breaks or control characters")
    headers.update(httpx.Headers([(name.encode(), text.strip().encode("utf-8", "replace"))]))


def body(value: Json, headers: httpx.Headers) -> bytes | None:
    """Texts as they are, everything else as JSON, or as a form where the content type says so."""
    if value is None:
        return None
    if isinstance(value, str):
        headers.setdefault("Content-Type", "text/plain; charset=utf-8")
        return value.encode("utf-8", "replace")
    if isinstance(value, dict) and headers.get("Content-Type", "").partition(";")[0].strip().lower() == _FORM:
        return urlencode({name: _text(item) for name, item in value.items() if item is not None}).encode()
    headers.setdefault("Content-Type", "application/json")
    return msgspec.json.encode(value)


def _text(value: Json) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
