"""`stateless_http` and `stateful_session`: actions that are HTTP requests, written as templates.

    not allowed, unknown host, no connection, bad certificate     `BrokenToolError`
    a timeout, a broken connection, a bad status, too large       `ToolError`

Redirects are not followed: an answer 3xx is an error that names the new address. Nothing here logs an address,
because it may contain a secret.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

import httpx
import msgspec

from errands import tracing
from errands.agents.manifests import schemas
from errands.agents.manifests.documents import HttpRequest, StatefulSession, StatelessHttp, Tool
from errands.agents.manifests.expressions import references
from errands.agents.manifests.functions import backend
from errands.agents.manifests.patterns import JsonPathError, QueryStoppedError, compile_path, find
from errands.agents.manifests.rules import METHODS, is_header_name, is_header_text
from errands.agents.tools.base import Backend, BrokenToolError, Equipment, Invocation, State, ToolError, configuration
from errands.clock import system_clock, to_iso
from errands.errors import ConfigurationError
from errands.outbound import AnswerTooLargeError, OutboundError
from errands.policy.cel import CelError, Program, Session, Variables, evaluate, scopes
from errands.policy.cel.values import Json, as_text
from errands.policy.template import Template, compile_template

#: Methods that may do something twice when they are repeated: the service is sent a key to recognise the call.
_WITH_KEY = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_FORM = "application/x-www-form-urlencoded"
_TEXT_TYPES = ("xml", "yaml", "javascript", "x-www-form-urlencoded", "csv")
#: Characters of the body of an error that are shown.
_MAX_EXCERPT = 500

#: What a value may be in the host of an address, and how this is described.
_WHOLE_HOST = (
    re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?"),
    "a host with or without a port",
)
_PART_OF_HOST = (
    re.compile(r"[A-Za-z0-9_-]+"),
    "letters, digits, - and _, as it is a part of the address's host",
)
_SLASHES = re.compile(r"[/\\]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_END_OF_HOST = re.compile(r"[/?#\\]")


class HttpBackend(Backend):
    """Runs actions that are one request."""

    async def invoke(self, invocation: Invocation) -> Json:
        document = configuration(self.equipment.tool, invocation.action, StatelessHttp)
        answer = await _exchange(self.equipment, document, invocation, invocation.call)
        return await answer.result(document.response_path)


class SessionBackend(Backend):
    """Runs actions in a session that is created once per task, used by every action, and destroyed at the end.

    Its state has what `extract` found, and the arguments and parts of the context that `destroy` names, which are gone
    when the task has ended. It is kept in the log, and so is a token of the session.
    """

    @classmethod
    def check(cls, tool: Tool) -> None:
        if len(_sessions(tool)) > 1:
            raise ConfigurationError(
                f"the actions of the tool {tool.name} have different sessions, and a task has one per tool: "
                "write create, extract and destroy once, in stateful_session of the tool, or use two tools"
            )

    async def initialize(self, invocation: Invocation) -> State:
        document = configuration(self.equipment.tool, invocation.action, StatefulSession)
        created = await _exchange(self.equipment, document.create, invocation, f"{invocation.call}-create")
        answer = created.json() if document.extract else None
        destroy = list(references(document.destroy))
        arguments = {one.steps[0] for one in destroy if one.root == "parameters"}
        context = {one.steps[0] for one in destroy if one.root in ("context", "c")}
        return {
            "session": {name: await select(path, answer) for name, path in (document.extract or {}).items()},
            "parameters": _part(invocation.arguments, arguments),
            "context": _part(invocation.context, {"capabilities" if name == "cap" else name for name in context}),
        }

    async def invoke(self, invocation: Invocation) -> Json:
        request = configuration(self.equipment.tool, invocation.action, StatefulSession).execute
        values = invocation.state.get("session", {})
        return await (await _exchange(self.equipment, request, invocation, invocation.call, values)).result()

    async def teardown(self, state: State) -> None:
        for document in _sessions(self.equipment.tool)[:1]:
            if document.destroy is not None:
                session = Session(now=to_iso(system_clock()))
                filled = filling(self.equipment, state["parameters"], state["context"], session, state["session"])
                key = f"{self.equipment.task_id}-destroy"
                await send(self.equipment, await build(filled, document.destroy, key=key))


def _sessions(tool: Tool) -> list[StatefulSession]:
    """Return the different sessions of a tool's actions, without what each action does in it."""
    found: list[StatefulSession] = []
    for action in tool.actions:
        _, document = backend(tool, action)
        if isinstance(document, StatefulSession):
            session = StatefulSession(document.create, document.extract, None, document.destroy)
            if session not in found:
                found.append(session)
    return found


def _part(values: Mapping[str, Json], names: Collection[str]) -> dict[str, Json]:
    return {name: values[name] for name in names if name in values}


async def _exchange(
    equipment: Equipment,
    request: HttpRequest | None,
    invocation: Invocation,
    key: str,
    values: Mapping[str, Json] | None = None,
) -> HttpAnswer:
    if request is None:
        raise BrokenToolError(f"a request of the session of {equipment.tool.name} is missing")
    filled = filling(equipment, invocation.arguments, invocation.context, invocation.session, values)
    return await send(equipment, await build(filled, request, key=key))


# Templates


class Filling:
    """Fills in the templates of one request. Raises `ToolError` for a value that cannot be evaluated."""

    def __init__(self, variables: Variables, session: Session) -> None:
        self._variables = variables
        self._session = session

    async def text(self, source: str) -> str:
        return as_text(await self.everywhere(source))

    async def everywhere(self, value: Any) -> Json:
        """Fill in every string inside a value, but no keys. A string that is one expression becomes its value."""
        if isinstance(value, str):
            return await _evaluated(_template(value).value(self._variables, self._session))
        if isinstance(value, dict):
            return {key: await self.everywhere(item) for key, item in value.items()}
        if isinstance(value, list):
            return [await self.everywhere(item) for item in value]
        return value

    async def address(self, source: str) -> httpx.URL:
        """See `address`."""
        pieces: list[str | AddressValue] = []
        for piece in _template(source).pieces:
            if isinstance(piece, Program):
                value = await _evaluated(evaluate(piece, self._variables, self._session))
                pieces.append(AddressValue(as_text(value)))
            else:
                pieces.append(piece)
        return address(pieces)


def _template(source: str) -> Template:
    try:
        return compile_template(scopes.REQUEST, source)
    except CelError as error:
        raise BrokenToolError(f"a request of the tool cannot be used: {error}") from None


async def _evaluated(value: Awaitable[Json]) -> Json:
    try:
        return await value
    except CelError as error:
        raise ToolError(f"the request cannot be made: {error}") from None


def filling(
    equipment: Equipment,
    arguments: Mapping[str, Json],
    context: Mapping[str, Json],
    session: Session,
    values: Mapping[str, Json] | None = None,
) -> Filling:
    """Return what fills in the templates of a request; `values` are those of a stateful session."""
    roots: dict[str, Json] = {
        "parameters": dict(arguments),
        "settings": schemas.nested(equipment.settings),
        "runtime": dict(equipment.runtime),
        "agent": {"name": equipment.agent.name, "namespace": equipment.agent.namespace},
        "session": dict(values or {}),
        "auth": dict(equipment.auth),
    }
    if equipment.files is not None:
        roots["mount"] = equipment.files.described
    return Filling(Variables(context, **roots), session)


# Requests


async def build(filling: Filling, request: HttpRequest, *, key: str) -> httpx.Request:
    """Return the request to send. By `key` the service may recognise a repeated request. Raises `ToolError`."""
    method = (await filling.text(request.method or "GET")).upper()
    if method not in METHODS:
        raise ToolError(f"the method {method[:20]!r} cannot be used; it must be one of {', '.join(METHODS)}")
    url = await filling.address(request.url or "")
    headers = httpx.Headers()
    for name, source in (request.headers or {}).items():
        put_header(headers, name, await filling.text(source))
    content = body_of(await filling.everywhere(request.body), headers)
    return finished(method, url, headers, content, key=key)


def finished(method: str, url: httpx.URL, headers: httpx.Headers, content: bytes | None, *, key: str) -> httpx.Request:
    """Return a request with the headers that every request has."""
    if method in _WITH_KEY and "Idempotency-Key" not in headers:
        headers["Idempotency-Key"] = key
    headers.setdefault("Accept", "application/json, text/*;q=0.8, */*;q=0.1")
    headers.setdefault("User-Agent", "errands")
    if tracing.tracer is not None and tracing.TRACEPARENT not in headers:
        headers.update(tracing.headers(tracing.tracer.inject()))
    return httpx.Request(method, url, headers=headers, content=content)


def put_header(headers: httpx.Headers, name: str, text: str) -> None:
    """Raises `ToolError` for a value that would be more than one header."""
    if not is_header_name(name):
        raise BrokenToolError(f"the header {name[:80]!r} cannot be sent; remove it from the tool")
    if not is_header_text(text):
        raise ToolError(f"the value of the header {name} has line breaks or control characters")
    headers.update(httpx.Headers([(name.encode(), text.strip().encode("utf-8", "replace"))]))


def body_of(value: Json, headers: httpx.Headers) -> bytes | None:
    """Return a string as it is, and anything else as JSON, or as a form if the content type says so."""
    if value is None:
        return None
    if isinstance(value, str):
        headers.setdefault("Content-Type", "text/plain; charset=utf-8")
        return value.encode("utf-8", "replace")
    if isinstance(value, dict) and headers.get("Content-Type", "").partition(";")[0].strip().lower() == _FORM:
        return urlencode({name: as_text(item) for name, item in value.items() if item is not None}).encode()
    headers.setdefault("Content-Type", "application/json")
    return msgspec.json.encode(value)


# Addresses: a value fills its place and changes nothing else of the address
#
#    https://api.{region}.example.com/pages/{title}?lang={lang}
#            └ part of a host: letters, digits, - and _    └ percent-encoded
#                                       └ percent-encoded; never empty, `.` or `..`
#
# An expression at the very beginning is the address itself or its base, such as `{settings.base_url}/pages`, and is
# taken as it is. Wherever it leads, the outbound guard checks it.


class AddressValue(msgspec.Struct, frozen=True):
    """A piece of an address that comes from an expression."""

    text: str


def address(pieces: Sequence[str | AddressValue]) -> httpx.URL:
    """Return the address made of all pieces. Raises `ToolError` for a value that cannot be used in its place."""
    built = ""
    for index, piece in enumerate(pieces):
        if isinstance(piece, str):
            built += piece
            continue
        following = pieces[index + 1] if index + 1 < len(pieces) else ""
        next_text = following if isinstance(following, str) else None
        scheme = _SCHEME.match(built)
        if index == 0:
            # `https://example.com/v1/` before `/pages` is meant without its last slash.
            built += piece.text.rstrip("/") if (next_text or "").startswith("/") else piece.text
        elif scheme is not None and _END_OF_HOST.search(built, scheme.end()):
            built += quote(piece.text, safe="", errors="replace")
        else:
            is_whole = pieces[index - 1] == built and scheme is not None and scheme.end() == len(built)
            is_whole &= next_text == "" or bool(next_text and _END_OF_HOST.match(next_text))
            allowed, described = _WHOLE_HOST if is_whole else _PART_OF_HOST
            if not allowed.fullmatch(piece.text):
                raise ToolError(f"{piece.text!r} cannot be used in the address: it must be {described}")
            built += piece.text
    # No value may make a segment of the path empty, or one that leads upwards. Slashes of values are quoted, so a NUL
    # before each value marks the segments that have one.
    first, *rest = pieces
    marked = (
        piece if isinstance(piece, str) else "\0" + quote(piece.text, safe="", errors="replace") for piece in rest
    )
    whole = (first if isinstance(first, str) else "base") + "".join(marked)
    for segment in re.split(r"[?#]", whole, maxsplit=1)[0].split("/"):
        if "\0" in segment:
            if not segment.strip("\0"):
                raise ToolError("a value that is a part of the address is empty")
            _refuse_dots(unquote(segment.replace("\0", "")))
    return parsed(built)


def parsed(text: str) -> httpx.URL:
    """Raises `BrokenToolError` for anything but an HTTP URL without a password."""
    try:
        parts = urlsplit(text)
        url = httpx.URL(text)
    except (ValueError, httpx.InvalidURL, UnicodeError) as error:
        raise BrokenToolError(f"{text!r} is not a URL ({error})") from None
    if parts.scheme not in ("http", "https") or not url.host:
        raise BrokenToolError(f"{text!r} is not a URL that begins with http:// or https:// and a host")
    if url.userinfo:
        raise BrokenToolError(f"the address at {url.host} contains a password; put credentials into headers")
    return url


def segment(name: str, text: str) -> str:
    """Return a value as one segment of a path. Raises `ToolError` for one that would be another segment, or none."""
    if not text:
        raise ToolError(f"{name} is empty, and it is a part of the address")
    _refuse_dots(text)
    return quote(text, safe="", errors="replace")


def _refuse_dots(text: str) -> None:
    # Some servers decode a path before they look at its segments.
    if any(step in (".", "..") for step in _SLASHES.split(text)):
        raise ToolError(f"{text!r} cannot be used in the address: `.` and `..` are not names there")


# Answers


class HttpAnswer(msgspec.Struct, frozen=True):
    """An answer with a status of success."""

    content: bytes
    #: The media type, in lower case and without parameters.
    kind: str
    charset: str

    def json(self) -> Json:
        """Raises `ToolError` for anything else."""
        try:
            return msgspec.json.decode(self.content)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ToolError(f"the answer is not valid JSON ({error})") from None

    async def result(self, path: str | None = None) -> Json:
        """Return JSON or text, or what a JSONPath finds in it. Raises `ToolError`."""
        if path is not None:
            return await select(path, self.json())
        if not self.content:
            return None
        if self.kind == "application/json" or self.kind.endswith("+json"):
            return self.json()
        if self.kind.startswith("text/") or not self.kind or self.kind.endswith(_TEXT_TYPES):
            return _decoded(self.content, self.charset)
        raise ToolError(f"the answer is {self.kind}, and only JSON and text can be used")


async def select(path: str, value: Json) -> Json:
    """Return the value at a path that can match only one, otherwise the list of all. Raises `ToolError`."""
    try:
        query = compile_path(path)
        found = await find(path, value)
    except JsonPathError as error:
        raise BrokenToolError(f"{path} is not a JSONPath ({error})") from None
    except QueryStoppedError as error:
        raise ToolError(f"{path} cannot be looked up in the answer: {error}") from None
    if not query.singular_query():
        return found
    if not found:
        raise ToolError(f"the answer has nothing at {path}")
    return found[0]


async def send(equipment: Equipment, request: httpx.Request) -> HttpAnswer:
    """Raises `ToolError` and `BrokenToolError`."""
    bounds, host = equipment.bounds, request.url.host
    content = bytearray()
    try:
        async with asyncio.timeout(bounds.timeout):
            response = await equipment.transport.handle_async_request(request)
            response.request = request
            try:
                async for chunk in response.aiter_bytes():
                    content += chunk
                    if len(content) > bounds.max_bytes:
                        raise AnswerTooLargeError
            except AnswerTooLargeError:
                # Of a redirect or an error the beginning is enough.
                if response.is_success:
                    raise ToolError(f"the answer of {host} has more than {bounds.max_bytes:,} bytes") from None
            finally:
                await response.aclose()
    except (TimeoutError, httpx.TimeoutException):
        raise ToolError(f"{host} did not answer within {bounds.timeout:g} s") from None
    except OutboundError as error:
        raise BrokenToolError(str(error)) from None
    except httpx.ConnectError as error:
        port = request.url.port or (443 if request.url.scheme == "https" else 80)
        raise BrokenToolError(f"cannot connect to {host}:{port} ({error})") from None
    except httpx.DecodingError as error:
        raise ToolError(f"{host} carried out the request, but its answer cannot be read: {error}") from None
    except httpx.TransportError as error:
        raise ToolError(f"the connection to {host} broke ({type(error).__name__})") from None
    charset = response.charset_encoding or "utf-8"
    if not response.is_success:
        # Secrets are hidden before the text is cut, so that no part of one is left.
        body = equipment.hide(_decoded(content[: _MAX_EXCERPT * 8], charset).strip())
        status = response.status_code
        said = f"{host} answered {status} {httpx.codes.get_reason_phrase(status)}".rstrip()
        if response.is_redirect:
            location = response.headers.get("Location", "nowhere")
            raise ToolError(f"{said} and points to {location}; redirects are not followed")
        excerpt = body[:_MAX_EXCERPT] + ("…" if len(body) > _MAX_EXCERPT else "")
        raise ToolError(f"{said}: {excerpt}" if excerpt else said)
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return HttpAnswer(bytes(content), kind, charset)


def _decoded(content: bytes | bytearray, charset: str) -> str:
    try:
        # Some charsets can encode lone surrogates, which cannot be stored.
        return content.decode(charset, "replace").encode("utf-8", "replace").decode()
    except (LookupError, UnicodeError):
        return content.decode("utf-8", "replace")
