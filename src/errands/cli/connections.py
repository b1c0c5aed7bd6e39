"""The connections of `errands serve`: uvicorn's, with a bound for everything that a client could drag out or pile up.

By itself uvicorn waits for ever for the rest of a request and for a client that does not read, takes a head of any
size, and reads on while requests wait. Here a head has a size, a request a pace, and no request is read while others of
the same connection wait. A client that stands still is disconnected, sooner when the process holds too much for its
clients, and connections leave files for the agent.
"""

from __future__ import annotations

import asyncio
from functools import cache
from http import HTTPStatus

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from starlette.types import Send
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from errands.server.http import WHOLE_RESPONSE, Header

#: Bytes that the address and the headers of a request may have.
MAX_HEAD = 64 * 1024
#: Bytes that are parsed at once: as many requests as these contain may wait behind the one that is answered.
_PIECE = 8 * 1024

#: What is said of a request that is none.
INVALID = "Invalid HTTP request received."


class HeadTooLargeError(Exception):
    """Ends the parsing of a request."""


class Budget:
    """The bytes that a process holds for its clients: of requests that are incomplete, of answers that are not read.

    Only what is larger than `SMALL` counts. When there is more than `most`, connections are closed until an eighth is
    free again, first those that have stood still for longest.
    """

    #: The bytes from which uvicorn makes an application wait for its client, too.
    SMALL = HIGH_WATER_LIMIT

    def __init__(self, most: int) -> None:
        self.most = most
        self.total = 0
        self._held: dict[Connection, tuple[int, float]] = {}

    def hold(self, connection: Connection, size: int, now: float) -> None:
        """Note that `connection` holds `size` bytes, and that its client has just sent or read some."""
        if size <= self.SMALL:
            return
        self.total += size - self._held.get(connection, (0, 0))[0]
        self._held[connection] = size, now
        if self.total > self.most:
            self._make_room(connection, now)

    def release(self, connection: Connection) -> None:
        if connection in self._held:
            self.total -= self._held.pop(connection)[0]

    def _make_room(self, newest: Connection, now: float) -> None:
        for connection, (size, _) in list(self._held.items()):
            unread = connection.unread
            if unread and unread < size:  # its client reads, however slowly
                self.total -= size - unread
                self._held[connection] = unread, now
        for connection in sorted(self._held, key=lambda each: self._held[each][1]):
            if self.total > self.most * 7 // 8 and connection is not newest:
                self.release(connection)
                connection.give_up()


class _Flow(FlowControl):
    """Reading and writing of a connection; `is_held` keeps uvicorn from reading on."""

    is_held = False

    def resume_reading(self) -> None:
        if not self.is_held:
            super().resume_reading()


def _respond_at_once(send: Send, status: int, headers: list[Header], body: bytes) -> bool:
    """Send the head and the body of a response with one write to the socket.

    Return False if it has to go through `send`, for example because a middleware has replaced that. uvicorn writes the
    two one after the other, which costs a twentieth of the rate of blocking sends.
    """
    cycle = getattr(send, "__self__", None)
    if (
        type(cycle) is not RequestResponseCycle
        or len(body) > HIGH_WATER_LIMIT
        or cycle.disconnected
        or cycle.response_started
        or cycle.flow.write_paused
        or cycle.access_log
        or _CLOSE in cycle.scope["headers"]  # older releases of uvicorn look at it only in `send`
    ):
        return False
    lines = [b"%b: %b\r\n" % header for header in (*cycle.default_headers, *headers)]
    if not cycle.keep_alive:
        lines.append(b"connection: close\r\n")
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.transport.write(b"".join([STATUS_LINE[status], *lines, b"\r\n", body]))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True


_CLOSE = (b"connection", b"close")
_EXTENSIONS = {WHOLE_RESPONSE: _respond_at_once}


class Connection(HttpToolsProtocol):
    """One connection of a client. Nothing here is done for a request that comes whole, in one piece."""

    #: Seconds that a client has for a request, apart from the time its size may take at so many bytes per second.
    patience = 30.0
    slowest = 16 * 1024
    #: Seconds in which a client must take something of what is sent. The system passes it on in pieces of a megabyte
    #: and more, so nothing seems to move for long when a line is slow.
    stall = 120.0
    #: That of the whole process; `AgentServer` sets its size.
    budget = Budget(256 * 1024 * 1024)

    flow: _Flow
    #: Between the first byte of a request and its last, and before the last of its headers.
    _in_request = False
    _in_head = False
    _is_head_too_large = False
    #: What is being answered, from the last of its headers on. Others wait in `pipeline`, and their bytes in `_behind`.
    _answering: RequestResponseCycle | None = None
    _behind = b""
    #: When the last answer was complete.
    _idle_since = 0.0
    #: A head, or the trailers of a body that came in chunks, have at most so many bytes yet.
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
        self.flow = _Flow(transport)
        most = most_connections()
        if most is None or len(self.connections) <= most or self._takes_a_place():
            self._wait_for_request()
        else:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections; come back in a moment.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_watching()
        self.budget.release(self)
        if self._answering is not None and self._answering is not self.cycle:  # uvicorn tells the last request only
            self._answering.disconnected = True
            self._answering.message_event.set()
        self.pipeline.clear()
        self._behind = b""
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if len(data) > _PIECE or self._behind:
            self._read_on(data)
            return
        self._piece = len(data)
        if self._in_request:
            self._beside_body += self._piece
        # As `_parse` does it, without its frame: what is done for each request is done in as few calls as it can be.
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as offer:
            self._parse(self._head_without_offer() + data[offer.args[0] :])
        except HttpParserError:
            self._refuse_invalid()
        if self.transport.is_closing():
            return
        if self._in_request and self._beside_body > MAX_HEAD + _PIECE:
            self._refuse_head()
        elif not self.pipeline and (self._in_request or self._answering is None):  # it is the client's turn
            self._received += self._piece
            self._wait_for_request()
            if self._received > Budget.SMALL and not self._is_answered:
                self.budget.hold(self, self._received, self.loop.time())
        elif self._receiving is not None:
            self._stop_waiting()
        if self.pipeline:
            self._read_on()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch(self.transport.get_write_buffer_size())
        self.budget.hold(self, self.unread, self.loop.time())

    def resume_writing(self) -> None:
        self._stop_watching()
        self.budget.release(self)
        super().resume_writing()

    @property
    def _is_answered(self) -> bool:
        """Whether the answer has begun to the request that still comes: then nothing of its rest is kept."""
        return self._answering is None or self._answering.response_started

    # Called by the budget

    @property
    def unread(self) -> int:
        """Bytes of an answer that the client is in no hurry to read."""
        return 0 if self._sending is None else self.transport.get_write_buffer_size()

    def give_up(self) -> None:
        if self.unread or self.pipeline:
            self.transport.abort()
        else:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many large requests at the same time; send it again.")

    # Called by the parser

    def on_message_begin(self) -> None:
        self._in_request = self._in_head = True
        self._beside_body = self._piece
        HttpToolsProtocol.on_message_begin(self)

    def on_headers_complete(self) -> None:
        if self._beside_body > MAX_HEAD:
            self._measure(len(self.url))
        self._in_head = False
        self._beside_body = self._piece
        HttpToolsProtocol.on_headers_complete(self)
        self.scope["extensions"] = _EXTENSIONS  # type: ignore[typeddict-item]
        self.headers = []  # for trailers, which must not pass for headers that a proxy has checked
        if not self.pipeline:
            self._answering = self.cycle

    def on_body(self, body: bytes) -> None:
        self._beside_body = self._piece
        HttpToolsProtocol.on_body(self, body)

    def _should_upgrade(self) -> bool:
        if self.scope["method"] == "CONNECT":  # has no offer to leave out: read again, it would stop the parser again
            raise HttpParserError("only proxies make tunnels")
        # uvicorn passes over what the parser says of such a request, which is going to be read again.
        return True

    def on_message_complete(self) -> None:
        if self._beside_body > MAX_HEAD:
            self._measure()
        self._in_request = False
        HttpToolsProtocol.on_message_complete(self)

    def send_400_response(self, msg: str) -> None:
        if self._is_head_too_large:
            self._refuse_head()
        else:
            super().send_400_response(msg)

    def on_response_complete(self) -> None:
        if self.pipeline:
            self._answering = self.pipeline[-1][0]
            HttpToolsProtocol.on_response_complete(self)
        else:
            self._answering = None
            if self._in_request and not self.unread:
                self.budget.release(self)
            self._wait_for_next_request()
        if self.flow.is_held:
            self._read_on()
        if self._in_request and not self.transport.is_closing():
            self._wait_for_request()

    def _wait_for_next_request(self) -> None:
        """Do what uvicorn does, but with one timer for all the requests of a connection."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self._close_if_idle)

    def _close_if_idle(self) -> None:
        self.timeout_keep_alive_task = None
        if not self._is_idle:
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self._close_if_idle)
        elif not self.transport.is_closing():
            self.transport.close()

    @property
    def _is_idle(self) -> bool:
        """Whether requests were answered on this connection, and none is underway."""
        return self._idle_since > 0 and self._answering is None and not self._in_request

    # Places

    def _takes_a_place(self) -> bool:
        """Close the connection that has waited longest for a next request; return False if none does."""
        idle = {
            each._idle_since: each.transport
            for each in self.connections
            if isinstance(each, Connection)
            and each._is_idle
            # One that closes has given its place away, and one that still sends would keep it.
            and not (each.transport.is_closing() or each.transport.get_write_buffer_size())
        }
        if idle:
            idle[min(idle)].close()
        return bool(idle)

    # Requests

    def _read_on(self, data: bytes = b"") -> None:
        """Parse what has come, up to where requests wait for others to be answered. Read no more while any wait."""
        behind = self._behind + data
        self._behind = b""
        start = 0
        while start < len(behind) and not self.pipeline and not self.transport.is_closing():
            self.data_received(behind[start : start + _PIECE])
            start += _PIECE
        self._behind = behind[start:]
        if self.pipeline or self._behind:
            self.flow.is_held = True
            self.flow.pause_reading()
            self.budget.hold(self, len(self._behind), self.loop.time())
        elif self.flow.is_held:
            self.flow.is_held = False
            self.flow.resume_reading()
            self.budget.release(self)

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
            self.budget.release(self)

    def _measure(self, size: int = 0) -> None:
        """Raise `HeadTooLargeError` if the headers or trailers are too large together with `size` other bytes."""
        if size + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD:
            self._is_head_too_large = True
            raise HeadTooLargeError

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
            when = "retry-after: 1\r\n" if status is HTTPStatus.SERVICE_UNAVAILABLE else ""
            self.transport.write(
                f"HTTP/1.1 {status.value} {status.phrase}\r\n{when}content-type: text/plain; charset=utf-8\r\n"
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
