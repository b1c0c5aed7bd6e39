"""An agent that is served over gRPC on a free port, and the official stubs of both versions for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import grpc
import grpc.aio
from a2a.compat.v0_3 import a2a_v0_3_pb2, a2a_v0_3_pb2_grpc
from a2a.types import a2a_pb2, a2a_pb2_grpc
from google.rpc import error_details_pb2, status_pb2

from errands import A2AServer, Worker
from errands.testing import serve

pb: Any = a2a_pb2
old: Any = a2a_v0_3_pb2


class Served(NamedTuple):
    server: A2AServer
    channel: Any

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.grpc_port}"

    @property
    def v1_0(self) -> Any:
        return a2a_pb2_grpc.A2AServiceStub(self.channel)  # type: ignore[no-untyped-call]

    @property
    def v0_3(self) -> Any:
        return a2a_v0_3_pb2_grpc.A2AServiceStub(self.channel)  # type: ignore[no-untyped-call]


@asynccontextmanager
async def over_grpc(agent: Worker | A2AServer, **options: Any) -> AsyncIterator[Served]:
    """The agent and a channel to it; `options` are A2AServer's."""
    server = agent if isinstance(agent, A2AServer) else serve(agent, **{"grpc_port": 0, **options})
    async with server, grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        yield Served(server, channel)


def watched(server: A2AServer) -> list[str]:
    """The tasks that some request or stream still waits for."""
    tasks: list[str] = server.engine.subscribers.watched()  # type: ignore[attr-defined]
    return tasks


def message(text: str = "hi", **fields: Any) -> Any:
    """A message as 1.0 has it."""
    return pb.Message(**{"message_id": "m-1", "role": pb.ROLE_USER, "parts": [pb.Part(text=text)], **fields})


def send(text: str = "hi", *, immediately: bool = False, **fields: Any) -> Any:
    configuration = pb.SendMessageConfiguration(return_immediately=immediately)
    return pb.SendMessageRequest(message=message(text, **fields), configuration=configuration)


def old_send(text: str = "hi", *, immediately: bool = False, **fields: Any) -> Any:
    """The same as 0.3 has it."""
    sent = old.Message(**{"message_id": "m-1", "role": old.ROLE_USER, "content": [old.Part(text=text)], **fields})
    return old.SendMessageRequest(request=sent, configuration=old.SendMessageConfiguration(blocking=not immediately))


class Refusal(NamedTuple):
    """What a client learns from an error."""

    code: str
    message: str
    reason: str
    domain: str
    fields: list[str]
    wait: int | None
    metadata: dict[str, Any]


async def refusal(call: Any) -> Refusal:
    """The error that `call`, of whichever kind, ends with."""
    try:
        if hasattr(call, "read"):
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return read_refusal(error)
    raise AssertionError("it was not refused")


async def is_answered(stub: Any, question: Any) -> bool:
    """Whether a GetTask is answered and not refused."""
    try:
        await stub.GetTask(question)
    except grpc.aio.AioRpcError:
        return False
    return True


def read_refusal(error: grpc.aio.AioRpcError) -> Refusal:
    metadata = dict([*(error.trailing_metadata() or ())])
    status = status_pb2.Status.FromString(metadata.get("grpc-status-details-bin", b""))
    info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    wait = None
    for detail in status.details:
        for kind in (info, bad, retry):
            detail.Unpack(kind)
        if detail.Is(retry.DESCRIPTOR):
            wait = retry.retry_delay.seconds
    if status.details:
        assert (status.code, status.message) == (error.code().value[0], error.details())
    fields = [violation.field for violation in bad.field_violations]
    return Refusal(error.code().name, error.details(), info.reason, info.domain, fields, wait, metadata)
