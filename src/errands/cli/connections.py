"""The connections of `errands serve`, with a bound for everything that a stranger could draw out.

uvicorn waits for ever for a request that does not come to its end and for a client that does not read, and takes the
head of a request whatever its size. Here a head has its size, a request has its pace, a client that stands still is let
go, and connections leave room for the files that the agent itself needs.
"""

from __future__ import annotations

import asyncio
from functools import cache
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Bytes that the address and the headers of a request may have.
MAX_HEAD = 64 * 1024


class HeadTooLargeError(Exception):
    """Ends the parsing of a request."""


class Connection(HttpToolsProtocol):
    """One connection of a client. Nothing here is done for a request that comes whole, in one piece."""

    #: Seconds that a client has for a request, apart from the time its size may take at so many bytes per second.
    patience = 30.0
    slowest = 16 * 1024
    #: Seconds in which a client must take something of what is sent. The system passes it on in pieces of a megabyte
    #: and more, so nothing seems to move for long when a line is slow.
    stall = 120.0

    #: Between the first byte of a request and its last, and before the last of its headers.
    _in_request = False
    _in_head = False
    _is_head_too_large = False
    #: From the last of the headers to the end of the answer.
    _is_answering = False
    #: Bytes that came of a head so far, without those that came together with its first.
    _head = 0
    _piece = 0
    #: Looks whether the request has come to its end, from the first wait for it on.
    _receiving: asyncio.TimerHandle | None = None
    _received = 0
    #: Looks whether the client takes what is sent, while it must wait.
    _sending: asyncio.TimerHandle | None = None

    # Called by the event loop

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        most = most_connections()
        if most is not None and len(self.connections) > most:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections; come back in a moment.")
        else:
            self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_watching()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._piece = len(data)
        if self._in_head:
            self._head += self._piece
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_head and self._head > MAX_HEAD:
            self._refuse_head()
        elif self._is_awaited:
            self._received += self._piece
            self._wait_for_request()
        else:
            self._stop_waiting()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._stop_watching()
        super().resume_writing()

    # Called by the parser

    def on_message_begin(self) -> None:
        self._in_request = self._in_head = True
        self._head = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._head + self._piece > MAX_HEAD and self._measured() > MAX_HEAD:
            self._is_head_too_large = True
            raise HeadTooLargeError
        super().on_headers_complete()
        self._is_answering = True

    def on_message_complete(self) -> None:
        self._in_request = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self._is_head_too_large:
            self._refuse_head()
        else:
            super().send_400_response(msg)

    def on_response_complete(self) -> None:
        self._is_answering = bool(self.pipeline)
        super().on_response_complete()
        if self._in_request and not self.transport.is_closing():
            self._wait_for_request()

    # Requests

    @property
    def _is_awaited(self) -> bool:
        """Whether it is the client's turn."""
        return not self.pipeline and (self._in_request or not self._is_answering)

    def _wait_for_request(self) -> None:
        if self._receiving is None:
            self._received = 0
            self._receiving = self.loop.call_later(self.patience, self._look_for_request, self.loop.time())

    def _look_for_request(self, since: float) -> None:
        left = since + self.patience + self._received / self.slowest - self.loop.time()
        if left > 0:
            self._receiving = self.loop.call_later(left, self._look_for_request, since)
            return
        self._receiving = None
        if self._in_head or (self._in_request and not self.cycle.response_started):
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "The request did not come to its end in time.")
        else:
            self.transport.close()

    def _stop_waiting(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    def _measured(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    # Answers

    def _watch(self, left: int) -> None:
        self._sending = self.loop.call_later(self.stall, self._look_at_client, left)

    def _look_at_client(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left >= before:
            self.transport.abort()
        else:
            self._watch(left)

    def _stop_watching(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    def _refuse_head(self) -> None:
        self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"The headers may have {MAX_HEAD} bytes.")

    def _refuse(self, status: HTTPStatus, said: str) -> None:
        self.transport.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: text/plain; charset=utf-8\r\n"
            f"content-length: {len(said)}\r\nconnection: close\r\n\r\n{said}".encode("ascii")
        )
        self.transport.close()


@cache
def most_connections() -> int | None:
    """Three quarters of the files that this process may open: the agent and its store need some, too."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return None
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if files == resource.RLIM_INFINITY else max(files * 3 // 4, 1)
