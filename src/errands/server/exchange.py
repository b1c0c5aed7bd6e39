"""One HTTP exchange over bare ASGI: reading the request, writing the answer. Frameworks cost more than the work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request

from errands.errors import InvalidRequestError, ParseError, PayloadTooLargeError
from errands.runtime.middleware import RequestEnvelope
from errands.runtime.settings import Settings
from errands.wire.bounds import MAX_DEPTH, check_json

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

Header = tuple[bytes, bytes]

JSON_TYPE = b"application/json"
#: The ASGI extension by which `errands serve` takes a whole response at once: it is called with the `send` of the
#: application, the status, the headers and the body, and returns whether it has sent them.
WHOLE_RESPONSE = "errands.whole_response"


class ClientDisconnectedError(Exception):
    """The client went away before it had sent its whole request."""


class Incoming:
    """A request as the dispatcher and middleware know it, whatever carries it."""

    #: As ASGI describes it.
    scope: Scope
    headers: dict[bytes, bytes]
    #: Added to whatever answer is sent.
    extra_headers: list[Header]
    #: Whether a subscription of this client is over when the task pauses; its dialect says so.
    ends_at_pause = False
    #: What middleware has made of the head; None until it was asked.
    envelope: RequestEnvelope | None = None
    #: See `CallContext`; its dialect says so.
    answers_by_context = False
    #: Called when a message is in the log and nothing is left but to wait for the turn's end.
    on_accepted: Callable[[], object] | None = None

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1").strip()

    @property
    def method(self) -> str:
        method: str = self.scope["method"]
        return method

    @cached_property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(self.scope["query_string"].decode("latin-1"), keep_blank_values=True))

    @property
    def request(self) -> Request:
        """The request as middleware sees it, without its body."""
        return Request(self.scope)


class Exchange(Incoming):
    def __init__(self, scope: Scope, receive: Receive, send: Send, settings: Settings) -> None:
        self.scope = scope
        self.receive = receive
        self._send = send
        self._settings = settings
        self.headers = dict(scope["headers"])
        self.extra_headers = []

    @property
    def content_type(self) -> str:
        raw = self.headers.get(b"content-type", b"")
        return "application/json" if raw == JSON_TYPE else raw.decode("latin-1").partition(";")[0].strip().lower()

    @property
    def has_body(self) -> bool:
        return self.headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in self.headers

    async def body(self) -> bytes:
        """The whole body.

        Raises `PayloadTooLargeError` as soon as it is known to be too large or to hold too many values,
        `InvalidRequestError` when it is nested too deeply, and `ParseError` when it is not UTF-8.
        """
        limit = self._settings.max_body_bytes
        length = self.headers.get(b"content-length")
        if length is not None:
            if not length.isdigit():
                raise InvalidRequestError("Content-Length is not a number")
            if int(length) > limit:
                raise PayloadTooLargeError(f"The body may have {limit} bytes, not {int(length)}")
        message = await self.receive()
        body: bytes = message.get("body", b"")
        if message["type"] == "http.disconnect" or message.get("more_body", False):
            body = await self._rest_of(message)
        if len(body) > limit:
            raise PayloadTooLargeError(f"The body may have {limit} bytes")
        if not body.isascii():
            _check_encoding(body)
        most = self._settings.max_message_values
        # A body that opens fewer brackets cannot be nested deeper, and one of fewer bytes has fewer values.
        if len(body) > most or body.count(b"[") + body.count(b"{") > MAX_DEPTH:
            check_json(body, most)
        return body

    async def _rest_of(self, message: Message) -> bytes:
        """A body that comes in several pieces; no more of it is taken than is allowed."""
        chunks: list[bytes] = []
        size = 0
        while True:
            if message["type"] == "http.disconnect":
                raise ClientDisconnectedError
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > self._settings.max_body_bytes or not message.get("more_body", False):
                return b"".join(chunks)
            message = await self.receive()

    async def respond(
        self, status: int, body: bytes, content_type: bytes = JSON_TYPE, headers: tuple[Header, ...] = ()
    ) -> None:
        head: list[Header] = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
        if self.scope["method"] == "HEAD":
            body = b""
        if not headers and not self.extra_headers:
            at_once = self.scope.get("extensions", {}).get(WHOLE_RESPONSE)
            if at_once is not None and at_once(self._send, status, head, body):
                return
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [*head, *headers, *self.extra_headers]}
        )
        await self._send({"type": "http.response.body", "body": body})

    async def begin_stream(self) -> None:
        await self._send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [
                    (b"content-type", b"text/event-stream; charset=utf-8"),
                    (b"cache-control", b"no-store"),
                    (b"x-accel-buffering", b"no"),
                    *self.extra_headers,
                ],
            }
        )

    async def write(self, chunk: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": chunk, "more_body": more})

    async def disconnected(self) -> None:
        """Returns when the client has gone."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


def _check_encoding(body: bytes) -> None:
    """Raise `ParseError` for what is not UTF-8: decoders pass over texts that are not needed, and ids are sent back."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise ParseError(f"Invalid JSON payload: it is not UTF-8 ({error.reason} at byte {error.start})") from None
