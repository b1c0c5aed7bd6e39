"""The gRPC services that everyone may call: health and reflection, under the same bounds as all calls.

The servicers that come with gRPC wait for ever for a message, of any size that is allowed, from any number of callers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import SERVICE_NAME as HEALTH
from grpc_reflection.v1alpha import reflection, reflection_pb2

from errands.errors import A2AError, InvalidRequestError, OverloadedError
from errands.server.grpc_calls import Calls
from errands.wire.proto.grpc_status import code_of

REFLECTION = reflection.SERVICE_NAME
#: Streams of these services that are open at the same time.
MOST_STREAMS = 100

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class PublicServices:
    """Health and reflection. `services` are the names of the other services."""

    def __init__(self, calls: Calls, services: Sequence[str]) -> None:
        self._calls = calls
        self._services = ("", *services)
        self._reflection = reflection.aio.ReflectionServicer((*services, HEALTH, REFLECTION))
        self._status = _NOT_SERVING
        self._changed = asyncio.Event()
        self._streams = 0

    def report(self, *, is_serving: bool) -> None:
        """Tell those who ask, and those who watch, whether new calls should be sent here."""
        self._status = _SERVING if is_serving else _NOT_SERVING
        self._changed.set()
        self._changed = asyncio.Event()

    def handlers(self) -> list[Any]:
        """Return what a gRPC server takes."""
        return [
            grpc.method_handlers_generic_handler(
                HEALTH, {"Check": self._unary(self._check), "Watch": self._stream(self._watch)}
            ),
            grpc.method_handlers_generic_handler(REFLECTION, {"ServerReflectionInfo": self._stream(self._reflect)}),
        ]

    def _unary(self, method: Callable[[Any], Awaitable[bytes]]) -> Any:
        async def answer(_: object, context: Any) -> bytes:
            try:
                self._calls.open()
                return await method(context)
            except (A2AError, DecodeError) as error:
                await _refuse(context, error)
                raise

        return grpc.stream_unary_rpc_method_handler(answer)

    def _stream(self, method: Callable[[Any], Awaitable[None]]) -> Any:
        async def answer(_: object, context: Any) -> None:
            self._streams += 1
            try:
                self._calls.open()
                if self._streams > MOST_STREAMS:
                    raise OverloadedError(f"{MOST_STREAMS} streams of health and reflection are open; come back later")
                await method(context)
            except (A2AError, DecodeError) as error:
                await _refuse(context, error)
            finally:
                self._streams -= 1

        return grpc.stream_stream_rpc_method_handler(answer)

    async def _check(self, context: Any) -> bytes:
        if await self._asked_service(context) not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "There is no such service")
        return _written(self._status)

    async def _watch(self, context: Any) -> None:
        is_known = await self._asked_service(context) in self._services
        told = None
        while True:
            changed, status = self._changed, self._status if is_known else _UNKNOWN
            if status != told:
                await context.write(_written(status))
            told = status
            await changed.wait()

    async def _asked_service(self, context: Any) -> str:
        raw = await self._calls.receive(context)
        if raw is None:
            raise InvalidRequestError("The call has no message")
        service: str = health_pb2.HealthCheckRequest.FromString(raw).service
        return service

    async def _reflect(self, context: Any) -> None:
        while (raw := await self._calls.receive(context)) is not None:
            question = _once(reflection_pb2.ServerReflectionRequest.FromString(raw))
            async for answer in self._reflection.ServerReflectionInfo(question, context):
                await context.write(answer.SerializeToString())


async def _once(message: Any) -> AsyncIterator[Any]:
    yield message


async def _refuse(context: Any, error: A2AError | DecodeError) -> None:
    if isinstance(error, A2AError):
        await context.abort(code_of(error), error.message)
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "The request cannot be read")


def _written(status: Any) -> bytes:
    raw: bytes = health_pb2.HealthCheckResponse(status=status).SerializeToString()
    return raw
