"""Deadlines, clients that go away, health, reflection, and a server that stops."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from typing import Any

import grpc.aio
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from errands import A2AMiddleware, A2AServer, LifecycleHooks, Message, RequestEnvelope, Settings, Task
from errands.errors import ConfigurationError
from errands.testing import http_client, serve
from tests.grpc_binding.serving import Served, over_grpc, pb, refusal, send, watched
from tests.interaction.agents import Echo, Gated
from tests.waiting import happens, until

pytestmark = pytest.mark.anyio

#: Seconds. What is looked at is a deadline that passes when the work has begun; a slow machine needs a longer one.
DEADLINES = (0.3, 3.0, 30.0)
SERVICES = {"lf.a2a.v1.A2AService", "a2a.v1.A2AService"}


async def only_task(served: Served) -> Any:
    [task] = (await served.v1_0.ListTasks(pb.ListTasksRequest(include_artifacts=True))).tasks
    return task


# Clients that go away


async def test_a_deadline_ends_a_blocking_send_and_the_task_goes_on(storage: str) -> None:
    worker = Gated()
    async with over_grpc(worker, storage=storage) as served:
        for deadline in DEADLINES:
            refused = await refusal(served.v1_0.SendMessage(send(), timeout=deadline))
            assert refused.code == "DEADLINE_EXCEEDED"
            if worker.started.is_set():
                break
        await worker.started.wait()
        await until(lambda: not watched(served.server))
        task = await only_task(served)
        assert task.status.state == pb.TASK_STATE_WORKING
        stream = aiter(served.v1_0.SubscribeToTask(pb.SubscribeToTaskRequest(id=task.id)))
        await anext(stream)
        worker.gate.set()
        assert [event async for event in stream][-1].status_update.status.state == pb.TASK_STATE_COMPLETED


async def test_a_canceled_blocking_send_leaves_nothing_behind(storage: str) -> None:
    worker = Gated()
    async with over_grpc(worker, storage=storage) as served:
        call = served.v1_0.SendMessage(send())
        await worker.started.wait()
        assert watched(served.server)
        before = asyncio.all_tasks()
        call.cancel()
        await until(lambda: not watched(served.server))
        await until(lambda: len(asyncio.all_tasks()) < len(before))
        assert (await only_task(served)).status.state == pb.TASK_STATE_WORKING
        worker.gate.set()


@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_a_stream_that_is_given_up_leaves_nothing_behind(how: str, storage: str) -> None:
    worker = Gated()
    async with over_grpc(worker, storage=storage) as served:
        if how == "cancel":
            call = served.v1_0.SendStreamingMessage(send())
            await anext(aiter(call))
            await worker.started.wait()
            call.cancel()
        else:
            for deadline in DEADLINES:
                with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE_EXCEEDED"):
                    [event async for event in served.v1_0.SendStreamingMessage(send(), timeout=deadline)]
                if worker.started.is_set():
                    break
            await worker.started.wait()
        await until(lambda: not watched(served.server))
        assert (await only_task(served)).status.state == pb.TASK_STATE_WORKING
        worker.gate.set()


class Lingers(A2AMiddleware):
    """Waits for the test after each request, or fails."""

    def __init__(self, *, fails: bool) -> None:
        self.fails = fails
        self.reached = asyncio.Event()

    async def after_dispatch(self, envelope: RequestEnvelope, result: Task | Message | None = None) -> None:
        self.reached.set()
        if self.fails:
            raise RuntimeError
        await asyncio.Event().wait()


@pytest.mark.parametrize("fails", [False, True], ids=["waits", "fails"])
async def test_a_stream_is_closed_when_middleware_ends_its_request(fails: bool) -> None:
    worker, middleware = Gated(), Lingers(fails=fails)
    async with over_grpc(worker, middlewares=[middleware]) as served:
        call = served.v1_0.SendStreamingMessage(send())
        reading = asyncio.ensure_future(refusal(call.read()))
        await middleware.reached.wait()
        if not fails:
            call.cancel()
        await asyncio.wait([reading])
        await until(lambda: not watched(served.server))
        worker.gate.set()


async def test_a_client_that_goes_away_during_the_commit_does_not_stop_the_task(storage: str) -> None:
    committing, go_on = asyncio.Event(), asyncio.Event()

    async def hold(*_: object) -> None:
        committing.set()
        await go_on.wait()

    ended = asyncio.Event()

    async def end(*_: object) -> None:
        ended.set()

    hooks = LifecycleHooks(on_working=hold, on_terminal=end)
    for method in ("SendMessage", "SendStreamingMessage"):
        committing.clear()
        go_on.clear()
        ended.clear()
        async with over_grpc(Echo(), storage=storage, hooks=hooks) as served:
            call = getattr(served.v1_0, method)(send(message_id=method))
            await committing.wait()
            call.cancel()
            # The server has heard of it once a later call of the same connection is answered.
            await served.v1_0.ListTasks(pb.ListTasksRequest())
            go_on.set()
            await happens(ended)
            await until(lambda served=served: not watched(served.server))


# Stopping


async def health_of(served: Served, service: str = "") -> str:
    stub: Any = health_pb2_grpc.HealthStub(served.channel)
    status = (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status
    name: str = health_pb2.HealthCheckResponse.ServingStatus.Name(status)
    return name


@pytest.mark.parametrize("service", ["", *sorted(SERVICES)])
async def test_a_server_is_healthy_until_it_drains(service: str) -> None:
    worker = Gated()
    async with over_grpc(worker) as served:
        assert await health_of(served, service) == "SERVING"
        call = served.v1_0.SendMessage(send())
        await worker.started.wait()
        draining = asyncio.create_task(served.server.drain())
        await until(lambda: served.server.pool.draining)
        assert await health_of(served, service) == "NOT_SERVING"
        refused = await refusal(served.v1_0.SendMessage(send(message_id="m-2")))
        assert (refused.code, refused.reason) == ("UNAVAILABLE", "UNAVAILABLE")
        assert refused.wait is not None
        worker.gate.set()
        assert (await call).task.status.state == pb.TASK_STATE_COMPLETED
        await draining


async def test_stopping_lets_what_runs_finish_and_ends_the_streams() -> None:
    worker = Gated()
    server = serve(worker, grpc_port=0)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        served = Served(server, channel)
        sent = served.v1_0.SendMessage(send())
        await worker.started.wait()
        task = await only_task(served)
        stream = aiter(served.v1_0.SubscribeToTask(pb.SubscribeToTaskRequest(id=task.id)))
        await anext(stream)
        stopping = asyncio.create_task(server.stop())
        await until(lambda: server.pool.draining)
        worker.gate.set()
        assert (await sent).task.status.state == pb.TASK_STATE_COMPLETED
        assert [event async for event in stream][-1].status_update.status.state == pb.TASK_STATE_COMPLETED
        await stopping
        assert server.grpc_port is None


async def test_a_stream_that_the_server_ends_says_that_the_task_goes_on() -> None:
    worker = Gated()
    server = serve(worker, grpc_port=0)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stream = aiter(Served(server, channel).v1_0.SendStreamingMessage(send()))
        await anext(stream)
        await worker.started.wait()
        server.engine.disconnect()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            async for _ in stream:
                pass
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        worker.gate.set()
        await server.stop()


async def test_a_server_may_be_started_again_after_it_was_stopped() -> None:
    server = serve(Echo(), grpc_port=0)
    for _ in range(2):
        async with over_grpc(server) as served:
            assert (await served.v1_0.SendMessage(send())).task.id


async def test_a_port_that_is_taken_is_told_at_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = serve(Echo(), grpc_port=taken.getsockname()[1])
        with pytest.raises(ConfigurationError, match="gRPC cannot listen on port"):
            await server.start()


# Reflection


async def reflect(served: Served, **question: Any) -> Any:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(served.channel)
    request = reflection_pb2.ServerReflectionRequest(**question)
    return await anext(aiter(stub.ServerReflectionInfo(iter([request]))))


async def test_the_services_can_be_listed() -> None:
    async with over_grpc(Echo()) as served:
        answer = await reflect(served, list_services="")
        names = {service.name for service in answer.list_services_response.service}
        assert names >= SERVICES | {"grpc.health.v1.Health"}


@pytest.mark.parametrize("service", sorted(SERVICES))
async def test_the_services_describe_themselves(service: str) -> None:
    async with over_grpc(Echo()) as served:
        answer = await reflect(served, file_containing_symbol=service)
        files = [FileDescriptorProto.FromString(raw) for raw in answer.file_descriptor_response.file_descriptor_proto]
        assert "SendMessage" in {method.name for file in files for one in file.service for method in one.method}


# The card, and the extra


async def addresses_on_the_card(server: A2AServer) -> dict[str, str]:
    """The gRPC interfaces, by version, as somebody sees them who asked at agent.test."""
    async with http_client(server) as http:
        card = (await http.get("/.well-known/agent-card.json")).json()
    found = [one for one in card["supportedInterfaces"] if one["protocolBinding"] == "GRPC"]
    return {one["protocolVersion"]: one["url"] for one in found}


async def test_the_card_says_where_grpc_is() -> None:
    server = serve(Echo(), grpc_port=0)
    async with server:
        address = f"127.0.0.1:{server.grpc_port}"
        assert await addresses_on_the_card(server) == {"1.0": address, "0.3": address}


async def test_a_server_without_grpc_offers_none() -> None:
    server = serve(Echo())
    async with server:
        assert server.grpc_port is None
        assert await addresses_on_the_card(server) == {}


async def test_on_every_address_the_card_names_the_one_that_the_client_used() -> None:
    server = serve(Echo(), settings=Settings(storage="memory", grpc_port=0, grpc_host="0.0.0.0"))
    async with server:
        assert (await addresses_on_the_card(server))["1.0"] == f"agent.test:{server.grpc_port}"


async def test_behind_a_public_address_the_card_names_its_host_or_what_the_operator_says() -> None:
    server = serve(Echo(), grpc_port=0, public_url="https://agent.example.com/path")
    async with server:
        assert (await addresses_on_the_card(server))["1.0"] == f"agent.example.com:{server.grpc_port}"
    for address in ("grpc.example.com:443", "https://agent.example.com", "http://127.0.0.1:8000"):
        server.settings.public_grpc = address
        async with server:
            assert set((await addresses_on_the_card(server)).values()) == {address}


async def test_the_operator_can_leave_grpc_off_the_card() -> None:
    server = serve(Echo(), settings=Settings(storage="memory", grpc_port=0, public_grpc="off"))
    async with server:
        assert await addresses_on_the_card(server) == {}
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize(
    "address", ["agent.example.com", "ftp://agent.example.com", "https://", "agent:port", ":1", ""]
)
async def test_a_public_address_of_grpc_that_no_client_can_call_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="public_grpc"):
        serve(Echo(), settings=Settings(storage="memory", grpc_port=0, public_grpc=address))


WITHOUT_GRPC = """
import sys
for name in ("grpc", "google.protobuf", "a2a"):
    sys.modules[name] = None
import errands, errands.cli.main, errands.client, errands.server.app
from errands.testing import serve
from errands.errors import ConfigurationError

@errands.agent(name="Echo", description="Echoes.")
async def echo(text: str) -> str:
    return text

serve(echo)
try:
    serve(echo, grpc_port=0)
except ConfigurationError as error:
    print(error)
"""


def test_without_the_extra_everything_else_works_and_the_error_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_GRPC], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert "pip install 'errands[grpc]'" in done.stdout
