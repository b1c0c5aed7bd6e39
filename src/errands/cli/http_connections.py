"""HTTP connections of `errands serve`: uvicorn's, with a bound for everything that a client could drag out or pile up.

uvicorn itself waits forever for the rest of a request and for a client that does not read, takes a head of any size,
and reads on while requests wait on the same connection. Here a head has a maximum size, a request a minimum speed, and
nothing is read while requests wait. Clients that stand still are disconnected, earlier if the process holds too many
bytes for its clients, and connections leave file descriptors for the agent.

`docs/architecture.md` says why it is uvicorn. pyproject.toml has the range of its versions for which this is tested,
because this uses the protocol's `pipeline`, `flow`, `cycle` and parser callbacks.
"""

from __future__ import annotations

import asyncio
import ssl
from functools import cache
from http import HTTPStatus

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from starlette.types import Receive, Send
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from errands.server.asgi import WHOLE_BODY, WHOLE_RESPONSE, Header
from errands.server.large_work import Budget

#: The maximum bytes of a head: the address and the headers of a request. Trailers have the same bound.
MAX_HEAD = 64 * 1024
#: Bytes that are parsed at once. As many requests as they contain may wait behind the one that is answered.
_PIECE = 8 * 1024
#: Seconds between a response and the next request, if that has waited behind it. A connection whose requests always
#: wait would otherwise keep the event loop busy, and the threads of the store from getting a turn.
_PAUSE = 0.001

_INVALID = "Invalid HTTP request received."
_CLOSE = (b"connection", b"close")


class HeadTooLargeError(Exception):
    """Stops the parser."""


class _Flow(FlowControl):
    """Flow control in which `is_held` keeps uvicorn from reading on."""

    is_held = False

    def resume_reading(self) -> None:
        if not self.is_held:
            super().resume_reading()


def _send_whole_response(send: Send, status: int, headers: list[Header], body: bytes) -> bool:
    """Send the head and the body of a response with one write to the socket.

    Return False if the response has to go through `send`, for example because a middleware has replaced that. uvicorn
    writes the two one after the other, which costs 5 % of the rate of blocking sends.
    """
    cycle = getattr(send, "__self__", None)
    if (
        type(cycle) is not RequestResponseCycle
        or len(body) > HIGH_WATER_LIMIT
        or cycle.disconnected
        or cycle.response_started
        or cycle.flow.write_paused
        or cycle.access_log
        or _CLOSE in cycle.scope["headers"]  # older releases of uvicorn check it only in `send`
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


def _take_whole_body(receive: Receive) -> bytes | None:
    """Return the body of a request that has arrived whole, without the two coroutines of `receive`; else None."""
    cycle = getattr(receive, "__self__", None)
    if (
        type(cycle) is not RequestResponseCycle
        or cycle.more_body
        or cycle.disconnected
        or cycle.response_complete
        or cycle.waiting_for_100_continue
    ):
        return None
    body, cycle.body = bytes(cycle.body), bytearray()
    cycle.message_event.clear()
    cycle.flow.resume_reading()
    return body


_EXTENSIONS: dict[str, object] = {WHOLE_BODY: _take_whole_body, WHOLE_RESPONSE: _send_whole_response}


def _client_certificate(connection: ssl.SSLObject) -> dict[str, object]:
    """Return the certificate of the client, which was verified, as the `tls` extension of ASGI has it."""
    certificate = connection.getpeercert(binary_form=True)
    return {"client_cert_chain": [ssl.DER_cert_to_PEM_cert(certificate)] if certificate else []}


class HttpConnection(HttpToolsProtocol):
    """One connection of a client. A request that arrives whole and in one piece costs nothing extra."""

    #: Seconds for a request, plus the time that its size takes at `min_rate` bytes per second.
    request_timeout = 30.0
    min_rate = 16 * 1024
    #: Seconds in which a client must read some of what is sent. The system passes data on in pieces of a megabyte and
    #: more, so on a slow line nothing seems to move for long.
    write_timeout = 120.0
    #: The budget of the process, which `AgentServer` replaces by that of its agent.
    budget = Budget(256 * 1024 * 1024)

    flow: _Flow
    _extensions = _EXTENSIONS
    #: Whether the parser is between the first byte of a request and its last, and before the end of its head.
    _in_request = False
    _in_head = False
    _is_head_too_large = False
    #: The request that is being answered, from the end of its head on. Others wait in uvicorn's `pipeline`, and bytes
    #: behind them in `_behind`.
    _answering: RequestResponseCycle | None = None
    _behind = b""
    #: When the last response was complete; 0 before the first.
    _idle_since = 0.0
    #: Bytes since the request began or since its body was last fed: an upper bound for a head or for trailers.
    _beside_body = 0
    _piece = 0
    #: The timer for the rest of a request, and the bytes that arrived since it was started.
    _request_timer: asyncio.TimerHandle | None = None
    _received = 0
    #: The timer for a client that has to read, while the transport's buffer is full.
    _write_timer: asyncio.TimerHandle | None = None

    # Called by the event loop

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport)
        if (secured := transport.get_extra_info("ssl_object")) is not None:
            self._extensions = {**_EXTENSIONS, "tls": _client_certificate(secured)}
        most = max_connections()
        if most is None or len(self.connections) <= most or self._close_idle_connection():
            self._start_request_timer()
        else:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections; try again in a moment.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_request_timer()
        self._stop_write_timer()
        self.budget.release(self)
        if self._answering is not None and self._answering is not self.cycle:  # uvicorn notifies the last request only
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
        try:
            self.parser.feed_data(data)
        except (HttpParserUpgrade, HttpParserError) as error:
            self._parse_again(data, error)
        if self.transport.is_closing():
            return
        if self._in_request and self._beside_body > MAX_HEAD + _PIECE:
            self._refuse_head()
        elif not self.pipeline and (self._in_request or self._answering is None):  # the client has to send more
            self._received += self._piece
            self._start_request_timer()
            # Once the response has begun, uvicorn discards the rest of the request.
            discards = self._answering is None or self._answering.response_started
            if self._received > Budget.SMALL and not discards:
                self.budget.hold(self, self._received, self.loop.time())
        elif self._request_timer is not None:
            self._stop_request_timer()
        if self.pipeline:
            self._read_on()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_write_timer(self.transport.get_write_buffer_size())
        self.budget.hold(self, self.unread, self.loop.time())

    def resume_writing(self) -> None:
        self._stop_write_timer()
        self.budget.release(self)
        super().resume_writing()

    # Called by the budget

    @property
    def unread(self) -> int:
        """The bytes that the client has to read before the application may go on; 0 if it may."""
        return 0 if self._write_timer is None else self.transport.get_write_buffer_size()

    def give_up(self) -> None:
        """Disconnect the client to free what is held for it."""
        if self.unread or self.pipeline:
            self.transport.abort()
        else:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many large requests at the same time; send it again.")

    # Called by the parser. `super()` would look for each method again for every request.

    def on_message_begin(self) -> None:
        self._in_request = self._in_head = True
        self._beside_body = self._piece
        HttpToolsProtocol.on_message_begin(self)

    def on_headers_complete(self) -> None:
        if self._beside_body > MAX_HEAD:
            self._check_head_size(len(self.url))
        self._in_head = False
        self._beside_body = self._piece
        HttpToolsProtocol.on_headers_complete(self)
        self.scope["extensions"] = self._extensions  # type: ignore[typeddict-item]
        self.headers = []  # for trailers, which must not pass for headers that a proxy has checked
        if not self.pipeline:
            self._answering = self.cycle

    def on_body(self, body: bytes) -> None:
        self._beside_body = self._piece
        HttpToolsProtocol.on_body(self, body)

    def on_message_complete(self) -> None:
        if self._beside_body > MAX_HEAD:
            self._check_head_size()
        self._in_request = False
        HttpToolsProtocol.on_message_complete(self)

    def _should_upgrade(self) -> bool:
        if self.scope["method"] == "CONNECT":  # has no offer to leave out, so parsing it again would not help
            raise HttpParserError("only proxies accept CONNECT")
        # True makes uvicorn ignore the parser's callbacks for this head, which `_parse_again` parses.
        return True

    # Called by uvicorn

    def send_400_response(self, msg: str) -> None:
        if self._is_head_too_large:
            self._refuse_head()
        else:
            super().send_400_response(msg)

    def on_response_complete(self) -> None:
        if self.pipeline:
            self._answering = self.pipeline[-1][0]
            self.loop.call_later(_PAUSE, self._answer_next)
            return
        self._answering = None
        if self._in_request and not self.unread:
            self.budget.release(self)
        self._wait_for_next_request()
        if self.flow.is_held or self._in_request:
            self._read_after_response()

    def _answer_next(self) -> None:
        super().on_response_complete()
        self._read_after_response()

    def _read_after_response(self) -> None:
        if self.flow.is_held:
            self._read_on()
        if self._in_request and not self.transport.is_closing():
            self._start_request_timer()

    # Idle connections

    def _wait_for_next_request(self) -> None:
        """Do what uvicorn does after a response, but with one timer for all requests of a connection."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self._close_if_idle)

    def _close_if_idle(self) -> None:
        self.timeout_keep_alive_task = None
        if self.idle_since is None:
            return
        left = self.idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self._close_if_idle)
        elif not self.transport.is_closing():
            self.transport.close()

    @property
    def idle_since(self) -> float | None:
        """The time of the last complete response, None before the first and while there is a request."""
        return self._idle_since if self._idle_since > 0 and self._answering is None and not self._in_request else None

    def _close_idle_connection(self) -> bool:
        """Close the connection that has been idle for longest; return False if none is idle."""
        idle = {
            each.idle_since: each.transport
            for each in self.connections
            if isinstance(each, HttpConnection)
            and each.idle_since is not None
            # One that is closing has already made room, and one that still sends would not.
            and not (each.transport.is_closing() or each.transport.get_write_buffer_size())
        }
        if idle:
            idle[min(idle)].close()
        return bool(idle)

    # Requests

    def _read_on(self, data: bytes = b"") -> None:
        """Parse piece by piece until a request has to wait for another. Read no more while any waits."""
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

    def _parse_again(self, data: bytes, error: Exception) -> None:
        """Go on after a request that offers to upgrade, or refuse data that cannot be parsed."""
        while isinstance(error, HttpParserUpgrade):
            data = self._head_without_offer() + data[error.args[0] :]
            try:
                self.parser.feed_data(data)
                return
            except (HttpParserUpgrade, HttpParserError) as another:
                error = another
        self.logger.warning(_INVALID)
        self.send_400_response(_INVALID)

    def _head_without_offer(self) -> bytes:
        """Return the head that was just parsed without its offer to upgrade, for a new parser.

        Clients may offer HTTP/2 and go on with HTTP/1.1 and a body. The parser takes every offer as accepted and does
        not parse what follows.
        """
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        begin, end = f"{self.scope['method']} ", f" HTTP/{self.scope['http_version']}\r\n"
        headers = [b"%b: %b\r\n" % header for header in self.scope["headers"] if header[0] != b"upgrade"]
        return b"".join([begin.encode("ascii"), self.url, end.encode("ascii"), *headers, b"\r\n"])

    def _check_head_size(self, size: int = 0) -> None:
        """Raise `HeadTooLargeError` if the headers or trailers are too large together with `size` other bytes."""
        if size + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD:
            self._is_head_too_large = True
            raise HeadTooLargeError

    def _refuse_head(self) -> None:
        self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"Headers and trailers may have {MAX_HEAD} bytes.")

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        """Send an error, unless a response has begun, and close the connection."""
        has_response = self._in_request and not self._in_head and self.cycle.response_started
        if not has_response:
            retry = "retry-after: 1\r\n" if status is HTTPStatus.SERVICE_UNAVAILABLE else ""
            self.transport.write(
                f"HTTP/1.1 {status.value} {status.phrase}\r\n{retry}content-type: text/plain; charset=utf-8\r\n"
                f"content-length: {len(text)}\r\nconnection: close\r\n\r\n{text}".encode("ascii")
            )
        self.transport.close()

    # Timers

    def _start_request_timer(self) -> None:
        if self._request_timer is None:
            self._received = 0
            self._request_timer = self.loop.call_later(self.request_timeout, self._check_request, self.loop.time())

    def _check_request(self, since: float) -> None:
        left = since + self.request_timeout + self._received / self.min_rate - self.loop.time()
        if left > 0:
            self._request_timer = self.loop.call_later(left, self._check_request, since)
            return
        self._request_timer = None
        if self._in_request:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "The request did not arrive in time.")
        else:
            self.transport.close()

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None
            self.budget.release(self)

    def _start_write_timer(self, left: int) -> None:
        self._write_timer = self.loop.call_later(self.write_timeout, self._check_reader, left)

    def _check_reader(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left >= before:
            self.transport.abort()
        else:
            self._start_write_timer(left)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


@cache
def max_connections() -> int | None:
    """Return three quarters of the files that this process may open; the agent and its store need some, too."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return None
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if files == resource.RLIM_INFINITY else max(files * 3 // 4, 1)
