"""The connections of `errands serve`, with a bound for everything that a stranger could draw out.

uvicorn waits for ever for a request that does not come to its end and for a client that does not read, and takes the
head of a request whatever its size. Here a head has its size, a request has its pace, a client that stands still is let
go, and connections leave room for the files that the agent itself needs.
"""

from __future__ import annotations

import asyncio
from functools import cache
from http import HTTPStatus

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

#: Bytes that the address and the headers of a request may have.
MAX_HEAD = 64 * 1024


#: What is said of a request that is none.
INVALID = "Invalid HTTP request received."


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
    #: Bytes that came of a head so far, or since the last of a body: trailers may follow one that comes in chunks. What
    #: came together with the first of the head or the last of the body is not counted.
    _beside_body = 0
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
        if most is None or len(self.connections) <= most or self._takes_a_place():
            self._wait_for_request()
        else:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections; come back in a moment.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_watching()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._piece = len(data)
        if self._in_request:
            self._beside_body += self._piece
        self._unset_keepalive_if_required()
        # As `_parse` does it, without its frame: what is done for each request is done in as few calls as it can be.
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as offer:
            self._parse(self._head_without_offer() + data[offer.args[0] :])
        except HttpParserError:
            self._refuse_invalid()
        if self.transport.is_closing():
            return
        if self._in_request and self._beside_body > MAX_HEAD:
            self._refuse_head()
        elif not self.pipeline and (self._in_request or not self._is_answering):  # it is the client's turn
            self._received += self._piece
            self._wait_for_request()
        elif self._receiving is not None:
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
        self._beside_body = 0
        HttpToolsProtocol.on_message_begin(self)

    def on_headers_complete(self) -> None:
        if self._beside_body + self._piece > MAX_HEAD and self._measured() > MAX_HEAD:
            self._is_head_too_large = True
            raise HeadTooLargeError
        self._in_head = False
        self._beside_body = 0
        HttpToolsProtocol.on_headers_complete(self)
        self.headers = []  # for trailers, which nobody may take for headers that a proxy has looked at
        self._is_answering = True

    def on_body(self, body: bytes) -> None:
        self._beside_body = 0
        HttpToolsProtocol.on_body(self, body)

    def _should_upgrade(self) -> bool:
        # uvicorn passes over what the parser says of such a request, which is going to be read again.
        return self.scope["method"] != "CONNECT"

    def on_message_complete(self) -> None:
        self._in_request = False
        HttpToolsProtocol.on_message_complete(self)

    def send_400_response(self, msg: str) -> None:
        if self._is_head_too_large:
            self._refuse_head()
        else:
            super().send_400_response(msg)

    def on_response_complete(self) -> None:
        self._is_answering = bool(self.pipeline)
        HttpToolsProtocol.on_response_complete(self)
        if self._in_request and not self.transport.is_closing():
            self._wait_for_request()

    # Places

    def _takes_a_place(self) -> bool:
        """Closes the connection that has waited longest for a next request; false if none does."""
        idle = {
            timer.when(): each.transport
            for each in self.connections
            if isinstance(each, Connection)
            and (timer := each.timeout_keep_alive_task) is not None
            # One that closes has given its place away, and one that still sends would keep it.
            and not (each.transport.is_closing() or each.transport.get_write_buffer_size())
        }
        if idle:
            idle[min(idle)].close()
        return bool(idle)

    # Requests

    def _parse(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                break
            except HttpParserUpgrade as offer:
                data = self._head_without_offer() + data[offer.args[0] :]
            except HttpParserError:
                self._refuse_invalid()
                break

    def _refuse_invalid(self) -> None:
        self.logger.warning(INVALID)
        self.send_400_response(INVALID)

    def _head_without_offer(self) -> bytes:
        """The head that was just read, to be read again without its offer to speak another protocol.

        Clients may offer HTTP/2 and go on as they began, with a body. The parser takes every offer for accepted, and
        what follows for no longer HTTP.
        """
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        begin, end = f"{self.scope['method']} ", f" HTTP/{self.scope['http_version']}\r\n"
        headers = [b"%b: %b\r\n" % header for header in self.scope["headers"] if header[0] != b"upgrade"]
        return b"".join([begin.encode("ascii"), self.url, end.encode("ascii"), *headers, b"\r\n"])

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
        if self._in_request:
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
        self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"Headers and trailers may have {MAX_HEAD} bytes.")

    def _refuse(self, status: HTTPStatus, said: str) -> None:
        is_answered = self._in_request and not self._in_head and self.cycle.response_started
        if not is_answered:
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
