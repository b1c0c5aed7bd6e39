"""errands' own client over gRPC, in both versions, against errands."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from errands import A2AMiddleware, AgentCardConfig, BearerTokenMiddleware, RequestEnvelope
from errands.client.agent_session import TransientError
from errands.client.task_stream import TaskStream
from errands.errors import (
    AuthenticationRequiredError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnavailableError,
    UnsupportedOperationError,
)
from errands.model.core import Part, TaskState
from errands.model.requests import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)
from tests.grpc_binding.serving import over_grpc
from tests.grpc_binding.transport import ask, sending, session_of, stream, transport_to
from tests.interaction.agents import Asks, Direct, Echo, Gated, Parrot, Patient, card

pytestmark = pytest.mark.anyio


PUSH = {
    "CreateTaskPushNotificationConfig": TaskPushNotificationConfig(url="https://example.com", task_id="t", id="c"),
    "GetTaskPushNotificationConfig": GetTaskPushNotificationConfigRequest(task_id="t", id="c"),
    "ListTaskPushNotificationConfigs": ListTaskPushNotificationConfigsRequest(task_id="t"),
    "DeleteTaskPushNotificationConfig": DeleteTaskPushNotificationConfigRequest(task_id="t", id="c"),
}


async def test_a_message_is_sent_and_its_task_is_got(version: str) -> None:
    async with over_grpc(Echo()) as served, transport_to(served.address, version) as transport:
        task = (await ask(transport, "SendMessage", sending())).task
        assert task.status.state is TaskState.COMPLETED
        assert task.artifacts[0].parts == [Part(text="Echo: hi")]
        assert await ask(transport, "GetTask", GetTaskRequest(id=task.id)) == task


async def test_a_direct_answer_is_a_message(version: str) -> None:
    async with over_grpc(Direct()) as served, transport_to(served.address, version) as transport:
        assert (await ask(transport, "SendMessage", sending())).message.parts == [Part(text="You said hi")]


async def test_every_kind_of_part_comes_back(version: str) -> None:
    parts = [
        Part(text="text"),
        Part(raw=b"\x00\xff", filename="a.bin", media_type="application/octet-stream"),
        Part(url="https://example.com/a.txt", filename="a.txt", media_type="text/plain"),
        Part(data={"count": 42, "deep": [1, 2.5, None]}),
        Part(data=[1, "two"]),
    ]
    agent_card = card(input_modes=["*/*"])
    async with (
        over_grpc(Parrot(), agent_card=agent_card) as served,
        transport_to(served.address, version) as transport,
    ):
        task = (await ask(transport, "SendMessage", sending(parts=parts))).task
        returned = [artifact.parts[0] for artifact in task.artifacts]
        assert returned[:3] == parts[:3]
        assert [part.data for part in returned[3:]] == [part.data for part in parts[3:]]
        assert all(part.data is not UNSET for part in returned[3:])


async def test_a_stream_is_followed_to_its_end(version: str) -> None:
    worker = Gated()
    worker.gate.set()
    async with over_grpc(worker) as served, transport_to(served.address, version) as transport:
        received = [one async for one in stream(transport, "SendStreamingMessage", sending())]
        assert received[0].response.task is not None
        assert received[-1].response.status_update is not None
        assert [one.event_id for one in received] == ["1", "2", "3", "4", "5"]


async def test_a_task_is_subscribed_to_and_canceled(version: str) -> None:
    worker = Patient()
    async with over_grpc(worker) as served, transport_to(served.address, version) as transport:
        task = (await ask(transport, "SendMessage", sending(immediately=True))).task
        await worker.started.wait()
        events = stream(transport, "SubscribeToTask", SubscribeToTaskRequest(id=task.id))
        assert (await anext(events)).response.task.id == task.id
        canceled = await ask(transport, "CancelTask", CancelTaskRequest(id=task.id))
        assert canceled.status.state is TaskState.CANCELED
        rest = [one.response async for one in events]
        assert rest[-1].status_update.status.state is TaskState.CANCELED


async def test_a_subscription_goes_on_after_an_event_that_is_named(version: str) -> None:
    async with over_grpc(Echo()) as served, transport_to(served.address, version) as transport:
        task = (await ask(transport, "SendMessage", sending())).task
        events = stream(transport, "SubscribeToTask", SubscribeToTaskRequest(id=task.id), last_event_id="3")
        [last] = [one async for one in events]
        assert last.response.status_update.status.state is TaskState.COMPLETED
        assert (last.event_id, last.gap) == ("4", False)


async def test_tasks_are_listed_over_1_0_and_not_over_0_3(version: str) -> None:
    async with over_grpc(Echo()) as served, transport_to(served.address, version) as transport:
        await ask(transport, "SendMessage", sending())
        if version == "1.0":
            assert (await ask(transport, "ListTasks", ListTasksRequest())).total_size == 1
        else:
            with pytest.raises(UnsupportedOperationError, match="has no ListTasks over gRPC"):
                await ask(transport, "ListTasks", ListTasksRequest())


async def test_the_extended_card_is_read(version: str) -> None:
    async def provider(_: object) -> AgentCardConfig:
        return AgentCardConfig(name="Extended", description="More.")

    async with (
        over_grpc(Echo(), extended_card_provider=provider) as served,
        transport_to(served.address, version) as transport,
    ):
        extended = await ask(transport, "GetExtendedAgentCard", GetExtendedAgentCardRequest())
        assert (extended.name, extended.skills[0].id) == ("Extended", "extended")


@pytest.mark.parametrize("operation", PUSH)
async def test_what_the_agent_does_not_offer_is_its_error(version: str, operation: str) -> None:
    async with (
        over_grpc(Echo(), push_notifications=False) as served,
        transport_to(served.address, version) as transport,
    ):
        with pytest.raises(PushNotificationNotSupportedError):
            await ask(transport, operation, PUSH[operation])


async def test_the_agents_errors_arrive_as_they_were_raised(version: str) -> None:
    async with over_grpc(Echo()) as served, transport_to(served.address, version) as transport:
        with pytest.raises(TaskNotFoundError, match=r"^Task not found$") as not_found:
            await ask(transport, "GetTask", GetTaskRequest(id="nobody"))
        assert not_found.value.metadata == {"taskId": "nobody"}
        with pytest.raises(InvalidParamsError) as invalid:
            await ask(transport, "GetTask", GetTaskRequest(id="x", history_length=-1))
        assert invalid.value.field == "historyLength"
        task = (await ask(transport, "SendMessage", sending())).task
        with pytest.raises(TaskNotCancelableError, match="already completed"):
            await ask(transport, "CancelTask", CancelTaskRequest(id=task.id))
        with pytest.raises(UnsupportedOperationError):
            await anext(stream(transport, "SubscribeToTask", SubscribeToTaskRequest(id=task.id)))


async def test_headers_are_sent_as_metadata(version: str) -> None:
    async def verify(token: str) -> dict[str, Any] | None:
        return {"sub": token} if token == "anna" else None

    async with over_grpc(Echo(), middlewares=[BearerTokenMiddleware(verify)]) as served:
        credentials = {"Authorization": "Bearer anna", "Content-Type": "text/plain", "Host": "elsewhere"}
        async with transport_to(served.address, version, **credentials) as transport:
            assert (await ask(transport, "SendMessage", sending())).task is not None
        async with transport_to(served.address, version) as transport:
            with pytest.raises(AuthenticationRequiredError):
                await ask(transport, "SendMessage", sending())


async def test_not_now_is_tried_again_when_the_agent_says(version: str) -> None:
    class Busy(A2AMiddleware):
        left = 2

        async def before_dispatch(self, envelope: RequestEnvelope, request: Any) -> None:
            if self.left:
                self.left -= 1
                raise UnavailableError(retry_after=0)

    async with over_grpc(Echo(), middlewares=[Busy()]) as served, transport_to(served.address, version) as transport:
        with pytest.raises(TransientError) as failure:
            await ask(transport, "SendMessage", sending())
        assert isinstance(failure.value.cause, UnavailableError)
        assert (failure.value.reached, failure.value.retry_after) == (False, 0)
        assert (await session_of(transport).call("SendMessage", sending())).task is not None


async def test_the_agent_that_asks_ends_the_followed_turn(version: str) -> None:
    async with over_grpc(Asks()) as served, transport_to(served.address, version) as transport:
        follower = TaskStream(session_of(transport), request=sending())
        states = [event.state async for event in follower.events()]
        assert states[-1] == "input-required"
