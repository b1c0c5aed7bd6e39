"""Sending a request of a tool and understanding the answer.

    not allowed, no such host, nobody there, bad certificate      `BrokenToolError`
    a time-out, a broken connection, a bad status, too much       `ToolError`

Redirects are not followed: an answer 3xx is an error that names the new address. Nothing here logs an address, because
there may be a secret in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus

import httpx
import msgspec

from errands.agents.tools.base import Bounds, BrokenToolError, Equipment, ToolError
from errands.agents.tools.json_path import select
from errands.outbound import OutboundError
from errands.policy.cel.values import Json
from errands.unpacking import AnswerTooLargeError

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
