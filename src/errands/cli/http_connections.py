"""HTTP/1.1 for `errands serve`: connections with a bound for everything that a client could drag out or pile up.

A head has a maximum size, a request a minimum speed, and nothing is read while requests wait on the same connection.
Clients that stand still are disconnected, earlier if the process holds too many bytes for its clients, and connections
leave file descriptors for the agent.

httptools parses; `HttpConnection` is what uvicorn's server makes for each connection, and `RequestCycle` is one request
with the response to it. `docs/architecture.md` says why these are not uvicorn's own.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections import deque
from collections.abc import Iterable
from functools import cache, lru_cache
from http import HTTPStatus
from types import MethodType
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import uvicorn
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, parse_url
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.server import ServerState

from errands.server.asgi import WHOLE_EXCHANGE, Header
from errands.server.large_work import Budget, Pace

logger = logging.getLogger(__name__)

#: The maximum bytes of a head: the address and the headers of a request. Trailers have the same bound.
MAX_HEAD = 64 * 1024
#: Bytes that are parsed at once. As many requests as they contain may wait behind the one that is answered.
_PIECE = 8 * 1024
#: Bytes that a request or a response may hold before the other side is made to wait.
_MAX_WAITING = 64 * 1024
#: Seconds between a response and the next request, if that has waited behind it. A connection whose requests always
#: wait would otherwise keep the event loop busy, and the threads of the store from getting a turn.
_PAUSE = 0.001
#: Seconds between two reads of what clients send after they were answered, of all connections together, and the most
#: for one connection. One read is 256 KiB at most.
_DISCARD_PAUSE, _LONGEST_DISCARD_PAUSE = 0.004, 1.0

_ASGI = {"version": "3.0", "spec_version": "2.3"}
_CLOSE = b"connection: close\r\n"
#: Headers of a response that the connection writes.
_OF_THE_CONNECTION = frozenset({b"connection", b"transfer-encoding"})
#: Characters that would end a header, or belong to none.
_INVALID_NAME = re.compile(rb'[\x00-\x1f\x7f()<>@,;:\[\]={} \t\\"]')
_INVALID_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
#: The number in a head's Content-Length, if it is written as clients write it for a body that fits into one piece.
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]{1,8})(?=\r\n)", re.IGNORECASE)
#: The size of a head whose form is kept, with its headers: a connection keeps it while it waits for the next request.
_MAX_FORM, _MAX_FORM_HEADERS = 4 * 1024, 64
#: How often a connection looks for the form of its heads. Clients that vary their heads would pay for it each time.
_MOST_FORMS = 4


@cache
def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode("ascii")


class HeadTooLargeError(Exception):
    """Stops the parser."""


class RequestCycle:
    """One request on a connection and the response to it, as the ASGI functions `receive` and `send`."""

    __slots__ = (
        *("_connection", "_has_body", "_has_news", "_is_chunked", "_left", "_news", "_pieces", "disconnected"),
        *("expects_continue", "is_whole", "keep_alive", "response_complete", "response_started", "scope", "task"),
        "unreceived",
    )

    def __init__(self, connection: HttpConnection, scope: Scope, *, keep_alive: bool, expects_continue: bool) -> None:
        self._connection = connection
        self.scope = scope
        self.keep_alive = keep_alive
        #: Whether the client waits for `100 Continue` before it sends the body.
        self.expects_continue = expects_continue
        self.task: asyncio.Task[None] | None = None
        #: What has arrived of the body and was not received yet, its bytes, and whether it is the rest of the body.
        self._pieces: list[bytes] = []
        self.unreceived = 0
        self.is_whole = False
        #: Whether something has happened since the last `receive`.
        self._has_news = False
        self._news: asyncio.Event | None = None
        self.disconnected = False
        self.response_started = self.response_complete = False
        #: Whether the response may have a body, and whether that is sent in chunks.
        self._has_body = self._is_chunked = False
        #: Bytes of the response that its head has announced and that are not sent yet; None if it did not say.
        self._left: int | None = None

    async def run(self, app: ASGIApp) -> None:
        """Call the application; respond with an error if it does not respond."""
        try:
            await app(self.scope, self.receive, self.send)
            if not (self.response_complete or self.disconnected):
                self._fail("returned without a whole response")
        except asyncio.CancelledError:
            if not self.response_complete:
                self._connection.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "The server is stopping; send it again.", self)
            raise
        except (Exception, SystemExit):
            self._fail("failed", exc_info=True)
        finally:
            self._connection.tasks.discard(self.task)

    def _fail(self, problem: str, *, exc_info: bool = False) -> None:
        method, path = self.scope["method"], quote(self.scope["path"])
        logger.error("%s %s: the application %s", method, path, problem, exc_info=exc_info)
        if not self.response_started:
            self._connection.refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal Server Error", self)
        elif not self.response_complete:  # else the connection belongs to the next request
            self._connection.close()

    @property
    def is_usual(self) -> bool:
        """True when nothing about the connection follows from the head."""
        return self.keep_alive and not self.expects_continue

    def feed(self, piece: bytes) -> None:
        """Take a piece of the body. Once the response is complete, the rest of the request is discarded."""
        if not self.response_complete:
            self._pieces.append(piece)
            self.unreceived += len(piece)
            self.wake()

    def feed_whole(self, body: bytes) -> None:
        """Take the whole body of a request that nothing has received yet."""
        self._pieces.append(body)
        self.unreceived = len(body)
        self.is_whole = self._has_news = True

    def feed_end(self) -> None:
        """Note that the body is complete."""
        self.is_whole = True
        self.wake()

    def wake(self) -> None:
        """Have `receive` return: there is more of the body, or the exchange is over."""
        self._has_news = True
        if self._news is not None:
            self._news.set()

    def take_body(self) -> bytes:
        """Return what was not received yet."""
        pieces, self._pieces, self.unreceived = self._pieces, [], 0
        self._has_news = False
        self._connection.resume_reading()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def receive(self) -> Message:
        connection = self._connection
        if self.expects_continue and not connection.transport.is_closing():
            self.expects_continue = False
            connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not (self._has_news or self.disconnected or self.response_complete):
            connection.resume_reading()
            if self._news is None:
                self._news = asyncio.Event()
            self._news.clear()
            await self._news.wait()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": self.take_body(), "more_body": not self.is_whole}

    async def send(self, message: Message) -> None:
        connection = self._connection
        if connection.is_write_paused and not self.disconnected:
            await connection.drain()
        if self.disconnected:
            return
        expected = "http.response.body" if self.response_started else "http.response.start"
        if message["type"] != expected or self.response_complete:
            raise RuntimeError(f"the application sent {message['type']} out of order")
        if self.response_started:
            self._send_body(message.get("body", b""), message.get("more_body", False))
        else:
            self._send_head(message["status"], message.get("headers", ()))

    def _send_head(self, status: int, headers: Iterable[Iterable[bytes]]) -> None:
        lines, left = [], None
        for name, value in headers:
            if _INVALID_NAME.search(name) or _INVALID_VALUE.search(value):
                raise RuntimeError(f"the header {name!r} of the response has characters that are not allowed")
            kind = name.lower()
            if kind == b"connection" and b"close" in value.lower():
                self.keep_alive = False
            if kind == b"content-length":
                left = int(value)
            if kind not in _OF_THE_CONNECTION:
                lines.append(b"%b: %b\r\n" % (name, value))
        self._left = left
        self._has_body = self.scope["method"] != "HEAD" and status not in (204, 304)
        self._is_chunked = self._has_body and left is None and self.scope["http_version"] == "1.1"
        if self._is_chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        self._connection.transport.write(b"".join(self._begin(status, lines)))

    def _begin(self, status: int, lines: list[bytes]) -> list[bytes]:
        """Return the head of the response, from here on its only one."""
        self.response_started = True
        self.expects_continue = False
        if self._connection.logs_access:
            client, scope = self.scope["client"] or ("?", 0), self.scope
            logger.info('%s:%d "%s %s" %d', *client, scope["method"], quote(scope["path"]), status)
        end = b"\r\n" if self.keep_alive else _CLOSE + b"\r\n"
        return [_status_line(status), self._connection.default_lines(), *lines, end]

    def _send_body(self, body: bytes, more: bool) -> None:
        transport = self._connection.transport
        if self._is_chunked:
            end = b"" if more else b"0\r\n\r\n"
            transport.write(b"%x\r\n%b\r\n%b" % (len(body), body, end) if body else end)
        elif self._has_body:
            if self._left is not None:
                self._left -= len(body)
                if self._left < 0 or (self._left and not more):
                    raise RuntimeError("the response has another length than its Content-Length")
            transport.write(body)
        if not more:
            self._complete()

    # `WholeExchange`

    def take_whole(self) -> bytes | None:
        return self.take_body() if self.is_whole and not self.disconnected else None

    def send_whole(self, status: int, content_type: bytes, body: bytes) -> bool:
        connection = self._connection
        if self.disconnected or self.response_started or connection.is_write_paused or len(body) > _MAX_WAITING:
            return False
        head = self._begin(status, [b"content-type: %b\r\ncontent-length: %d\r\n" % (content_type, len(body))])
        # One write to the socket for both.
        connection.transport.write(b"".join([*head, body] if self.scope["method"] != "HEAD" else head))
        self._complete()
        return True

    def _complete(self) -> None:
        self.response_complete = True
        self._pieces, self.unreceived = [], 0
        self.wake()
        if not self.keep_alive:
            self._connection.close()
        self._connection.on_response_complete()


def _whole_exchange(receive: Receive, send: Send) -> RequestCycle | None:
    """Return the request whose `receive` and `send` these are; None if a middleware has replaced one.

    The types must be the very same: some wrappers pass for what they wrap.
    """
    if type(receive) is not MethodType or type(send) is not MethodType:
        return None
    cycle = send.__self__
    return cycle if type(cycle) is RequestCycle and receive.__self__ is cycle else None


_EXTENSIONS: dict[str, object] = {WHOLE_EXCHANGE: _whole_exchange}


def _client_certificate(connection: ssl.SSLObject) -> dict[str, object]:
    """Return the certificate of the client, which was verified, as the `tls` extension of ASGI has it."""
    certificate = connection.getpeercert(binary_form=True)
    return {"client_cert_chain": [ssl.DER_cert_to_PEM_cert(certificate)] if certificate else []}


class HeadForm(NamedTuple):
    """A head that was parsed. One of the same bytes, apart from its Content-Length, is not parsed again.

    Clients send the same head with every request, and parsing it takes a tenth of the time of a send.
    """

    #: The bytes on both sides of the number of its Content-Length, up to the body.
    before: bytes
    after: bytes
    scope: Scope
    #: Where in the headers its Content-Length is.
    position: int

    @classmethod
    def of(cls, request: bytes, scope: Scope) -> HeadForm | None:
        """Return the form of the head of a whole request; None if it is large or has no usual Content-Length."""
        end = request.find(b"\r\n\r\n", 0, _MAX_FORM) + 4
        found = _LENGTH.search(request, 0, end)
        if found is None or len(request) - end != int(found[1]) or len(scope["headers"]) > _MAX_FORM_HEADERS:
            return None
        # Copies: applications write into scopes.
        headers = scope["headers"].copy()
        position = [name for name, _ in headers].index(b"content-length")
        return cls(request[: found.start(1)], request[found.end(1) : end], {**scope, "headers": headers}, position)

    def scope_and_body(self, request: bytes) -> tuple[Scope, bytes] | None:
        """Return what parsing a whole request would lead to; None if its head has another form."""
        if not request.startswith(self.before):
            return None
        start = len(self.before)
        end = request.find(self.after, start, start + len(self.after) + 8)
        length, body = request[start:end], request[end + len(self.after) :]
        if end < 0 or not length.isdigit() or len(body) != int(length):
            return None
        headers = self.scope["headers"].copy()
        headers[self.position] = b"content-length", length
        return {**self.scope, "headers": headers}, body


class HttpConnection(asyncio.Protocol):
    """One connection of a client. A request that arrives whole and in one piece costs nothing extra."""

    #: Seconds for a request, plus the time that its size takes at `min_rate` bytes per second.
    request_timeout = 30.0
    min_rate = 16 * 1024
    #: Seconds in which a client must read some of what is sent. The system passes data on in pieces of a megabyte and
    #: more, so on a slow line nothing seems to move for long.
    write_timeout = 120.0
    #: The budget of the process, which `AgentServer` replaces by that of its agent.
    budget = Budget(256 * 1024 * 1024)
    #: When the connections of the process read on that discard the rest of a body.
    discards = Pace(_DISCARD_PAUSE, _LONGEST_DISCARD_PAUSE)

    transport: asyncio.Transport

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._app = config.loaded_app
        self._app_state = app_state
        self._root_path = config.root_path
        self._keep_alive = config.timeout_keep_alive
        self.logs_access = config.access_log
        self._server_state = server_state
        #: The requests of all connections that are being answered.
        self.tasks = server_state.tasks
        self._loop = _loop or asyncio.get_running_loop()

        self._parser = _parser_for(self)
        #: Of the request whose head is being parsed, then of its trailers.
        self._url = b""
        self._headers: list[Header] = []
        self._expects_continue = False
        #: The method and version of a head that offers to upgrade.
        self._offering = "", ""
        #: Whether the parser is between the first byte of a request and its last, and before `_cycle` is that request.
        self._in_request = self._in_head = False
        self._is_head_too_large = False
        #: Bytes since the request began or since its body was last fed: an upper bound for a head or for trailers.
        self._beside_body = 0
        self._piece = 0

        #: The form of the last heads, and how many more are looked at.
        self._form: HeadForm | None = None
        self._forms_left = _MOST_FORMS
        #: The request whose head was parsed last; one to call the application for when the data is parsed; the one that
        #: is being answered, from the end of its head on; those that wait behind it; and bytes behind these that are
        #: not parsed yet.
        self._cycle: RequestCycle | None = None
        self._begun: RequestCycle | None = None
        self._answering: RequestCycle | None = None
        self._waiting: deque[RequestCycle] = deque()
        self._behind = b""
        #: Whether reading must not go on because requests wait; and whether it is paused, for that or another reason.
        self._is_held = self._is_read_paused = False

        #: Set while the transport takes more to write; None until it first did not.
        self._writable: asyncio.Event | None = None
        self.is_write_paused = False
        #: When the last response was complete, 0 before the first; and the timer that closes an idle connection.
        self._idle_since = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        #: The timer for the rest of a request, and the bytes that arrived since it was started.
        self._request_timer: asyncio.TimerHandle | None = None
        self._received = 0
        #: The timer that reads on while the rest of a body is discarded.
        self._discard_timer: asyncio.TimerHandle | None = None
        #: The timer for a client that has to read, while the transport's buffer is full or the connection is closing.
        self._write_timer: asyncio.TimerHandle | None = None

    # Called by the event loop

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        connections = self._server_state.connections
        connections.add(self)  # type: ignore[arg-type]  # uvicorn names its own protocols there
        server, client = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        secured = transport.get_extra_info("ssl_object")
        #: What the scopes of all requests have in common.
        self._scope: Scope = {
            "type": "http",
            "asgi": _ASGI,
            "server": server[:2] if isinstance(server, tuple) else (server, None),
            "client": client[:2] if isinstance(client, tuple) else None,
            "scheme": "http" if secured is None else "https",
            "root_path": self._root_path,
            "extensions": _EXTENSIONS if secured is None else {**_EXTENSIONS, "tls": _client_certificate(secured)},
        }
        most = max_connections()
        if most is None or len(connections) <= most or self._close_idle_connection():
            self._start_request_timer()
        else:
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections; try again in a moment.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._server_state.connections.discard(self)
        self._stop_write_timer()
        self._stop_request_timer()
        for timer in (self._idle_timer, self._discard_timer):
            if timer is not None:
                timer.cancel()
        self.budget.release(self)
        for cycle in (self._answering, self._cycle):
            if cycle is not None:
                cycle.disconnected = not cycle.response_complete
                cycle.wake()
        self._answering = self._cycle = None
        self._waiting.clear()
        self._behind = b""
        self._set_writable()
        del self._parser  # it refers to this object

    def data_received(self, data: bytes) -> None:
        if len(data) > _PIECE or self._behind:
            self._read_on(data)
            self._pace_discards()
            return
        is_between = self._answering is None and not self._in_request
        if is_between and self._form is not None:
            known = self._form.scope_and_body(data)
            if known is not None:
                self._answer_known(*known)
                return
        self._parse(data)
        if (begun := self._begun) is not None:
            self._begun = None
            if is_between and self._forms_left and begun.is_whole and begun.is_usual:
                self._forms_left -= 1
                self._form = HeadForm.of(data, begun.scope)
            self._answer(begun)

    def _answer_known(self, scope: Scope, body: bytes) -> None:
        """Answer a whole request whose head has the form of an earlier one."""
        if self._request_timer is not None:
            self._stop_request_timer()
        scope["state"] = self._app_state.copy()
        cycle = RequestCycle(self, scope, keep_alive=True, expects_continue=False)
        cycle.feed_whole(body)
        self._answering = self._cycle = cycle
        self._answer(cycle)

    def _parse(self, data: bytes) -> None:
        self._piece = len(data)
        if self._in_request:
            self._beside_body += self._piece
        try:
            self._parser.feed_data(data)
        except (HttpParserUpgrade, HttpParserError) as error:
            self._parse_again(data, error)
        if self.transport.is_closing():
            return
        if self._in_request and self._beside_body > MAX_HEAD + _PIECE:
            self._refuse_head()
        elif not self._waiting and (self._in_request or self._answering is None):  # the client has to send more
            self._received += self._piece
            self._start_request_timer()
            # Once the response has begun, the rest of the request is discarded.
            discards = self._answering is None or self._answering.response_started
            if self._received > Budget.SMALL and not discards:
                self._hold(self._received)
        elif self._request_timer is not None:
            self._stop_request_timer()
        if self._waiting:
            self._read_on()

    def pause_writing(self) -> None:
        self.is_write_paused = True
        self._start_write_timer(self.transport.get_write_buffer_size())
        self._hold()

    def resume_writing(self) -> None:
        self._stop_write_timer()
        self.budget.release(self)
        self._set_writable()
        if self.transport.is_closing():
            self.close()

    def eof_received(self) -> None:
        self.close()

    def _set_writable(self) -> None:
        self.is_write_paused = False
        if self._writable is not None:
            self._writable.set()

    # Called by the server

    def shutdown(self) -> None:
        """Close the connection, once what is being answered has been answered."""
        if self._answering is None:
            self.close()
        else:
            last = self._waiting[-1] if self._waiting else self._answering
            last.keep_alive = False

    # Memory

    @property
    def unread(self) -> int:
        """The bytes that the client has to read before the application may go on; 0 if it may."""
        return 0 if self._write_timer is None else self.transport.get_write_buffer_size()

    def give_up(self) -> None:
        """Disconnect the client to free what is held for it."""
        if self.unread or self._waiting:
            self.transport.abort()
        else:
            self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "Too many large requests at the same time; send it again.")

    def _hold(self, size: int = 0) -> None:
        """Count `size` bytes of requests and what the client has to read."""
        self.budget.hold(self, size + self.unread, self._loop.time())

    def _release(self) -> None:
        """Count only what the client has to read."""
        self.budget.release(self)
        self._hold()

    # Called by the parser

    def on_message_begin(self) -> None:
        self._in_request = self._in_head = True
        self._beside_body = self._piece
        self._url, self._headers, self._expects_continue = b"", [], False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._headers.append((name, value))
        if name == b"expect":
            self._expects_continue = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        parser, headers = self._parser, self._headers
        if self._beside_body > MAX_HEAD:
            self._check_head_size(len(self._url))
        self._beside_body = self._piece
        version, method = parser.get_http_version(), parser.get_method().decode("ascii")
        if parser.should_upgrade():
            if method == "CONNECT":  # has no offer to leave out, so parsing it again would not help
                raise HttpParserError("only proxies accept CONNECT")
            self._offering = method, version
            return  # `_parse_again` parses this head without the offer
        path, query = self._url, b""
        if path != b"/":
            parsed = parse_url(path)
            path, query = parsed.path or b"/", parsed.query or b""
        text = path.decode("ascii")
        scope: Scope = {
            **self._scope,
            "http_version": version,
            "method": method,
            "path": self._root_path + (unquote(text) if "%" in text else text),
            "raw_path": self._root_path.encode("ascii") + path,
            "query_string": query,
            "headers": headers,
            "state": self._app_state.copy(),
        }
        # Trailers must not pass for headers that a proxy has checked.
        self._headers = []
        # With other versions, the end of a response is that of the connection, and clients do not know 100 Continue.
        keep_alive = version == "1.1" and parser.should_keep_alive()
        expects_continue = self._expects_continue and version == "1.1"
        self._cycle = RequestCycle(self, scope, keep_alive=keep_alive, expects_continue=expects_continue)
        self._in_head = False
        if self._answering is None:
            # Not before the rest of the data is parsed: most bodies have come with their heads.
            self._answering = self._begun = self._cycle
        else:
            self._waiting.append(self._cycle)

    def on_body(self, body: bytes) -> None:
        self._beside_body = self._piece
        cycle = self._cycle
        if cycle is not None:
            cycle.feed(body)
            if cycle.unreceived > _MAX_WAITING:
                self.pause_reading()

    def on_message_complete(self) -> None:
        if self._beside_body > MAX_HEAD:
            self._check_head_size()
        self._in_request = False
        # A head that offers to upgrade ends here, too, before `_parse_again` has parsed it.
        if self._cycle is not None and not self._parser.should_upgrade():
            self._cycle.feed_end()

    def _answer(self, cycle: RequestCycle) -> None:
        cycle.task = self._loop.create_task(cycle.run(self._app))
        self.tasks.add(cycle.task)

    # Called by the request that is answered

    def close(self) -> None:
        """Close the connection when the client has read what was sent to it, for which it has `write_timeout`."""
        if not self.transport.is_closing():  # transports of TLS do not allow to close them twice
            self.transport.close()
        if self._write_timer is None and (left := self.transport.get_write_buffer_size()):
            self._start_write_timer(left)

    def default_lines(self) -> bytes:
        """Return the lines that all responses have: the date, which uvicorn renews every second."""
        return _lines_of(tuple(self._server_state.default_headers))

    async def drain(self) -> None:
        """Wait until the transport takes more to write."""
        if self._writable is None:
            self._writable = asyncio.Event()
        if self.is_write_paused:
            self._writable.clear()
            await self._writable.wait()

    def pause_reading(self) -> None:
        if not self._is_read_paused:
            self._is_read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self._is_read_paused and not self._is_held:
            self._is_read_paused = False
            self.transport.resume_reading()

    def _pace_discards(self) -> None:
        """Pause before the next read if what was read is discarded, or close the connection if too many do.

        Sending costs the client nothing, and reading from hundreds of them would keep the event loop busy. Many clients
        look at the answer only when they have sent everything.
        """
        discards = self._in_request and not self._in_head and self._answering is None
        if discards and not self.transport.is_closing():
            moment = self.discards.next(self._loop.time())
            if moment is None:
                self.close()
            else:
                self.pause_reading()
                self._discard_timer = self._loop.call_at(moment, self._discard_more)

    def _discard_more(self) -> None:
        if self.discards.use(self._loop.time()):
            self.resume_reading()
        else:
            self._pace_discards()

    def on_response_complete(self) -> None:
        self._server_state.total_requests += 1
        if self._waiting:
            self._answering = self._waiting[0]
            self._loop.call_later(_PAUSE, self._answer_next)
            return
        self._answering = None
        if not self._in_request:
            self._cycle = None
        else:
            self._release()
        if self.transport.is_closing():
            return
        self.resume_reading()
        self._idle_since = self._loop.time()
        if self._idle_timer is None:  # one timer for all requests of a connection
            self._idle_timer = self._loop.call_later(self._keep_alive, self._close_if_idle)
        if self._is_held or self._in_request:
            self._read_after_response()

    def _answer_next(self) -> None:
        if self._waiting and not self.transport.is_closing():
            self._answering = self._waiting.popleft()
            self._answer(self._answering)
            self._read_after_response()

    def _read_after_response(self) -> None:
        if self._is_held:
            self._read_on()
        if self._in_request and not self.transport.is_closing():
            self._start_request_timer()

    # Idle connections

    def _close_if_idle(self) -> None:
        self._idle_timer = None
        if self.idle_since is None:
            return
        left = self.idle_since + self._keep_alive - self._loop.time()
        if left > 0:
            self._idle_timer = self._loop.call_later(left, self._close_if_idle)
        else:
            self.close()

    @property
    def idle_since(self) -> float | None:
        """The time of the last complete response, None before the first and while there is a request."""
        return self._idle_since if self._idle_since > 0 and self._answering is None and not self._in_request else None

    def _close_idle_connection(self) -> bool:
        """Close the connection that has been idle for longest; return False if none is idle."""
        idle = {
            each.idle_since: each
            for each in self._server_state.connections
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
        while start < len(behind) and not self._waiting and not self.transport.is_closing():
            self._parse(behind[start : start + _PIECE])
            if (begun := self._begun) is not None:
                self._begun = None
                self._answer(begun)
            start += _PIECE
        self._behind = behind[start:]
        if self._waiting or self._behind:
            self._is_held = True
            self.pause_reading()
            self._hold(len(self._behind))
        elif self._is_held:
            self._is_held = False
            self.resume_reading()
            self._release()

    def _parse_again(self, data: bytes, error: Exception) -> None:
        """Go on after a request that offers to upgrade, or refuse data that cannot be parsed."""
        while isinstance(error, HttpParserUpgrade):
            data = self._head_without_offer() + data[error.args[0] :]
            try:
                self._parser.feed_data(data)
                return
            except (HttpParserUpgrade, HttpParserError) as another:
                error = another
        if self._is_head_too_large:
            self._refuse_head()
        else:
            self.refuse(HTTPStatus.BAD_REQUEST, "Invalid HTTP request received.")

    def _head_without_offer(self) -> bytes:
        """Return the head that was just parsed without its offer to upgrade, for a new parser.

        Clients may offer HTTP/2 and go on with HTTP/1.1 and a body. The parser takes every offer as accepted and does
        not parse what follows.
        """
        self._parser = _parser_for(self)
        method, version = self._offering
        headers = [b"%b: %b\r\n" % header for header in self._headers if header[0] != b"upgrade"]
        line = b"%b %b HTTP/%b\r\n" % (method.encode("ascii"), self._url, version.encode("ascii"))
        return b"".join([line, *headers, b"\r\n"])

    def _check_head_size(self, size: int = 0) -> None:
        """Raise `HeadTooLargeError` if the headers or trailers are too large together with `size` other bytes."""
        if size + sum(len(name) + len(value) + 4 for name, value in self._headers) > MAX_HEAD:
            self._is_head_too_large = True
            raise HeadTooLargeError

    def _refuse_head(self) -> None:
        self.refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"Headers and trailers may have {MAX_HEAD} bytes.")

    def refuse(self, status: HTTPStatus, text: str, cycle: RequestCycle | None = None) -> None:
        """Respond with an error to `cycle`, or else to the request that is being read, and close the connection.

        Nothing is sent if that response has begun, or if it is not its turn: a client would take the error for the
        response to an earlier request.
        """
        if cycle is None and self._in_request and not self._in_head:
            cycle = self._cycle
        is_its_turn = self._answering is None or self._answering is cycle
        has_begun = cycle is not None and cycle.response_started
        if is_its_turn and not has_begun and not self.transport.is_closing():
            retry = "retry-after: 1\r\n" if status is HTTPStatus.SERVICE_UNAVAILABLE else ""
            self.transport.write(
                f"HTTP/1.1 {status.value} {status.phrase}\r\n{retry}content-type: text/plain; charset=utf-8\r\n"
                f"content-length: {len(text)}\r\nconnection: close\r\n\r\n{text}".encode("ascii")
            )
        self.close()

    # Timers

    def _start_request_timer(self) -> None:
        if self._request_timer is None:
            self._received = 0
            self._request_timer = self._loop.call_later(self.request_timeout, self._check_request, self._loop.time())

    def _check_request(self, since: float) -> None:
        left = since + self.request_timeout + self._received / self.min_rate - self._loop.time()
        if left > 0:
            self._request_timer = self._loop.call_later(left, self._check_request, since)
            return
        self._request_timer = None
        if self._in_request:
            self.refuse(HTTPStatus.REQUEST_TIMEOUT, "The request did not arrive in time.")
        else:
            self.close()

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None
            self._release()

    def _start_write_timer(self, left: int) -> None:
        self._stop_write_timer()
        self._write_timer = self._loop.call_later(self.write_timeout, self._check_reader, left)

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


def _parser_for(connection: HttpConnection) -> HttpRequestParser:
    parser = HttpRequestParser(connection)
    # A response to the request before may have announced that the connection will be closed.
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


@lru_cache(maxsize=4)
def _lines_of(headers: tuple[Header, ...]) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])
