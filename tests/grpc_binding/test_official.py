"""The official SDK at the other end: its client against our server, and our client against its server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from a2a.client import ClientConfig, ClientFactory
from a2a.compat.v0_3.a2a_v0_3_pb2_grpc import add_A2AServiceServicer_to_server as add_old_service
from a2a.compat.v0_3.grpc_handler import CompatGrpcHandler
from a2a.helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types.a2a_pb2_grpc import add_A2AServiceServicer_to_server as add_service
from a2a.utils.errors import TaskNotCancelableError, TaskNotFoundError

from errands import errors
from errands.client.task_stream import TaskStream
from errands.model.core import Part, TaskState
from errands.model.requests import CancelTaskRequest, GetTaskRequest
from tests.grpc_binding.serving import over_grpc, pb
from tests.grpc_binding.transport import ask, sending, session_of, transport_to
from tests.interaction.agents import Asks, Echo, Gated, Parrot, card

pytestmark = pytest.mark.anyio


def official_card(address: str, version: str) -> Any:
    return pb.AgentCard(
        name="Agent",
        description="An agent.",
        version="1",
        capabilities=pb.AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        supported_interfaces=[
            pb.AgentInterface(url=address, protocol_binding="GRPC", protocol_version=version),
        ],
    )


# Its client, our server


@asynccontextmanager
async def official_client(address: str, version: str, *, streaming: bool = False) -> AsyncIterator[Any]:
    config = ClientConfig(
        streaming=streaming,
        supported_protocol_bindings=["GRPC"],
        grpc_channel_factory=grpc.aio.insecure_channel,
    )
    client = ClientFactory(config).create(official_card(address, version))
    try:
        yield client
    finally:
        await client.close()


def official_message(text: str = "hi", parts: Any = None, **fields: Any) -> Any:
    message = pb.Message(message_id="m-1", role=pb.ROLE_USER, parts=parts or [pb.Part(text=text)], **fields)
    return pb.SendMessageRequest(message=message)


async def test_the_official_client_sends_gets_and_cancels(version: str) -> None:
    async with over_grpc(Echo()) as served, official_client(served.address, version) as client:
        [answer] = [event async for event in client.send_message(official_message())]
        task = await client.get_task(pb.GetTaskRequest(id=answer.task.id))
        assert task.artifacts[0].parts[0].text == "Echo: hi"
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(pb.CancelTaskRequest(id=task.id))
        with pytest.raises(TaskNotFoundError):
            await client.get_task(pb.GetTaskRequest(id="nobody"))


async def test_the_official_client_follows_a_stream(version: str) -> None:
    worker = Gated()
    worker.gate.set()
    async with over_grpc(worker) as served, official_client(served.address, version, streaming=True) as client:
        events = [event async for event in client.send_message(official_message())]
        assert [event.WhichOneof("payload") for event in events] == [
            "task",
            "status_update",
            "artifact_update",
            "artifact_update",
            "status_update",
        ]
        assert events[-1].status_update.status.state == pb.TASK_STATE_COMPLETED


async def test_the_official_client_subscribes(version: str) -> None:
    worker = Gated()
    async with over_grpc(worker) as served, official_client(served.address, version, streaming=True) as client:
        events = client.send_message(official_message())
        task_id = (await anext(events)).task.id
        await worker.started.wait()
        subscription = client.subscribe(pb.SubscribeToTaskRequest(id=task_id))
        assert (await anext(subscription)).task.id == task_id
        worker.gate.set()
        assert [event async for event in subscription][-1].status_update.status.state == pb.TASK_STATE_COMPLETED
        assert [event async for event in events]


async def test_the_official_client_answers_a_question(version: str) -> None:
    async with over_grpc(Asks()) as served, official_client(served.address, version) as client:
        [asked] = [event async for event in client.send_message(official_message("hello"))]
        assert asked.task.status.state == pb.TASK_STATE_INPUT_REQUIRED
        request = official_message("French", task_id=asked.task.id, context_id=asked.task.context_id)
        [done] = [event async for event in client.send_message(request)]
        assert done.task.artifacts[0].parts[0].text == "hello in French"


async def test_the_official_clients_parts_come_back(version: str) -> None:
    parts = [
        pb.Part(text="text"),
        pb.Part(raw=b"\x00\xff", filename="a.bin", media_type="application/octet-stream"),
        pb.Part(url="https://example.com/a.txt", filename="a.txt", media_type="text/plain"),
        pb.Part(),
        pb.Part(),
    ]
    parts[3].data.struct_value.update({"count": 42})
    parts[4].data.number_value = 7
    async with (
        over_grpc(Parrot(), agent_card=card(input_modes=["*/*"])) as served,
        official_client(served.address, version) as client,
    ):
        [answer] = [event async for event in client.send_message(official_message(parts=parts))]
        assert [artifact.parts[0] for artifact in answer.task.artifacts] == parts


# Our client, its server


class OfficialAgent(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        task = context.current_task or new_task_from_user_message(context.message)
        if context.current_task is None:
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        for number, part in enumerate(context.message.parts):
            await updater.add_artifact([part], artifact_id=f"part-{number}")
        await updater.add_artifact([new_text_part(f"Echo: {context.get_user_input()}")], artifact_id="echo")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


@asynccontextmanager
async def official_server() -> AsyncIterator[str]:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    handler = DefaultRequestHandler(
        agent_executor=OfficialAgent(),
        task_store=InMemoryTaskStore(),
        agent_card=official_card(f"127.0.0.1:{port}", "1.0"),
    )
    add_service(GrpcHandler(handler), server)  # type: ignore[no-untyped-call]
    add_old_service(CompatGrpcHandler(handler), server)  # type: ignore[no-untyped-call]
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_our_client_sends_to_the_official_server(version: str) -> None:
    parts = [Part(text="hi"), Part(raw=b"\x00\xff", filename="a.bin"), Part(data={"count": 42})]
    async with official_server() as address, transport_to(address, version) as transport:
        task = (await ask(transport, "SendMessage", sending(parts=parts))).task
        assert task.status.state is TaskState.COMPLETED
        returned = [artifact.parts[0] for artifact in task.artifacts]
        assert [(part.text, part.raw, part.data, part.filename) for part in returned] == [
            (part.text, part.raw, part.data, part.filename) for part in [*parts, Part(text="Echo: hi")]
        ]
        assert (await ask(transport, "GetTask", GetTaskRequest(id=task.id))).id == task.id


async def test_our_client_follows_a_stream_of_the_official_server(version: str) -> None:
    async with official_server() as address, transport_to(address, version) as transport:
        events = [event async for event in TaskStream(session_of(transport), request=sending()).events()]
        assert events[0].kind == "task"
        assert events[-1].state == "completed"
        assert [event.text for event in events if event.kind == "artifact"] == ["hi", "Echo: hi"]


async def test_our_client_understands_the_official_servers_errors(version: str) -> None:
    async with official_server() as address, transport_to(address, version) as transport:
        with pytest.raises(errors.TaskNotFoundError):
            await ask(transport, "GetTask", GetTaskRequest(id="nobody"))
        task = (await ask(transport, "SendMessage", sending())).task
        with pytest.raises(errors.TaskNotCancelableError):
            await ask(transport, "CancelTask", CancelTaskRequest(id=task.id))
