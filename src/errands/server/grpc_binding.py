"""The gRPC binding: the operation in the method's name, one service per protocol version, bytes in and bytes out.

Messages are read and written here and not by gRPC, so that what cannot be read gets our error and not gRPC's. To gRPC
every method takes a stream of messages, which looks the same on the wire: so a call is authenticated before its message
is received.
"""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import Any, NoReturn

import grpc
import msgspec
from starlette.types import Scope

from errands.errors import A2AError, InvalidAgentResponseError, InvalidRequestError
from errands.model.base import encode, unchecked
from errands.model.core import StreamResponse
from errands.runtime.call import EventStream
from errands.server.dispatch import Dispatcher
from errands.server.errors import client_error, error_headers
from errands.server.grpc_calls import SMALL, Calls
from errands.server.http import Header, IncomingRequest
from errands.wire.proto.codec import ASKING, Codec, Position, Rpc, mark, read_request
from errands.wire.proto.grpc_status import DETAILS_KEY, code_of, details_of, message_of

Context = Any
Metadata = tuple[tuple[str, str | bytes], ...]

_decode_event = msgspec.json.Decoder(unchecked(StreamResponse)).decode


class Service:
    """The methods of one protocol version. `server` is the address that requests are said to have come to."""

    def __init__(
        self, codec: Codec, dispatcher: Dispatcher, server: tuple[str, int | None], calls: Calls, max_values: int
    ) -> None:
        self._codec = codec
        self._dispatcher = dispatcher
        self._server = server
        self._calls = calls
        self._max_values = max_values

    def handlers(self) -> Any:
        """What a gRPC server takes."""
        methods = {rpc.name: self._method(rpc) for rpc in self._codec.rpcs.values()}
        return grpc.method_handlers_generic_handler(self._codec.service, methods)

    def _method(self, rpc: Rpc) -> Any:
        path = f"/{self._codec.service}/{rpc.name}"

        async def answer(_: object, context: Context) -> bytes | None:
            exchange = GrpcExchange(context, path, self._server)
            exchange.ends_at_pause = self._codec.ends_at_pause
            try:
                self._calls.open()
                return await self._serve(rpc, context, exchange)
            except A2AError as error:
                # gRPC keeps what is raised while it ends the call: not with the frames that hold the message.
                refused = error.with_traceback(None)
                refused.__context__ = None
            return await self._refuse(context, exchange, refused)

        if rpc.operation.streams:
            return grpc.stream_stream_rpc_method_handler(answer)
        return grpc.stream_unary_rpc_method_handler(answer)

    async def _serve(self, rpc: Rpc, context: Context, exchange: GrpcExchange) -> bytes | None:
        self._dispatcher.check_version(exchange)
        if self._dispatcher.head_middlewares:
            await self._dispatcher.check_head(exchange)
        if self._codec.variant is not None:
            rpc = self._codec.variant(exchange.headers.get(b"user-agent", b"")).rpc_of(rpc.operation)
        result = await self._dispatch(rpc, await self._receive(rpc, context), exchange)
        if exchange.extra_headers:
            await context.send_initial_metadata(_metadata(exchange.extra_headers))
        if isinstance(result, EventStream):
            await self._send_events(rpc, result, context, exchange.wants_positions)
            return None
        size = len(encode(result))
        self._calls.hold(size)
        if size <= SMALL:
            return _written(rpc, result)
        raw = await self._calls.convert(_written, rpc, result)
        self._calls.hold(2 * len(raw))  # gRPC makes a copy
        return raw

    async def _receive(self, rpc: Rpc, context: Context) -> Any:
        raw = await self._calls.receive(context)
        if raw is None:
            raise InvalidRequestError("The call has no message")
        if len(raw) <= SMALL:
            return read_request(rpc, raw, self._max_values)
        return await self._calls.convert(read_request, rpc, raw, self._max_values)

    async def _dispatch(self, rpc: Rpc, request: Any, exchange: GrpcExchange) -> Any:
        """The answer. A client that goes away ends the wait for it, but never a commit that is under way."""
        dispatched = self._dispatcher.dispatch(rpc.operation, request, exchange)
        if rpc.operation.http_method == "GET":
            return await dispatched
        work = asyncio.get_running_loop().create_task(dispatched)
        try:
            await _end_of(work)
            return work.result()
        except asyncio.CancelledError:
            exchange.abandon(work)
            work.add_done_callback(_drop)
            raise

    async def _send_events(self, rpc: Rpc, stream: EventStream, context: Context, marked: bool) -> None:
        write = context.write
        try:
            async for items in stream:
                self._calls.hold(sum([len(item.data) for item in items]))
                for item in items:
                    if len(item.data) <= SMALL:
                        event = _written(rpc, _decode_event(item.data))
                    else:
                        event = await self._calls.convert(_written_event, rpc, item.data)
                    await write(mark(event, Position(item.version, item.gap)) if marked and item.version else event)
        except A2AError:
            raise
        except Exception as error:
            raise client_error(error, "a stream") from None
        finally:
            stream.close()

    async def _refuse(self, context: Context, exchange: GrpcExchange, error: A2AError) -> NoReturn:
        error = self._codec.restate(error)
        headers = [*exchange.extra_headers, *error_headers(error)]
        trailing = (*_metadata(headers), (DETAILS_KEY, details_of(error, self._codec)))
        await context.abort(code_of(error), message_of(error, self._codec), trailing)
        raise AssertionError("abort always raises")


def _written(rpc: Rpc, result: Any) -> bytes:
    try:
        raw: bytes = rpc.write(result).SerializeToString()
    except ValueError as error:
        raise InvalidAgentResponseError(f"The agent's answer does not fit: {error}") from None
    return raw


def _written_event(rpc: Rpc, data: bytes) -> bytes:
    return _written(rpc, _decode_event(data))


def _end_of(work: asyncio.Task[Any]) -> asyncio.Future[None]:
    """Is done when `work` is. Canceling it leaves `work` alone, as `asyncio.shield` would at several times the cost."""
    end: asyncio.Future[None] = work.get_loop().create_future()

    def reach(_: asyncio.Future[Any]) -> None:
        if not end.done():
            end.set_result(None)

    work.add_done_callback(reach)
    return end


def _drop(work: asyncio.Future[Any]) -> None:
    """Nobody waits for it any more."""
    if work.cancelled() or work.exception() is not None:
        return
    if isinstance(result := work.result(), EventStream):
        result.close()


class GrpcExchange(IncomingRequest):
    """The call as middleware knows requests: metadata are headers, the path is the method's."""

    def __init__(self, context: Context, path: str, server: tuple[str, int | None]) -> None:
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
        return {
            "type": "http",
            "http_version": "2",
            "method": "POST",
            "scheme": "http",
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
        """The client has gone: ends `work` as soon as it does nothing but wait."""
        self._abandoned = work
        if self._is_accepted:
            work.cancel()


def _client(peer: str) -> tuple[str, int] | None:
    """`ipv4:127.0.0.1:5000` and `ipv6:%5B::1%5D:5000` as ASGI has them."""
    kind, _, address = peer.partition(":")
    host, _, port = address.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdigit():
        return None
    return host.replace("%5B", "").replace("%5D", "").strip("[]"), int(port)


def _metadata(headers: list[Header]) -> Metadata:
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
