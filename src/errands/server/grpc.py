"""The gRPC binding: one service per protocol version on one port, with health and reflection.

Messages are read and written here and not by gRPC, so that a message which cannot be read is answered with our error.
To gRPC every method takes a stream of messages, which looks the same on the wire: so a call is authenticated before
its message is received.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Self, TypeVar
from urllib.parse import urlsplit

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import SERVICE_NAME as HEALTH
from grpc_reflection.v1alpha import reflection, reflection_pb2
from starlette.types import Scope

from errands import errors
from errands.errors import OverloadedError
from errands.model.base import encode
from errands.runtime.settings import NOT_ON_CARD, Settings
from errands.runtime.streams import EventStream
from errands.server.asgi import Header, IncomingRequest, host_port, means_every_address
from errands.server.errors import client_error, error_headers
from errands.server.large_work import LargeWork
from errands.wire.proto.codec import (
    ASKING,
    CODECS,
    Codec,
    EventWriter,
    Position,
    Rpc,
    mark,
    read_request,
    write_response,
)
from errands.wire.proto.grpc_status import DETAILS_KEY, code_of, details_of, message_of

if TYPE_CHECKING:
    from errands.server.dispatch import Dispatcher

#: Seconds that calls have to end by themselves once the agent has drained.
_GRACE = 1.0
#: The shortest time between a client's pings that is not taken for an attack.
_PING_MS = 5_000
#: How long a connection may have no calls. Clients connect again when they have one.
_IDLE_MS = 300_000


class GrpcServer:
    """An async context manager: entering listens, leaving lets the calls under way end."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        large_work: LargeWork,
        settings: Settings,
        http_server: tuple[str, int] | None = None,
        *,
        shares_port: bool = False,
    ) -> None:
        self._settings = settings
        self._host = settings.grpc_host
        self._wanted_port = settings.grpc_port or 0
        #: The port it listens on, known once it does.
        self.port = 0
        self._server = grpc.aio.server(options=_options(settings, shares_port))
        codecs = [CODECS[version] for version in dispatcher.routes.versions if version in CODECS]
        address = http_server or (self._host, None)
        calls = OpenCalls(settings, large_work)
        services = [GrpcService(codec, dispatcher, address, calls, settings.max_message_values) for codec in codecs]
        self._public = PublicServices(calls, [codec.service for codec in codecs])
        self._server.add_generic_rpc_handlers([*(service.handlers() for service in services), *self._public.handlers()])

    async def __aenter__(self) -> Self:
        address, credentials = host_port(self._host, self._wanted_port), _credentials(self._settings)
        try:
            if credentials is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, credentials)
        except RuntimeError:
            raise errors.ConfigurationError(
                f"gRPC cannot listen on port {self._wanted_port} of {self._host}: it is in use, or not an address of "
                "this machine; choose another with grpc_port and grpc_host"
            ) from None
        await self._server.start()
        self._public.report(is_serving=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.stop(_GRACE)

    @property
    def address(self) -> str | None:
        """Return the address for the card; `:port` means the host that the client already uses.

        It has no scheme unless a setting gives one, or there is TLS: the official SDKs pass what is on the card to gRPC
        as it is, and gRPC takes no URLs.
        """
        if self._settings.public_grpc is not None:
            return None if self._settings.public_grpc == NOT_ON_CARD else self._settings.public_grpc
        public = urlsplit(self._settings.public_url or "").hostname
        scheme = "" if self._settings.tls_certificate is None else "https://"
        if public is None and means_every_address(self._host):
            return f"{scheme}:{self.port}"
        return scheme + host_port(public or self._host, self.port)

    def stop_serving(self) -> None:
        """Report to health checks that nothing new should be sent here."""
        self._public.report(is_serving=False)


def _credentials(settings: Settings) -> grpc.ServerCredentials | None:
    """Return the certificate of the server, None without TLS. Raises `ConfigurationError`."""
    if settings.tls_certificate is None:
        return None
    try:
        certificate = Path(settings.tls_certificate).read_bytes()
        key = Path(settings.tls_key or settings.tls_certificate).read_bytes()
        authorities = None if settings.tls_client_ca is None else Path(settings.tls_client_ca).read_bytes()
    except OSError as error:
        raise errors.ConfigurationError(f"a file for TLS cannot be read: {error}") from None
    # gRPC either requires client certificates or does not ask for them.
    return grpc.ssl_server_credentials([(key, certificate)], authorities, authorities is not None)


def _options(settings: Settings, shares_port: bool) -> list[tuple[str, int]]:
    options = [
        ("grpc.max_receive_message_length", settings.max_body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", MOST_CALLS),
        # Without this, two servers on one port would share its connections unnoticed.
        ("grpc.so_reuseport", int(shares_port)),
        # Pings notice a client that has vanished.
        ("grpc.keepalive_time_ms", max(int(settings.keep_alive * 1000), 1)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
    ]
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return options
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files != resource.RLIM_INFINITY:
        # The other files that this process may open are for HTTP, the agent and its store.
        options.append(("grpc.max_allowed_incoming_connections", max(files // 8, 1)))
    return options


class GrpcService:
    """The methods of one protocol version. `server` is the address that requests are said to have come to."""

    def __init__(
        self, codec: Codec, dispatcher: Dispatcher, server: tuple[str, int | None], calls: OpenCalls, max_values: int
    ) -> None:
        self._codec = codec
        self._dispatcher = dispatcher
        self._server = server
        self._calls = calls
        self._max_values = max_values
        self._commits_at_once = dispatcher.commits_at_once

    def handlers(self) -> Any:
        """Return what a gRPC server takes."""
        methods = {rpc.name: self._method(rpc) for rpc in self._codec.rpcs.values()}
        return grpc.method_handlers_generic_handler(self._codec.service, methods)

    def _method(self, rpc: Rpc) -> Any:
        path = f"/{self._codec.service}/{rpc.name}"

        async def answer(_: object, context: Any) -> bytes | None:
            request = GrpcRequest(context, path, self._server)
            request.large_work = self._calls.large_work
            request.ends_at_pause, request.protocol = self._codec.ends_at_pause, self._codec.version
            try:
                call = self._calls.open()
                try:
                    return await self._serve(rpc, context, request, call)
                finally:
                    call.close()
            except errors.A2AError as error:
                # gRPC keeps the exception while it ends the call, so it must not refer to frames that hold the message.
                self._dispatcher.refused(rpc.operation, request, error)
                refused = error.with_traceback(None)
                refused.__context__ = None
            return await self._refuse(context, request, refused)

        if rpc.operation.streams:
            return grpc.stream_stream_rpc_method_handler(answer)
        return grpc.stream_unary_rpc_method_handler(answer)

    async def _serve(self, rpc: Rpc, context: Any, request: GrpcRequest, call: OpenCall) -> bytes | None:
        self._dispatcher.check_version(request)
        if self._dispatcher.checks_head:
            await self._dispatcher.check_head(request)
        if self._codec.variant is not None:
            rpc = self._codec.variant(request.headers.get(b"user-agent", b"")).rpc_of(rpc.operation)
        raw = await call.receive(context)
        if raw is None:
            raise errors.InvalidRequestError("The call has no message")
        if len(raw) <= SMALL:
            content = read_request(rpc, raw, self._max_values)
        else:
            content = await self._calls.convert(read_request, rpc, raw, self._max_values)
        dispatched = self._dispatcher.dispatch(rpc.operation, content, request)
        is_safe = self._commits_at_once or rpc.operation.http_method == "GET"
        result = await (dispatched if is_safe else self._complete(dispatched, request))
        if isinstance(result, EventStream):
            with closing(result):
                await self._send_events(rpc, result, context, call, request)
            return None
        if request.extra_headers:
            await context.send_initial_metadata(_metadata(request.extra_headers))
        size = len(encode(result))
        call.hold(size)
        if size <= SMALL:
            return write_response(rpc, result)
        written = await self._calls.convert(write_response, rpc, result)
        call.hold(2 * len(written))  # gRPC makes a copy
        return written

    async def _complete(self, dispatched: Coroutine[Any, Any, Any], request: GrpcRequest) -> Any:
        """Perform an operation. A client that goes away ends the wait, but never a commit that is under way."""
        work = asyncio.get_running_loop().create_task(dispatched)
        try:
            await _end_of(work)
            return work.result()
        except asyncio.CancelledError:
            request.abandon(work)
            work.add_done_callback(_close_stream)
            raise

    async def _send_events(
        self, rpc: Rpc, stream: EventStream, context: Any, call: OpenCall, request: GrpcRequest
    ) -> None:
        if request.extra_headers:
            await context.send_initial_metadata(_metadata(request.extra_headers))
        write, write_event, marked = context.write, EventWriter(rpc).write, request.wants_positions
        try:
            async for items in stream:
                call.hold(sum([len(item.data) for item in items]))
                for item in items:
                    if len(item.data) <= SMALL:
                        event = write_event(item.data)
                    else:
                        event = await self._calls.convert(write_event, item.data)
                    await write(mark(event, Position(item.version, item.gap)) if marked and item.version else event)
        except errors.A2AError:
            raise
        except Exception as error:
            raise client_error(error, "a stream") from None

    async def _refuse(self, context: Any, request: GrpcRequest, error: errors.A2AError) -> NoReturn:
        error = self._codec.restate(error)
        headers = [*request.extra_headers, *error_headers(error)]
        trailing = (*_metadata(headers), (DETAILS_KEY, details_of(error, self._codec)))
        await context.abort(code_of(error), message_of(error, self._codec), trailing)
        raise AssertionError("abort always raises")


def _end_of(work: asyncio.Task[Any]) -> asyncio.Future[None]:
    """Return a future that is done when `work` is.

    Canceling it leaves `work` alone, as `asyncio.shield` would at several times the cost.
    """
    end: asyncio.Future[None] = work.get_loop().create_future()

    def reach(_: asyncio.Future[Any]) -> None:
        if not end.done():
            end.set_result(None)

    work.add_done_callback(reach)
    return end


def _close_stream(work: asyncio.Future[Any]) -> None:
    """Close the stream that an abandoned call has opened, if any."""
    if work.cancelled() or work.exception() is not None:
        return
    if isinstance(result := work.result(), EventStream):
        result.close()


class GrpcRequest(IncomingRequest):
    """The call as middleware knows requests: metadata are headers, the path is the method's."""

    binding = "grpc"

    def __init__(self, context: Any, path: str, server: tuple[str, int | None]) -> None:
        self._context = context
        self._path = path
        self._server = server
        self.headers = {}
        for key, value in context.invocation_metadata() or ():
            name, text = key.encode("latin-1"), value.encode("utf-8") if isinstance(value, str) else value
            self.headers[name] = b"%b, %b" % (self.headers[name], text) if name in self.headers else text
        self.extra_headers = []
        self.on_accepted = self._accept
        self._is_accepted = False
        self._abandoned: asyncio.Future[Any] | None = None

    @cached_property
    def scope(self) -> Scope:  # type: ignore[override]
        connection = self._context.auth_context()
        return {
            "type": "http",
            "http_version": "2",
            "method": "POST",
            "scheme": "https" if connection.get("transport_security_type") == [b"ssl"] else "http",
            "extensions": {"tls": {"client_cert_chain": [one.decode() for one in connection.get("x509_pem_cert", ())]}},
            "path": self._path,
            "raw_path": self._path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": list(self.headers.items()),
            "client": _client(self._context.peer()),
            "server": self._server,
        }

    @property
    def wants_positions(self) -> bool:
        name, value = ASKING
        return self.header(name.encode()) == value

    def _accept(self) -> None:
        self._is_accepted = True
        if self._abandoned is not None:
            self._abandoned.cancel()

    def abandon(self, work: asyncio.Future[Any]) -> None:
        """Cancel `work` as soon as it does nothing but wait: the client has gone."""
        self._abandoned = work
        if self._is_accepted:
            work.cancel()


def _client(peer: str) -> tuple[str, int] | None:
    """Return `ipv4:127.0.0.1:5000` or `ipv6:%5B::1%5D:5000` as ASGI has it."""
    kind, _, address = peer.partition(":")
    host, _, port = address.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdigit():
        return None
    return host.replace("%5B", "").replace("%5D", "").strip("[]"), int(port)


def _metadata(headers: list[Header]) -> tuple[tuple[str, str | bytes], ...]:
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)


# Health and reflection, which everyone may call. The servicers that come with gRPC wait for ever for a message, of any
# size that is allowed, from any number of callers: these have the bounds of all other calls.

REFLECTION = reflection.SERVICE_NAME
#: Streams of these services that are open at the same time.
MOST_PUBLIC_STREAMS = 100

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class PublicServices:
    """Health and reflection. `services` are the names of the other services."""

    def __init__(self, calls: OpenCalls, services: Sequence[str]) -> None:
        self._calls = calls
        self._services = ("", *services)
        self._reflection = reflection.aio.ReflectionServicer((*services, HEALTH, REFLECTION))
        self._status = _NOT_SERVING
        self._changed = asyncio.Event()
        self._streams = 0

    def report(self, *, is_serving: bool) -> None:
        """Report to health checks and watchers whether new calls should be sent here."""
        self._status = _SERVING if is_serving else _NOT_SERVING
        self._changed.set()
        self._changed = asyncio.Event()

    def handlers(self) -> list[Any]:
        """Return what a gRPC server takes."""
        check = grpc.stream_unary_rpc_method_handler(self._bounded(self._check))
        watch = grpc.stream_stream_rpc_method_handler(self._bounded_stream(self._watch))
        reflect = grpc.stream_stream_rpc_method_handler(self._bounded_stream(self._reflect))
        return [
            grpc.method_handlers_generic_handler(HEALTH, {"Check": check, "Watch": watch}),
            grpc.method_handlers_generic_handler(REFLECTION, {"ServerReflectionInfo": reflect}),
        ]

    def _bounded(self, method: Callable[[Any, OpenCall], Awaitable[bytes | None]]) -> Any:
        async def answer(_: object, context: Any) -> bytes | None:
            try:
                call = self._calls.open()
                try:
                    return await method(context, call)
                finally:
                    call.close()
            except errors.A2AError as error:
                await context.abort(code_of(error), error.message)
            except DecodeError:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "The request cannot be read")
            return None

        return answer

    def _bounded_stream(self, method: Callable[[Any, OpenCall], Awaitable[None]]) -> Any:
        async def count(context: Any, call: OpenCall) -> None:
            self._streams += 1
            try:
                if self._streams > MOST_PUBLIC_STREAMS:
                    raise OverloadedError(
                        f"{MOST_PUBLIC_STREAMS} streams of health and reflection are open; call again later"
                    )
                await method(context, call)
            finally:
                self._streams -= 1

        return self._bounded(count)

    async def _check(self, context: Any, call: OpenCall) -> bytes:
        if await _asked_service(context, call) not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "Unknown service")
        return _health(self._status)

    async def _watch(self, context: Any, call: OpenCall) -> None:
        is_known = await _asked_service(context, call) in self._services
        told = None
        while True:
            changed, status = self._changed, self._status if is_known else _UNKNOWN
            if status != told:
                await context.write(_health(status))
            told = status
            await changed.wait()

    async def _reflect(self, context: Any, call: OpenCall) -> None:
        while (raw := await call.receive(context)) is not None:
            question = reflection_pb2.ServerReflectionRequest.FromString(raw)

            async def questions(question: Any = question) -> AsyncIterator[Any]:
                yield question

            async for answer in self._reflection.ServerReflectionInfo(questions(), context):
                await context.write(answer.SerializeToString())


async def _asked_service(context: Any, call: OpenCall) -> str:
    service: str = health_pb2.HealthCheckRequest.FromString(await call.receive(context) or b"").service
    return service


def _health(status: Any) -> bytes:
    raw: bytes = health_pb2.HealthCheckResponse(status=status).SerializeToString()
    return raw


# Open calls

P = ParamSpec("P")
T = TypeVar("T")

#: Calls that are open at the same time: one connection can have any number of them.
MOST_CALLS = 10_000
#: Bytes of a message that is converted on the event loop, and that does not count.
SMALL = 16 * 1024
#: Seconds for a message to arrive, and bytes for which there is one second more: gRPC does not say how much has come.
_ARRIVAL, _PACE = 30.0, 16 * 1024
#: Seconds after which a message that has not arrived counts as slow.
_QUICK = 1.0


class OpenCalls:
    """Bounds what the open calls hold: messages that arrive, requests that are handled, answers that are not read.

    gRPC does not tell how much it holds of a message that is arriving, so a slow one counts as if it were as large as a
    message may be; if there are too many, the oldest is refused.
    """

    def __init__(self, settings: Settings, large_work: LargeWork) -> None:
        self.large_work = large_work
        self._most_slow = max(settings.max_buffered_bytes // settings.max_body_bytes, 1)
        self._patience = _ARRIVAL + settings.max_body_bytes / _PACE
        self.count = 0
        #: The calls whose message has not arrived, the one that began first at the beginning.
        self.arriving: dict[OpenCall, None] = {}
        self._look: asyncio.TimerHandle | None = None

    def open(self) -> OpenCall:
        """Count the call of the current task until it is closed. Raises `OverloadedError`."""
        if self.count >= MOST_CALLS:
            raise OverloadedError(f"{MOST_CALLS} calls are open; call again when some have ended")
        return OpenCall(self)

    def look_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look at slow messages within a second. One look costs less than a timer for each message."""
        if self._look is None:
            self._look = loop.call_later(_QUICK, self._look_at_slow, loop)

    def _look_at_slow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Refuse messages that have been arriving for too long."""
        now = loop.time()
        self._look = loop.call_later(_QUICK, self._look_at_slow, loop) if self.arriving else None
        slow = [call for call in self.arriving if call.began < now - _QUICK and not call.is_refused]
        too_many = len(slow) - self._most_slow
        for number, call in enumerate(slow):
            if number < too_many or call.began < now - self._patience:
                call.refuse()

    async def convert(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` to convert a message that is not `SMALL`: in a thread, and one at a time."""
        async with self.large_work.one_at_a_time(0):
            return await asyncio.to_thread(function, *args, **kwargs)


class OpenCall:
    """A call that is open, with its task."""

    __slots__ = ("_calls", "_held", "_task", "began", "is_refused")

    def __init__(self, calls: OpenCalls) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._calls = calls
        self._task = task
        self._held = 0
        #: When its message began to arrive, and whether that took too long.
        self.began = 0.0
        self.is_refused = False
        calls.count += 1

    def close(self) -> None:
        """Note that there is an answer. What the call holds is given back when it was sent and the task ends."""
        self._calls.count -= 1
        if self._held:
            self._task.add_done_callback(lambda _: self._calls.large_work.budget.give_back(self._held))

    def refuse(self) -> None:
        self.is_refused = True
        self._task.cancel()

    async def receive(self, context: Any) -> bytes | None:
        """Return the next message of the call, None at their end. Raises `OverloadedError` if it arrives too slowly."""
        calls, loop = self._calls, asyncio.get_running_loop()
        self.began = loop.time()
        calls.arriving[self] = None
        calls.look_soon(loop)
        try:
            raw = await context.read()
        except asyncio.CancelledError:
            if not self.is_refused:
                raise
            self._task.uncancel()
            raise OverloadedError("The message took too long to arrive; send it again, or a smaller one") from None
        finally:
            del calls.arriving[self]
        if raw is grpc.aio.EOF:
            return None
        message: bytes = raw
        self.hold(len(message))
        return message

    def hold(self, size: int) -> None:
        """Note that the call holds `size` bytes now. Raises `OverloadedError` if it may not.

        A call may hold any number of bytes while others hold none.
        """
        if size <= SMALL:
            if not self._held:
                return
            size = 0
        self._calls.large_work.budget.reserve(size, self._held)
        self._held = size
