"""Addresses with values in them. A value fills its place and changes nothing else of the address.

    https://api.{region}.example.com/pages/{title}?lang={lang}
            └ part of a host: letters, digits, - and _    └ percent-encoded
                                       └ percent-encoded; never empty, `.` or `..`

An expression at the very beginning gives the address itself or its base, such as `{settings.base_url}/pages`, and is
taken as it is. Wherever it leads, the outbound guard looks at it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlencode, urlsplit

import httpx
import msgspec

from errands.agents.manifests import schemas
from errands.agents.manifests.documents import Document, Request, StatefulSession, StatelessHttp, Tool
from errands.agents.manifests.expressions import references
from errands.agents.manifests.functions import backend
from errands.agents.manifests.patterns import JsonPathError, QueryStoppedError, compile_path, find
from errands.agents.manifests.rules import METHODS, is_header_name, is_header_text
from errands.agents.tools.base import (
    Backend,
    Bounds,
    BrokenToolError,
    Equipment,
    Invocation,
    State,
    ToolError,
    configuration,
)
from errands.clock import system_clock, to_iso
from errands.errors import ConfigurationError
from errands.outbound import AnswerTooLargeError, OutboundError
from errands.policy.cel import CelError, Program, Session, Variables, evaluate, scopes
from errands.policy.cel.values import Json
from errands.policy.template import Template, compile_template

# addresses

_WHOLE_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
_PART_OF_HOST = re.compile(r"[A-Za-z0-9_-]+")
_SEPARATORS = re.compile(r"[/\\]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_END_OF_HOST = re.compile(r"[/?#\\]")


class Value(msgspec.Struct, frozen=True):
    """A piece of an address that an expression gave."""

    text: str


def address(pieces: Sequence[str | Value]) -> httpx.URL:
    """The address of all pieces. Raises `ToolError` for a value that does not fit its place."""
    built = ""
    for index, piece in enumerate(pieces):
        if isinstance(piece, str):
            built += piece
        elif index == 0:
            built += _base(piece.text, pieces)
        elif _is_in_host(built):
            built += _in_host(piece.text, pieces, index)
        else:
            built += _quoted(piece.text)
    _check_path(pieces)
    return parsed(built)


def parsed(text: str) -> httpx.URL:
    """Raises `BrokenToolError` for what is no address."""
    try:
        parts = urlsplit(text)
        url = httpx.URL(text)
    except (ValueError, httpx.InvalidURL, UnicodeError) as error:
        raise BrokenToolError(f"{text!r} is no address ({error})") from None
    if parts.scheme not in ("http", "https") or not url.host:
        raise BrokenToolError(f"{text!r} is no address; it begins with http:// or https:// and a host")
    if url.userinfo:
        raise BrokenToolError(f"the address at {url.host} has a password in it; put credentials into headers")
    return url


def segment(name: str, text: str) -> str:
    """A value as a whole step of a path. Raises `ToolError` for one that would be another step, or none."""
    if not text:
        raise ToolError(f"{name} is empty, and it is a part of the address")
    _check_steps(text)
    return _quoted(text)


def _base(text: str, pieces: Sequence[str | Value]) -> str:
    """`https://example.com/v1/` before `/pages` is meant without its last slash."""
    following = pieces[1] if len(pieces) > 1 else ""
    return text.rstrip("/") if isinstance(following, str) and following.startswith("/") else text


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="replace")


def _is_in_host(built: str) -> bool:
    """Whether what comes next stands in the host of an address that begins like this."""
    scheme = _SCHEME.match(built)
    return scheme is None or not _END_OF_HOST.search(built, scheme.end())


def _in_host(text: str, pieces: Sequence[str | Value], index: int) -> str:
    before = pieces[index - 1]
    after = pieces[index + 1] if index + 1 < len(pieces) else ""
    is_whole = (
        isinstance(before, str)
        and isinstance(after, str)
        and _SCHEME.fullmatch(before) is not None
        and (not after or _END_OF_HOST.match(after) is not None)
    )
    allowed, described = (
        (_WHOLE_HOST, "a host with or without a port")
        if is_whole
        else (_PART_OF_HOST, "letters, digits, - and _, as it is a part of the address's host")
    )
    if not allowed.fullmatch(text):
        raise ToolError(f"{text!r} cannot be used in the address: it must be {described}")
    return text


def _check_path(pieces: Sequence[str | Value]) -> None:
    """No value may make a step of the path empty, or one that leads upwards."""
    base = pieces[0] if isinstance(pieces[0], str) else "base"
    filled = base + "".join(piece if isinstance(piece, str) else _quoted(piece.text) for piece in pieces[1:])
    # Each value is one mark that stands for itself.
    marked = base + "".join(piece if isinstance(piece, str) else "\0" for piece in pieces[1:])
    for step, mark in zip(_steps(filled), _steps(marked), strict=True):
        if "\0" in mark:
            if not step:
                raise ToolError("a value that is a part of the address is empty")
            _check_steps(unquote(step))


def _steps(text: str) -> list[str]:
    return re.split(r"[?#]", text, maxsplit=1)[0].split("/")


def _check_steps(text: str) -> None:
    # Some servers decode a path before they look at its steps.
    if any(step in (".", "..") for step in _SEPARATORS.split(text)):
        raise ToolError(f"{text!r} cannot be used in the address: `.` and `..` are no names there")


# requests

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
        """Every text inside a value filled in; keys stay as they are."""
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
        raise BrokenToolError(f"the header {name[:80]!r} cannot be sent; remove it from the tool")
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


# json_path


async def select(path: str, value: Json) -> Json:
    """The value itself when it can only be one, otherwise the list of all. Raises `ToolError` when one is missing."""
    try:
        query = compile_path(path)
        found = await find(path, value)
    except JsonPathError as error:
        raise BrokenToolError(f"{path} is no JSONPath ({error})") from None
    except QueryStoppedError as error:
        raise ToolError(f"{path} cannot be looked up in the answer: {error}") from None
    if not query.singular_query():
        return found
    if not found:
        raise ToolError(f"the answer has nothing at {path}")
    return found[0]


# exchange

_EXCERPT = 500
_TEXTUAL = ("xml", "yaml", "javascript", "x-www-form-urlencoded", "csv")


class Answer(msgspec.Struct, frozen=True):
    """What a service answered, with a status that says it went well."""

    content: bytes
    #: The media type, in small letters and without parameters.
    kind: str
    charset: str

    @property
    def is_json(self) -> bool:
        return self.kind == "application/json" or self.kind.endswith("+json")

    def json(self) -> Json:
        """Raises `ToolError` for what is none."""
        try:
            return msgspec.json.decode(self.content)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ToolError(f"the answer is no JSON ({error})") from None

    def text(self) -> str:
        return _decoded(self.content, self.charset)

    async def result(self, path: str | None = None) -> Json:
        """JSON or text, or what a JSONPath finds in it. Raises `ToolError`."""
        if path is not None:
            return await select(path, self.json())
        if not self.content:
            return None
        if self.is_json:
            return self.json()
        if self.kind.startswith("text/") or not self.kind or self.kind.endswith(_TEXTUAL):
            return self.text()
        raise ToolError(f"the answer is {self.kind}, and only JSON and text can be used")


async def send(equipment: Equipment, request: httpx.Request) -> Answer:
    """Raises `ToolError` and `BrokenToolError`."""
    bounds = equipment.bounds
    host = request.url.host
    try:
        async with asyncio.timeout(bounds.timeout):
            response, content = await _received(equipment.transport, request, bounds)
    except (TimeoutError, httpx.TimeoutException):
        raise ToolError(f"{host} did not answer within {bounds.timeout:g} s") from None
    except OutboundError as error:
        raise BrokenToolError(str(error)) from None
    except httpx.ConnectError as error:
        raise BrokenToolError(f"nobody can be reached at {host}:{_port(request.url)} ({error})") from None
    except httpx.DecodingError as error:
        raise ToolError(f"the answer of {host} cannot be read: {error}") from None
    except httpx.TransportError as error:
        raise ToolError(f"the connection to {host} broke ({type(error).__name__})") from None
    _check_status(host, response, content, equipment.hide)
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return Answer(content, kind, response.charset_encoding or "utf-8")


async def _received(
    transport: httpx.AsyncBaseTransport, request: httpx.Request, bounds: Bounds
) -> tuple[httpx.Response, bytes]:
    response = await transport.handle_async_request(request)
    response.request = request
    content = bytearray()
    try:
        async for chunk in response.aiter_bytes():
            content += chunk
            if len(content) > bounds.max_bytes:
                raise AnswerTooLargeError
    except AnswerTooLargeError:
        # Of an error the beginning is enough.
        if response.status_code < 400:
            raise ToolError(f"the answer of {request.url.host} has more than {bounds.max_bytes:,} bytes") from None
    finally:
        await response.aclose()
    return response, bytes(content)


def _check_status(host: str, response: httpx.Response, content: bytes, hide: Callable[[str], str]) -> None:
    status = response.status_code
    if 200 <= status < 300:
        return
    said = f"{host} answered {status}{_phrase(status)}"
    if 300 <= status < 400:
        location = response.headers.get("Location", "nowhere")
        raise ToolError(f"{said} and points to {location}; redirects are not followed")
    # What is cut off must not leave half of a secret.
    excerpt = hide(_decoded(content[: _EXCERPT * 8], response.charset_encoding or "utf-8").strip())
    shown = excerpt[:_EXCERPT] + ("…" if len(excerpt) > _EXCERPT else "")
    raise ToolError(f"{said}: {shown}" if shown else said)


def _phrase(status: int) -> str:
    try:
        return f" {HTTPStatus(status).phrase}"
    except ValueError:
        return ""


def _decoded(content: bytes, charset: str) -> str:
    try:
        # Some charsets can write halves of characters, which nothing can store.
        return content.decode(charset, "replace").encode("utf-8", "replace").decode()
    except (LookupError, UnicodeError):
        return content.decode("utf-8", "replace")


def _port(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


# http


class HttpBackend(Backend):
    async def invoke(self, invocation: Invocation) -> Json:
        document = configuration(self.equipment.tool, invocation.action, StatelessHttp)
        filled = await filling(
            self.equipment,
            document,
            arguments=invocation.arguments,
            context=invocation.context,
            session=invocation.session,
        )
        answer = await send(self.equipment, await build(filled, document, key=invocation.call))
        return await answer.result(document.response_path)


# session


class SessionBackend(Backend):
    @classmethod
    def check(cls, tool: Tool) -> None:
        if len(_sessions(tool)) > 1:
            raise ConfigurationError(
                f"the actions of the tool {tool.name} have different sessions, and a task has one per tool: "
                "write create, extract and destroy once, in stateful_session of the tool, or make two tools of it"
            )

    async def initialize(self, invocation: Invocation) -> State:
        document = configuration(self.equipment.tool, invocation.action, StatefulSession)
        created = await self._made(document.create, invocation, key=f"{invocation.call}-create")
        answer = created.json() if document.extract else None
        session = {name: await select(path, answer) for name, path in (document.extract or {}).items()}
        return {
            "session": session,
            "parameters": _part(invocation.arguments, _named(document.destroy, "parameters")),
            "context": _part(invocation.context, _named(document.destroy, "context", "c")),
        }

    async def invoke(self, invocation: Invocation) -> Json:
        document = configuration(self.equipment.tool, invocation.action, StatefulSession)
        answer = await self._made(
            document.execute, invocation, key=invocation.call, values=invocation.state.get("session", {})
        )
        return await answer.result()

    async def teardown(self, state: State) -> None:
        document = next(iter(_sessions(self.equipment.tool)), None)
        if document is None or document.destroy is None:
            return
        filled = await filling(
            self.equipment,
            document.destroy,
            arguments=state["parameters"],
            context=state["context"],
            session=Session(now=to_iso(system_clock())),
            values=state["session"],
        )
        await send(self.equipment, await build(filled, document.destroy, key=f"{self.equipment.task_id}-destroy"))

    async def _made(
        self, request: Request | None, invocation: Invocation, *, key: str, values: Mapping[str, Json] | None = None
    ) -> Answer:
        if request is None:
            raise BrokenToolError(f"a request of the session of {self.equipment.tool.name} is missing")
        filled = await filling(
            self.equipment,
            request,
            arguments=invocation.arguments,
            context=invocation.context,
            session=invocation.session,
            values=values,
        )
        return await send(self.equipment, await build(filled, request, key=key))


def _sessions(tool: Tool) -> list[StatefulSession]:
    """What the actions say about their session, without what each does in it."""
    found: list[StatefulSession] = []
    for action in tool.actions:
        _, document = backend(tool, action)
        if isinstance(document, StatefulSession):
            session = StatefulSession(document.create, document.extract, None, document.destroy)
            if session not in found:
                found.append(session)
    return found


def _named(request: Request | None, *roots: str) -> set[str]:
    """The names below a root that a request uses."""
    names = {reference.steps[0] for reference in references(request) if reference.root in roots}
    return {"capabilities" if name == "cap" else name for name in names}


def _part(values: Mapping[str, Json], names: Collection[str]) -> dict[str, Json]:
    return {name: values[name] for name in names if name in values}
