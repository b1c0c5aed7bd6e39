"""What one client can make a server hold or do over gRPC, and that others do not notice."""

from __future__ import annotations

import asyncio
import resource
import socket
from contextlib import closing
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from errands import BearerTokenMiddleware, Settings, TaskContext, Worker
from errands.server import grpc as grpc_binding
from errands.wire.proto.codec import CODECS, Codec
from tests.grpc_binding.http2 import Connection
from tests.grpc_binding.serving import Served, is_answered, old_send, over_grpc, pb, read_refusal, refusal, send
from tests.grpc_binding.test_refusals import METHODS, raw_call, tasks_of, verify
from tests.interaction.agents import Echo
from tests.waiting import SOON

pytestmark = pytest.mark.anyio

SEND = f"/{CODECS['1.0'].service}/SendMessage"
GET = f"/{CODECS['1.0'].service}/GetTask"


def small(**bounds: int) -> Settings:
    return Settings(storage="memory", **{"max_body_bytes": 100_000, **bounds})  # type: ignore[arg-type]


# Authentication


@pytest.mark.parametrize(("codec", "operation"), METHODS)
async def test_without_a_token_no_message_is_decoded(codec: Codec, operation: str) -> None:
    async with over_grpc(Echo(), middlewares=[BearerTokenMiddleware(verify)]) as served:
        refused = await refusal(raw_call(served, codec, operation, b"\xff"))
        assert refused.code == "UNAUTHENTICATED"


@pytest.mark.parametrize(("codec", "operation"), METHODS)
async def test_without_a_token_no_message_is_waited_for(codec: Codec, operation: str) -> None:
    rpc = codec.rpcs[operation]
    async with over_grpc(Echo(), middlewares=[BearerTokenMiddleware(verify)]) as served:
        make = served.channel.stream_stream if rpc.operation.streams else served.channel.stream_unary
        refused = await refusal(make(f"/{codec.service}/{rpc.name}")())
        assert refused.code == "UNAUTHENTICATED"


async def test_a_call_without_a_message_is_refused() -> None:
    async with over_grpc(Echo()) as served:
        refused = await refusal(served.channel.stream_unary(SEND)(iter(())))
        assert (refused.code, refused.message) == ("INVALID_ARGUMENT", "The call has no message")


# The size of a message

CROWDED = {
    "parts": send(parts=[pb.Part(text="x")] * 200),
    "items": send(parts=[pb.Part(data={"list_value": {"values": [{"bool_value": True}] * 200}})]),
    "members": send(parts=[pb.Part(data={"struct_value": {"fields": {str(i): {} for i in range(200)}}})]),
    "extensions": send(extensions=["urn:x"] * 200),
}


@pytest.mark.parametrize("kind", CROWDED)
async def test_a_message_with_too_many_values_is_refused(kind: str) -> None:
    async with over_grpc(Echo(), settings=small(max_message_values=150)) as served:
        refused = await refusal(served.v1_0.SendMessage(CROWDED[kind]))
        assert (refused.code, refused.reason) == ("RESOURCE_EXHAUSTED", "PAYLOAD_TOO_LARGE")
        assert "max_message_values" in refused.message
        assert await tasks_of(served) == 0


async def test_a_message_with_too_many_parts_is_refused() -> None:
    async with over_grpc(Echo(), settings=small(max_message_parts=199)) as served:
        for call in (
            served.v1_0.SendMessage(CROWDED["parts"]),
            served.v0_3.SendMessage(old_send(content=list(old_send().request.content) * 200)),
        ):
            refused = await refusal(call)
            assert (refused.code, refused.reason) == ("RESOURCE_EXHAUSTED", "PAYLOAD_TOO_LARGE")
            assert "max_message_parts" in refused.message


@pytest.mark.parametrize("size", [1_000, 1_000_000])
async def test_what_is_wrong_with_a_message_is_told_whatever_its_size(size: int) -> None:
    async with over_grpc(Echo()) as served:
        refused = await refusal(served.v1_0.SendMessage(send("x" * size, role=0)))
        assert (refused.code, refused.fields) == ("INVALID_ARGUMENT", ["message.role"])


async def test_a_compressed_message_is_bounded_by_what_it_unpacks_to() -> None:
    async with over_grpc(Echo(), settings=small()) as served:
        packed = served.v1_0.SendMessage(send("x" * 10_000_000), compression=grpc.Compression.Gzip)
        assert (await refusal(packed)).code == "RESOURCE_EXHAUSTED"
        assert (await served.v1_0.SendMessage(send("x" * 90_000), compression=grpc.Compression.Gzip)).task.id


async def test_metadata_is_bounded() -> None:
    async with over_grpc(Echo()) as served:
        refused = await refusal(served.v1_0.SendMessage(send(), metadata=(("x-large", "y" * 100_000),)))
        assert refused.code == "RESOURCE_EXHAUSTED"


# What all calls hold together


async def test_of_too_many_messages_that_do_not_arrive_the_oldest_is_refused() -> None:
    async with over_grpc(Echo(), settings=small(max_buffered_bytes=200_000)) as served:
        parked = []
        for _ in range(3):
            parked.append(served.channel.stream_unary(SEND)())
            # An answer on the same connection: the call before it has begun, too.
            assert (await served.v1_0.SendMessage(send(message_id=f"m{len(parked)}"))).task.id
        refused = await refusal(parked[0])
        assert (refused.code, refused.reason) == ("UNAVAILABLE", "OVERLOADED")
        assert "took too long to arrive" in refused.message
        assert refused.wait is not None
        assert not any(call.done() for call in parked[1:])
        for call in parked[1:]:
            call.cancel()


class Large(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete("x" * int(ctx.user_text))


async def test_answers_that_are_not_read_take_no_more_than_their_share() -> None:
    async with over_grpc(Large(), settings=small(max_buffered_bytes=500_000)) as served:
        task = (await served.v1_0.SendMessage(send("50000"))).task
        question = pb.GetTaskRequest(id=task.id)
        assert served.server.grpc_port is not None
        with closing(await asyncio.to_thread(Connection, served.server.grpc_port, window=0)) as connection:
            refused = await until_refused(served, question, connection)
            assert (refused.code, refused.reason) == ("UNAVAILABLE", "OVERLOADED")
            assert "max_buffered_bytes" in refused.message
            assert (await served.v1_0.SendMessage(send("10", message_id="m-2"))).task.id
        async with asyncio.timeout(SOON):
            while not await is_answered(served.v1_0, question):
                pass


async def until_refused(served: Served, question: Any, connection: Connection) -> Any:
    """Call over a connection that does not read its answers until another call is refused.

    Which call is refused first depends on which are converted at the same time, so there is no number that is enough.
    """
    async with asyncio.timeout(SOON):
        while True:
            await asyncio.to_thread(connection.call, GET, question.SerializeToString())
            try:
                await served.v1_0.GetTask(question)
            except grpc.aio.AioRpcError as error:
                return read_refusal(error)


async def test_a_large_message_counts_until_its_call_has_ended() -> None:
    async with over_grpc(Echo(), settings=small(max_buffered_bytes=150_000)) as served:
        for number in range(5):
            assert (await served.v1_0.SendMessage(send("x" * 60_000, message_id=f"m{number}"))).task.id


async def test_connections_leave_files_for_others() -> None:
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(files, 1024), most))
    try:
        async with over_grpc(Echo()) as served:
            assert served.server.grpc_port is not None
            allowed = min(files, 1024) // 8
            connections = [socket.create_connection(("127.0.0.1", served.server.grpc_port)) for _ in range(allowed + 9)]
            greeted = await asyncio.gather(*(asyncio.to_thread(each.recv, 9) for each in connections))
            for connection in connections:
                connection.close()
            assert len([greeting for greeting in greeted if greeting]) <= allowed
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))


# Health and reflection


async def test_watchers_learn_that_a_server_stops_whoever_else_does_not_read() -> None:
    async with over_grpc(Echo()) as served:
        assert served.server.grpc_port is not None
        connection = await asyncio.to_thread(Connection, served.server.grpc_port, window=0)
        await asyncio.to_thread(connection.call, "/grpc.health.v1.Health/Watch")
        health: Any = health_pb2_grpc.HealthStub(served.channel)
        watching = aiter(health.Watch(health_pb2.HealthCheckRequest()))
        assert (await anext(watching)).status == health_pb2.HealthCheckResponse.SERVING
        await served.server.drain()
        assert (await anext(watching)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        connection.close()


async def test_streams_of_health_and_reflection_are_bounded_and_checks_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_binding, "MOST_PUBLIC_STREAMS", 2)
    async with over_grpc(Echo()) as served:
        health: Any = health_pb2_grpc.HealthStub(served.channel)
        reflection: Any = reflection_pb2_grpc.ServerReflectionStub(served.channel)
        request = health_pb2.HealthCheckRequest()
        watching = [aiter(health.Watch(request)) for _ in range(2)]
        for watcher in watching:
            await anext(watcher)
        asked = reflection.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        for call in (health.Watch(request), asked):
            assert (await refusal(call)).code == "UNAVAILABLE"
        assert (await health.Check(request)).status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("method", ["grpc.health.v1.Health/Check", "grpc.health.v1.Health/Watch"])
async def test_a_question_about_health_that_cannot_be_read_is_refused(method: str) -> None:
    async with over_grpc(Echo()) as served:
        make = served.channel.unary_unary if method.endswith("Check") else served.channel.unary_stream
        assert (await refusal(make(f"/{method}")(b"\xff"))).code == "INVALID_ARGUMENT"


async def test_the_health_of_a_service_that_is_not_there_is_unknown() -> None:
    async with over_grpc(Echo()) as served:
        health: Any = health_pb2_grpc.HealthStub(served.channel)
        request = health_pb2.HealthCheckRequest(service="nobody")
        assert (await refusal(health.Check(request))).code == "NOT_FOUND"
        assert (await anext(aiter(health.Watch(request)))).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
