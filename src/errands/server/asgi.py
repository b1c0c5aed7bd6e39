"""One HTTP request and its response over bare ASGI, server-sent events included.

A framework's request and response classes would cost more time than the work itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cached_property, partial
from typing import Protocol
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from errands.errors import (
    A2AError,
    InvalidRequestError,
    MethodNotFoundError,
    ParseError,
    PayloadTooLargeError,
    UnavailableError,
)
from errands.model.base import encode
from errands.runtime.call import LARGE
from errands.runtime.middleware import RequestEnvelope
from errands.runtime.quotas import CallerKey
from errands.runtime.settings import Settings
from errands.runtime.streams import EventStream, StreamItem
from errands.server.errors import client_error
from errands.server.large_work import LARGE_BODY, LargeWork
from errands.wire.bounds import MAX_DEPTH, check_json
from errands.wire.dialect import Dialect
from errands.wire.sse import ERROR_EVENT, GAP_EVENT, KEEP_ALIVE, frame, named, plain_frame
from errands.wire.status import to_http

Header = tuple[bytes, bytes]
#: Puts an error into the binding's envelope.
ErrorEnvelope = Callable[[A2AError], bytes]

JSON_TYPE = b"application/json"
#: The ASGI extension of `errands serve`: a function that returns the `WholeExchange` of the application's `receive` and
#: `send`, or None if a middleware has replaced one of them.
WHOLE_EXCHANGE = "errands.whole_exchange"


class WholeExchange(Protocol):
    """A request and its response without the messages and coroutines of ASGI."""

    def take_whole(self) -> bytes | None:
        """Return the body of a request that has arrived whole, else None."""
        ...

    def send_whole(self, status: int, content_type: bytes, body: bytes) -> bool:
        """Send a whole response, and return True; return False if it has to go through `send`."""
        ...


class ClientDisconnectedError(Exception):
    """The client disconnected before it had sent its whole request."""


class IncomingRequest:
    """A request as the dispatcher and middleware see it, whatever binding carries it."""

    #: The request as ASGI describes it.
    scope: Scope
    headers: dict[bytes, bytes]
    #: Headers to add to the response.
    extra_headers: list[Header]
    #: Whether this client's subscriptions end when the task pauses. Set from its dialect.
    ends_at_pause = False
    #: What carries it, as metrics call it.
    binding = "jsonrpc"
    #: The envelope that head-only middleware has filled in; None until that middleware has run.
    envelope: RequestEnvelope | None = None
    #: Whom the request is counted for, once it has been counted.
    caller_key: CallerKey | None = None
    #: See `CallContext`. Set from the dialect.
    answers_by_context = False
    protocol = "1.0"
    #: Where large requests take turns.
    large_work: LargeWork
    #: Called when the message is committed and only the end of the turn is left to wait for.
    on_accepted: Callable[[], object] | None = None
    #: As how many requests it counts.
    weight = 1

    def one_at_a_time(self, size: int) -> AbstractAsyncContextManager[object]:
        """Return a block in which `size` bytes may be read for this request, when it is its turn."""
        return self.large_work.one_at_a_time(size)

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


class HttpExchange(IncomingRequest):
    """An HTTP request and the response to it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, settings: Settings) -> None:
        self.scope = scope
        self.receive = receive
        self._send = send
        self._settings = settings
        self.headers = dict(scope["headers"])
        self.extra_headers = []
        whole_of = scope.get("extensions", {}).get(WHOLE_EXCHANGE)
        self._whole: WholeExchange | None = None if whole_of is None else whole_of(receive, send)

    @property
    def content_type(self) -> str:
        raw = self.headers.get(b"content-type", b"")
        return "application/json" if raw == JSON_TYPE else raw.decode("latin-1").partition(";")[0].strip().lower()

    @property
    def content_length(self) -> int | None:
        """The bytes that the client says the body has, None if it does not. Raises `InvalidRequestError`."""
        length = self.headers.get(b"content-length")
        if length is None:
            return None
        length = length.strip(b" \t")  # parsers leave the white space behind a value
        if not length.isdigit() or len(length) > 18:
            raise InvalidRequestError("Content-Length is not a valid number")
        return int(length)

    @property
    def has_body(self) -> bool:
        return self.headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in self.headers

    @property
    def weight(self) -> int:  # type: ignore[override]
        """As how many requests it counts: one for each piece of `LARGE_BODY` bytes. Without a length it is a guess."""
        length = self.headers.get(b"content-length", b"0")
        if b"transfer-encoding" in self.headers or not length.isdigit() or len(length) > 18:
            return 1 + LARGE // LARGE_BODY
        return 1 + min(int(length), self._settings.max_body_bytes) // LARGE_BODY

    async def body(self) -> bytes:
        """Return the whole body.

        Raises `PayloadTooLargeError` as soon as the body is known to be too large or to hold too many values,
        `InvalidRequestError` when it is nested too deeply, and `ParseError` when it is not UTF-8.
        """
        body = None if self._whole is None else self._whole.take_whole()
        if body is None:
            body = await self._join_body()
        if len(body) > self._settings.max_body_bytes:
            raise PayloadTooLargeError(f"The body may have {self._settings.max_body_bytes} bytes")
        if len(body) > LARGE_BODY:
            async with self.large_work.one_at_a_time(len(body), is_held=True):
                self._check(body)
                await asyncio.sleep(0)
        else:
            self._check(body)
        return body

    def _check(self, body: bytes) -> None:
        if not body.isascii():
            # Decoders skip texts that no field needs, so they do not notice all invalid bytes.
            try:
                body.decode()
            except UnicodeDecodeError as error:
                problem = f"it is not UTF-8 ({error.reason} at byte {error.start})"
                raise ParseError(f"Invalid JSON payload: {problem}") from None
        max_values = self._settings.max_message_values
        # A body that opens fewer brackets cannot be nested deeper, and one of fewer bytes has fewer values.
        if len(body) > max_values or body.count(b"[") + body.count(b"{") > MAX_DEPTH:
            check_json(body, max_values)

    async def _join_body(self) -> bytes:
        """Return a body that may arrive in several pieces, but stop reading when it is larger than allowed."""
        limit = self._settings.max_body_bytes
        length = self.content_length or 0
        if length > limit:
            raise PayloadTooLargeError(f"The body may have {limit} bytes, not {length}")
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnectedError
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > limit or not message.get("more_body", False):
                return b"".join(chunks)

    async def respond(
        self, status: int, body: bytes, content_type: bytes = JSON_TYPE, headers: tuple[Header, ...] = ()
    ) -> None:
        """Send a whole response."""
        whole = self._whole
        is_plain = not headers and not self.extra_headers
        if is_plain and whole is not None and whole.send_whole(status, content_type, body):
            return
        await self.begin(status, len(body), content_type, headers)
        if self.scope["method"] == "HEAD":
            body = b""
        if len(body) > LARGE:
            await asyncio.sleep(0)  # encoding it has held the loop, and writing it will
        await self._send({"type": "http.response.body", "body": body})

    async def allows(self, *methods: str) -> bool:
        """Return whether the request has one of the methods; respond with 405 if not."""
        if self.method in methods:
            return True
        allowed = ", ".join(methods)
        body = to_http(MethodNotFoundError(f"{self.method} is not allowed here; use {allowed}"))[1]
        body["error"]["code"] = 405
        await self.respond(405, encode(body), headers=((b"allow", allowed.encode()),))
        return False

    async def begin(self, status: int, length: int, content_type: bytes, headers: tuple[Header, ...]) -> None:
        """Send the head of a response whose body of `length` bytes is then written in pieces."""
        head = [(b"content-type", content_type), (b"content-length", b"%d" % length), *headers, *self.extra_headers]
        await self._send({"type": "http.response.start", "status": status, "headers": head})

    async def begin_stream(self) -> None:
        """Send the head of a response of server-sent events."""
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
            *self.extra_headers,
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, chunk: bytes, *, more: bool = True) -> None:
        """Send a piece of the body; `more=False` ends it."""
        await self._send({"type": "http.response.body", "body": chunk, "more_body": more})

    @asynccontextmanager
    async def one_at_a_time(self, size: int) -> AsyncIterator[None]:
        async with self.large_work.one_at_a_time(size):
            watcher = asyncio.ensure_future(self.disconnected())
            try:
                await asyncio.sleep(0)
                if watcher.done():
                    raise UnavailableError("The client has disconnected")
            finally:
                watcher.cancel()
            yield

    async def disconnected(self) -> None:
        """Return when the client has disconnected."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def send_stream(
        self,
        stream: EventStream,
        dialect: Dialect,
        error_envelope: ErrorEnvelope,
        *,
        before: bytes = b"",
        after: bytes = b"",
    ) -> None:
        """Send each event as the dialect writes it, between the parts of its envelope `before` and `after` it."""
        await self.send_frames(
            stream,
            _framing(dialect, before, after),
            lambda error: named(ERROR_EVENT, plain_frame(error_envelope(error))),
        )

    async def send_frames(
        self,
        stream: EventStream,
        frame_of: Callable[[StreamItem], bytes],
        error_frame: ErrorEnvelope,
        *,
        end: Callable[[], bytes] = bytes,
    ) -> None:
        """Send each item as `frame_of` writes it, and what `end` returns when the stream is over."""
        try:
            await self.begin_stream()
        except BaseException:
            stream.close()
            raise
        # Closing the stream wakes the loop below, so a client that disconnects is noticed at once.
        watcher = asyncio.ensure_future(self.disconnected())
        watcher.add_done_callback(lambda _: stream.close())
        try:
            async for items in stream:
                if watcher.done():
                    return
                if items and (len(items[-1].data) > LARGE or len(items[0].data) > LARGE):
                    async with self.large_work.one_at_a_time(sum(len(item.data) for item in items), is_held=True):
                        pass
                frames = b"".join(map(frame_of, items)) or KEEP_ALIVE
                if len(frames) > LARGE:
                    await asyncio.sleep(0)
                del items  # do not keep it in memory while the client does not read, or while nothing happens
                await self.write(frames)
                del frames
        except Exception as error:
            end = partial(error_frame, client_error(error, "a stream"))
        finally:
            watcher.cancel()
        await self.write(end(), more=False)


def _framing(dialect: Dialect, before: bytes, after: bytes) -> Callable[[StreamItem], bytes]:
    """Return the function that writes an item as a frame. It is called for every chunk of every stream."""
    write = None if dialect.copies_events else dialect.write_event
    is_plain = before.isascii()

    def frame_of(item: StreamItem) -> bytes:
        version, data, gap = item
        if write is not None:
            data = write(data)
        if is_plain and version and not gap and data.isascii():
            return b"id: %d\ndata: %b%b%b\n\n" % (version, before, data, after)
        event = frame(version, before + data + after)
        return named(GAP_EVENT, event) if gap else event

    return frame_of


# Addresses of listening servers

#: Addresses that mean "every address" cannot be called by a client.
_CALLABLE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


def means_every_address(host: str) -> bool:
    return host in _CALLABLE


def callable_host(host: str) -> str:
    """Return a host at which a client on this machine reaches a server that listens on `host`."""
    return _CALLABLE.get(host, host)


def host_port(host: str, port: int) -> str:
    """Return `host:port`, with the brackets that IPv6 needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
