"""Every operation through the official stubs, in both versions, over a socket."""

from __future__ import annotations

import pytest
from google.protobuf.unknown_fields import UnknownFieldSet

from errands import AgentCardConfig
from errands.wire.proto.codec import ASKING, Position, position_of
from tests.grpc_binding.serving import old, old_send, over_grpc, pb, refusal, send
from tests.interaction.agents import Asks, Direct, Echo, Gated, Parrot, Patient, card

pytestmark = pytest.mark.anyio

PUSH_1_0 = {
    "CreateTaskPushNotificationConfig": pb.TaskPushNotificationConfig(task_id="t", url="https://example.com"),
    "GetTaskPushNotificationConfig": pb.GetTaskPushNotificationConfigRequest(task_id="t", id="c"),
    "ListTaskPushNotificationConfigs": pb.ListTaskPushNotificationConfigsRequest(task_id="t"),
    "DeleteTaskPushNotificationConfig": pb.DeleteTaskPushNotificationConfigRequest(task_id="t", id="c"),
}
_CONFIG = "tasks/t/pushNotificationConfigs/c"
PUSH_0_3 = {
    "CreateTaskPushNotificationConfig": old.CreateTaskPushNotificationConfigRequest(
        parent="tasks/t",
        config_id="c",
        config=old.TaskPushNotificationConfig(
            name=_CONFIG, push_notification_config=old.PushNotificationConfig(url="https://example.com")
        ),
    ),
    "GetTaskPushNotificationConfig": old.GetTaskPushNotificationConfigRequest(name=_CONFIG),
    "ListTaskPushNotificationConfig": old.ListTaskPushNotificationConfigRequest(parent="tasks/t"),
    "DeleteTaskPushNotificationConfig": old.DeleteTaskPushNotificationConfigRequest(name=_CONFIG),
}


# Version 1.0


async def test_a_blocking_send_answers_with_the_completed_task(storage: str) -> None:
    async with over_grpc(Echo(), storage=storage) as served:
        task = (await served.v1_0.SendMessage(send("hi"))).task
        assert task.status.state == pb.TASK_STATE_COMPLETED
        assert task.status.timestamp.seconds > 0
        assert task.artifacts[0].parts[0].text == "Echo: hi"
        assert [entry.role for entry in task.history] == [pb.ROLE_USER]


async def test_a_send_that_returns_immediately_does_not_wait(storage: str) -> None:
    worker = Gated()
    async with over_grpc(worker, storage=storage) as served:
        task = (await served.v1_0.SendMessage(send(immediately=True))).task
        assert task.status.state in (pb.TASK_STATE_SUBMITTED, pb.TASK_STATE_WORKING)
        worker.gate.set()


async def test_calls_are_counted_by_operation_and_outcome() -> None:
    async with over_grpc(Echo()) as served:
        await served.v1_0.SendMessage(send("hi"))
        await served.v0_3.SendMessage(old_send("hi"))
        await refusal(served.v1_0.GetTask(pb.GetTaskRequest(id="unknown")))
        assert served.server.reporter is not None
        [shown] = served.server.reporter.exposed()
        requests = {tuple(one.labels.values()): one.value for one in shown.samples if "requests_total" in one.name}
        assert requests == {("SendMessage", "grpc", "ok"): 2, ("GetTask", "grpc", "TASK_NOT_FOUND"): 1}


async def test_an_agent_may_answer_with_a_message() -> None:
    async with over_grpc(Direct()) as served:
        response = await served.v1_0.SendMessage(send("hi"))
        assert response.message.parts[0].text == "You said hi"
        assert response.message.role == pb.ROLE_AGENT


async def test_a_stream_shows_the_task_its_chunks_and_its_end(storage: str) -> None:
    worker = Gated()
    worker.gate.set()
    async with over_grpc(worker, storage=storage) as served:
        events = [event async for event in served.v1_0.SendStreamingMessage(send())]
        assert [event.WhichOneof("payload") for event in events] == [
            "task",
            "status_update",
            "artifact_update",
            "artifact_update",
            "status_update",
        ]
        assert [event.artifact_update.append for event in events[2:4]] == [False, True]
        assert events[3].artifact_update.last_chunk
        assert events[-1].status_update.status.state == pb.TASK_STATE_COMPLETED


async def test_a_subscriber_sees_the_task_as_it_is_and_what_follows(storage: str) -> None:
    worker = Gated()
    async with over_grpc(worker, storage=storage) as served:
        task = (await served.v1_0.SendMessage(send(immediately=True))).task
        await worker.started.wait()
        stream = aiter(served.v1_0.SubscribeToTask(pb.SubscribeToTaskRequest(id=task.id)))
        assert (await anext(stream)).task.artifacts[0].parts[0].text == "first "
        worker.gate.set()
        rest = [event.WhichOneof("payload") async for event in stream]
        assert rest == ["artifact_update", "status_update"]


async def test_a_subscriber_that_names_its_last_event_gets_what_it_missed(storage: str) -> None:
    async with over_grpc(Echo(), storage=storage) as served:
        task = (await served.v1_0.SendMessage(send())).task
        stream = served.v1_0.SubscribeToTask(pb.SubscribeToTaskRequest(id=task.id), metadata=(("last-event-id", "2"),))
        assert [event.WhichOneof("payload") async for event in stream] == ["artifact_update", "status_update"]


async def test_who_does_not_ask_for_the_events_ids_sees_nothing_that_the_schema_does_not_have() -> None:
    async with over_grpc(Echo()) as served:
        plain = [event async for event in served.v1_0.SendStreamingMessage(send())]
        assert [len(UnknownFieldSet(event)) for event in plain] == [0, 0, 0, 0]
        asked = served.v1_0.SendStreamingMessage(send(message_id="m-2"), metadata=(ASKING,))
        assert [position_of(event.SerializeToString()) for event in [one async for one in asked]] == [
            Position(version, False) for version in (1, 2, 3, 4)
        ]


async def test_a_task_is_got_with_as_much_history_as_is_wanted() -> None:
    async with over_grpc(Echo()) as served:
        task = (await served.v1_0.SendMessage(send())).task
        assert len((await served.v1_0.GetTask(pb.GetTaskRequest(id=task.id))).history) == 1
        assert not (await served.v1_0.GetTask(pb.GetTaskRequest(id=task.id, history_length=0))).history


async def test_tasks_are_listed_by_every_filter() -> None:
    async with over_grpc(Echo()) as served:
        for number in range(3):
            await served.v1_0.SendMessage(send(message_id=f"m-{number}", context_id=f"c-{number % 2}"))
        page = await served.v1_0.ListTasks(pb.ListTasksRequest(page_size=2))
        assert (len(page.tasks), page.page_size, page.total_size) == (2, 2, 3)
        assert not page.tasks[0].artifacts
        rest = await served.v1_0.ListTasks(pb.ListTasksRequest(page_size=2, page_token=page.next_page_token))
        assert (len(rest.tasks), rest.next_page_token) == (1, "")
        chosen = await served.v1_0.ListTasks(
            pb.ListTasksRequest(context_id="c-1", status=pb.TASK_STATE_COMPLETED, include_artifacts=True)
        )
        assert [task.artifacts[0].parts[0].text for task in chosen.tasks] == ["Echo: hi"]
        late = pb.ListTasksRequest()
        late.status_timestamp_after.FromJsonString("2999-01-01T00:00:00Z")
        assert (await served.v1_0.ListTasks(late)).total_size == 0


async def test_a_running_task_is_canceled(storage: str) -> None:
    worker = Patient()
    async with over_grpc(worker, storage=storage) as served:
        task = (await served.v1_0.SendMessage(send(immediately=True))).task
        await worker.started.wait()
        canceled = await served.v1_0.CancelTask(pb.CancelTaskRequest(id=task.id))
        assert canceled.status.state == pb.TASK_STATE_CANCELED


async def test_a_paused_task_goes_on_with_the_users_answer() -> None:
    async with over_grpc(Asks()) as served:
        asked = (await served.v1_0.SendMessage(send("hello"))).task
        assert asked.status.message.parts[0].text == "Which language?"
        done = (await served.v1_0.SendMessage(send("French", message_id="m-2", task_id=asked.id))).task
        assert done.artifacts[0].parts[0].text == "hello in French"


async def test_every_kind_of_part_goes_through_the_agent_and_back() -> None:
    parts = [
        pb.Part(text="text"),
        pb.Part(raw=b"\x00\xff", filename="a.bin", media_type="application/octet-stream"),
        pb.Part(url="https://example.com/a.txt", filename="a.txt", media_type="text/plain"),
        pb.Part(),
    ]
    parts[3].data.struct_value.update({"count": 42, "share": 0.5, "deep": [1, None, True, "x"]})
    async with over_grpc(Parrot(), agent_card=card(input_modes=["*/*"])) as served:
        task = (await served.v1_0.SendMessage(send(parts=parts))).task
        assert [artifact.parts[0] for artifact in task.artifacts] == parts


async def test_an_integer_reaches_the_agent_as_an_integer() -> None:
    seen = []

    class Looks(Echo):
        async def handle(self, ctx):  # type: ignore[no-untyped-def]
            seen.append((ctx.data_parts, ctx.metadata))
            await ctx.complete()

    part = pb.Part()
    part.data.struct_value.update({"count": 42})
    request = send(parts=[part])
    request.message.metadata.update({"limit": 7})
    async with over_grpc(Looks()) as served:
        await served.v1_0.SendMessage(request)
    [([data], metadata)] = seen
    assert (data, type(data["count"])) == ({"count": 42}, int)
    assert type(metadata["limit"]) is int


async def test_the_extended_card_is_given() -> None:
    async def provider(_: object) -> AgentCardConfig:
        return AgentCardConfig(name="Extended", description="More.")

    async with over_grpc(Echo(), extended_card_provider=provider, public_url="https://example.com") as served:
        extended = await served.v1_0.GetExtendedAgentCard(pb.GetExtendedAgentCardRequest())
        assert extended.name == "Extended"
        assert extended.supported_interfaces[0].url == "https://example.com/"
        older = await served.v0_3.GetAgentCard(old.GetAgentCardRequest())
        assert (older.name, older.url, older.protocol_version) == ("Extended", "https://example.com/", "0.3.0")


async def test_tenants_do_not_see_each_others_tasks() -> None:
    async with over_grpc(Echo()) as served:
        request = send()
        request.tenant = "acme"
        task = (await served.v1_0.SendMessage(request)).task
        assert (await served.v1_0.GetTask(pb.GetTaskRequest(id=task.id, tenant="acme"))).id == task.id
        assert (await refusal(served.v1_0.GetTask(pb.GetTaskRequest(id=task.id)))).reason == "TASK_NOT_FOUND"


@pytest.mark.parametrize("method", PUSH_1_0)
async def test_push_notifications_are_refused_while_the_card_does_not_offer_them(method: str) -> None:
    async with over_grpc(Echo(), push_notifications=False) as served:
        refused = await refusal(getattr(served.v1_0, method)(PUSH_1_0[method]))
        assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "PUSH_NOTIFICATION_NOT_SUPPORTED")


async def test_a_send_that_wants_push_notifications_is_refused_likewise() -> None:
    request = send()
    request.configuration.task_push_notification_config.url = "https://example.com"
    async with over_grpc(Echo(), push_notifications=False) as served:
        assert (await refusal(served.v1_0.SendMessage(request))).reason == "PUSH_NOTIFICATION_NOT_SUPPORTED"


# Version 0.3


async def test_a_blocking_send_of_0_3_answers_with_the_completed_task(storage: str) -> None:
    async with over_grpc(Echo(), storage=storage) as served:
        task = (await served.v0_3.SendMessage(old_send("hi"))).task
        assert task.status.state == old.TASK_STATE_COMPLETED
        assert task.artifacts[0].parts[0].text == "Echo: hi"
        assert task.history[0].content[0].text == "hi"


async def test_a_stream_of_0_3_says_which_update_is_the_last() -> None:
    async with over_grpc(Echo()) as served:
        events = [event async for event in served.v0_3.SendStreamingMessage(old_send())]
        finals = [event.status_update.final for event in events if event.HasField("status_update")]
        assert finals == [False, True]


async def test_an_agent_may_answer_0_3_with_a_message() -> None:
    async with over_grpc(Direct()) as served:
        assert (await served.v0_3.SendMessage(old_send("hi"))).msg.content[0].text == "You said hi"


async def test_a_task_of_0_3_is_got_canceled_and_followed_by_its_resource_name() -> None:
    worker = Patient()
    async with over_grpc(worker) as served:
        task = (await served.v0_3.SendMessage(old_send(immediately=True))).task
        await worker.started.wait()
        name = f"tasks/{task.id}"
        assert (await served.v0_3.GetTask(old.GetTaskRequest(name=name))).id == task.id
        stream = aiter(served.v0_3.TaskSubscription(old.TaskSubscriptionRequest(name=name)))
        assert (await anext(stream)).task.id == task.id
        canceled = await served.v0_3.CancelTask(old.CancelTaskRequest(name=name))
        assert canceled.status.state == old.TASK_STATE_CANCELLED
        assert [event.status_update.final async for event in stream][-1]


async def test_a_subscription_of_0_3_is_over_when_the_task_pauses() -> None:
    async with over_grpc(Asks()) as served:
        task = (await served.v0_3.SendMessage(old_send())).task
        stream = served.v0_3.TaskSubscription(old.TaskSubscriptionRequest(name=f"tasks/{task.id}"))
        [only] = [event async for event in stream]
        assert only.task.status.update.content[0].text == "Which language?"


@pytest.mark.parametrize("method", PUSH_0_3)
async def test_push_notifications_are_refused_to_0_3_likewise(method: str) -> None:
    async with over_grpc(Echo(), push_notifications=False) as served:
        refused = await refusal(getattr(served.v0_3, method)(PUSH_0_3[method]))
        assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "PUSH_NOTIFICATION_NOT_SUPPORTED")
        assert refused.message.startswith("PushNotificationNotSupportedError: ")


async def test_both_versions_see_the_same_tasks() -> None:
    async with over_grpc(Echo()) as served:
        task = (await served.v0_3.SendMessage(old_send())).task
        assert (await served.v1_0.GetTask(pb.GetTaskRequest(id=task.id))).id == task.id


async def test_only_the_versions_that_are_served_have_a_service() -> None:
    async with over_grpc(Echo(), protocol_versions=["1.0"]) as served:
        assert (await served.v1_0.SendMessage(send())).task.id
        assert (await refusal(served.v0_3.SendMessage(old_send()))).code == "UNIMPLEMENTED"
