"""The allowed workflows: a single Message, or a Task and updates; and what is neither."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from errands import (
    A2AClient,
    Artifact,
    EventQueue,
    InvalidAgentResponseError,
    Message,
    Part,
    RequestContext,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from errands.testing import connect, serve
from tests.unit.executor.agents import Act, Executor, executing, new_task, updater_of, words
from tests.unit.support import Gate, reaches, said, spoken

pytestmark = pytest.mark.anyio


async def reply(context: RequestContext, queue: EventQueue) -> None:
    await queue.enqueue_event(words(f"Echo: {context.get_user_input()}"))


async def test_immediate_response_is_a_single_message_and_no_task(storage: str) -> None:
    async with executing(reply, storage) as client:
        result = await client.send("hi")
    assert result.raw_task is None
    assert result.raw_message is not None
    assert (result.raw_message.role, result.text) == (Role.AGENT, "Echo: hi")


async def test_a_stream_yields_exactly_that_one_message(storage: str) -> None:
    async with executing(reply, storage) as client:
        events = [event async for event in client.stream("hi")]
    assert [(event.kind, event.text) for event in events] == [("message", "Echo: hi")]


async def test_a_message_that_is_streamed_again_gets_the_same_message(storage: str) -> None:
    async with executing(reply, storage) as client:
        first, again = [[event async for event in client.stream("hi", message_id="m")] for _ in range(2)]
    assert [(event.kind, event.text) for event in again] == [("message", "Echo: hi")]
    assert again[0].raw == first[0].raw


async def test_a_stream_of_a_message_that_took_a_while_yields_it_alone(storage: str) -> None:
    gate = Gate()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await gate()
        await reply(context, queue)

    async with executing(execute, storage) as client:
        events = client.stream("hi")
        first = asyncio.create_task(anext(events))
        await gate.reached.wait()
        assert not first.done()
        gate.open()
        assert (await first).kind == "message"
        assert [event async for event in events] == []


async def test_with_return_immediately_the_answer_may_be_the_message(storage: str) -> None:
    async with executing(reply, storage) as client:
        assert (await client.send("hi", blocking=False)).raw_message is not None


async def test_the_answer_to_return_immediately_waits_for_the_first_event(storage: str) -> None:
    begin, end = Gate(), Gate()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await begin()
        await queue.enqueue_event(new_task(context))
        await end()
        await updater_of(context, queue).complete()

    async with executing(execute, storage) as client:
        sending = asyncio.create_task(client.send("hi", blocking=False))
        await begin.reached.wait()
        assert not sending.done()
        begin.open()
        answer = await sending
        assert (answer.state, end.reached.is_set()) == ("submitted", True)
        end.open()
        await reaches(client, answer.task_id, "completed")


async def test_long_running_is_a_task_followed_by_updates(storage: str) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(new_task(context))
        updater = updater_of(context, queue)
        await updater.start_work(words("at it"))
        await updater.add_artifact([Part(text="one ")], artifact_id="a", name="report")
        await updater.add_artifact([Part(text="two")], artifact_id="a", append=True, last_chunk=True)
        await updater.complete(words("done"))

    async with executing(execute, storage) as client:
        events = [event async for event in client.stream("hi")]
        task_id = events[0].task_id
        assert task_id is not None
        done = await client.get_task(task_id)
    assert [(event.kind, event.state, event.text) for event in events] == [
        ("task", "submitted", None),
        ("status", "working", "at it"),
        ("artifact", None, "one "),
        ("artifact", None, "two"),
        ("status", "completed", "done"),
    ]
    assert done.text == "one two"
    assert spoken(done) == ["hi", "done"]


async def test_the_first_piece_of_an_artifact_begins_it_whatever_its_author_says(storage: str) -> None:
    """The client of a2a-sdk 0.3 drops a piece that continues an artifact it does not know."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        updater = updater_of(context, queue)
        await updater.add_artifact([Part(text="one ")], artifact_id="a", append=True)
        await updater.add_artifact([Part(text="two ")], artifact_id="a", append=True)
        await updater.requires_input()

    async def go_on(context: RequestContext, queue: EventQueue) -> None:
        if context.message is not None and context.get_user_input() == "hi":
            await execute(context, queue)
            return
        updater = updater_of(context, queue)
        await updater.add_artifact([Part(text="three")], artifact_id="a", append=True)
        await updater.complete()

    async with executing(go_on, storage) as client:
        first = [event async for event in client.stream("hi")]
        rest = [event async for event in client.stream("more", task_id=first[0].task_id)]
        done = await client.get_task(first[0].task_id or "")
    assert [event.append for event in [*first, *rest] if event.kind == "artifact"] == [False, True, True]
    assert done.text == "one two three"


async def test_a_stream_that_the_server_ends_before_the_first_event_shows_the_task(storage: str) -> None:
    gate = Gate()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await gate()
        await updater_of(context, queue).complete()

    server = serve(Executor(execute), storage=storage)
    async with connect(server) as client:
        events = client.stream("hi")
        first = asyncio.create_task(anext(events))
        await gate.reached.wait()
        server.engine.disconnect()
        assert (await first).kind == "task"
        gate.open()
        # The client comes back by itself.
        assert [event.state async for event in events] == ["completed"]


async def test_updates_may_come_without_a_task_before_them(storage: str) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await updater_of(context, queue).start_work()
        await updater_of(context, queue).complete()

    async with executing(execute, storage) as client:
        events = [event async for event in client.stream("hi")]
    assert [(event.kind, event.state) for event in events] == [
        ("task", "submitted"),
        ("status", "working"),
        ("status", "completed"),
    ]


async def test_a_task_brings_its_metadata_artifacts_and_words_and_not_the_users_message_again(storage: str) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        task = new_task(
            context, TaskState.COMPLETED, metadata={"by": "agent"}, artifacts=[Artifact("a", [Part(text="all")])]
        )
        assert task.history is not None
        task.history.append(words("here you are"))
        await queue.enqueue_event(task)

    async with executing(execute, storage) as client:
        result = await client.send("hi")
        kept = await client.get_task(result.task_id)
    assert result.raw_task is not None
    assert (result.state, result.text, result.raw_task.metadata) == ("completed", "all", {"by": "agent"})
    assert spoken(result) == ["hi", "here you are"]
    assert kept.raw_task == result.raw_task


async def test_a_task_that_is_published_again_adds_to_what_is_known(storage: str) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(new_task(context, metadata={"a": 1}))
        updater = updater_of(context, queue)
        await updater.add_artifact([Part(text="one ")], artifact_id="a")
        await updater.add_artifact([Part(text="two")], artifact_id="a", append=True)
        await queue.enqueue_event(new_task(context, TaskState.WORKING, metadata={"b": 2}))
        await updater.complete()

    async with executing(execute, storage) as client:
        result = await client.send("hi")
    assert result.raw_task is not None
    assert (result.text, result.raw_task.metadata) == ("one two", {"a": 1, "b": 2})
    assert spoken(result) == ["hi"]


def publish_whole_task(gate: Gate, state: TaskState, start: bool) -> Act:
    """At the gate the task is published with all that there is of it."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        if start:
            await updater_of(context, queue).start_work()
        await gate()
        artifacts = [Artifact("a", [Part(text="all")])]
        await queue.enqueue_event(new_task(context, state, metadata={"by": "agent"}, artifacts=artifacts))
        await updater_of(context, queue).complete()

    return execute


async def seen_since_gate(client: A2AClient, gate: Gate, task_id: str) -> list[tuple[str, str | None, str | None]]:
    subscription = client.subscribe(task_id)
    events = [await anext(subscription)]
    gate.open()
    events += [event async for event in subscription]
    return [(event.kind, event.state, event.text) for event in events]


async def test_whoever_has_the_task_is_shown_a_published_one_as_updates(storage: str) -> None:
    gate = Gate()
    async with executing(publish_whole_task(gate, TaskState.WORKING, start=True), storage) as client:
        task_id = (await client.send("hi", blocking=False)).task_id
        await gate.reached.wait()
        assert await seen_since_gate(client, gate, task_id) == [
            ("task", "working", None),
            ("status", "working", None),
            ("artifact", None, "all"),
            ("status", "completed", None),
        ]
        kept = await client.get_task(task_id)
    assert kept.raw_task is not None
    assert (kept.text, kept.raw_task.metadata) == ("all", {"by": "agent"})


async def test_whoever_came_before_the_agents_first_task_is_shown_it_as_updates(storage: str) -> None:
    gate = Gate()
    async with executing(publish_whole_task(gate, TaskState.SUBMITTED, start=False), storage) as client:
        events = client.stream("hi")
        first = asyncio.create_task(anext(events))
        await gate.reached.wait()
        [waiting] = (await client.list_tasks()).tasks
        assert await seen_since_gate(client, gate, waiting.task_id) == [
            ("task", "submitted", None),
            ("status", "submitted", None),
            ("artifact", None, "all"),
            ("status", "completed", None),
        ]
        # Whom it answers sees the agent's task itself, and no other.
        shown = [await first, *[event async for event in events]]
    assert [event.kind for event in shown] == ["task", "artifact", "status"]
    assert isinstance(shown[0].raw, Task)
    assert shown[0].raw.metadata == {"by": "agent"}


@pytest.mark.parametrize("turns", range(5))
async def test_a_piece_that_is_being_written_is_not_lost_when_a_task_is_published(storage: str, turns: int) -> None:
    gate = Gate()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        updater = updater_of(context, queue)
        await updater.add_artifact([Part(text="one ")], artifact_id="a")
        await gate()
        await updater.add_artifact([Part(text="two")], artifact_id="a", append=True)
        for _ in range(turns):
            await asyncio.sleep(0)
        await queue.enqueue_event(new_task(context, TaskState.WORKING, metadata={"by": "agent"}))
        await updater.complete()

    async with executing(execute, storage) as client:
        async for event in client.stream("hi"):
            if event.text == "one ":
                gate.open()
        assert event.task_id is not None
        assert (await client.get_task(event.task_id)).text == "one two"


async def test_a_message_that_comes_meanwhile_is_not_lost_when_a_task_is_published(storage: str) -> None:
    gate = Gate()
    seen: list[str] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        seen.append(context.get_user_input())
        if len(seen) == 1:
            await updater_of(context, queue).start_work()
            await gate()
            await queue.enqueue_event(new_task(context, TaskState.WORKING))
        await updater_of(context, queue).complete()

    async with executing(execute, storage) as client:
        task_id = (await client.send("one", blocking=False)).task_id
        await client.send("two", task_id=task_id, blocking=False)
        gate.open()
        assert spoken(await reaches(client, task_id, "completed")) == ["one", "two"]
    assert seen == ["one", "two"]


async def test_a_published_task_is_shown_with_as_much_history_as_was_asked_for(storage: str) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(new_task(context))
        await updater_of(context, queue).complete()

    async with executing(execute, storage) as client:
        raws = [event.raw async for event in client.stream("hi", history_length=0)]
    assert isinstance(raws[0], Task)
    assert raws[0].history is None


async def test_the_metadata_of_a_status_update_is_shown(storage: str) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        updater = updater_of(context, queue)
        await updater.update_status(TaskState.WORKING, metadata={"step": 1})
        await updater.update_status(TaskState.COMPLETED, metadata={"step": 2})

    async with executing(execute, storage) as client:
        raws = [event.raw async for event in client.stream("hi")]
    assert [raw.metadata for raw in raws if isinstance(raw, TaskStatusUpdateEvent)] == [{"step": 1}, {"step": 2}]


async def test_words_of_the_agent_are_the_agents_whatever_role_it_gives_them(storage: str) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        message = Message(message_id="x", role=Role.UNSPECIFIED, parts=[Part(text="sure?")])
        if context.current_task is None:
            await updater_of(context, queue).requires_input(message)
        else:
            await updater_of(context, queue).complete(words(context.get_user_input()))

    async with executing(execute, storage) as client:
        task_id = (await client.send("hi")).task_id
        assert (await client.send("yes", task_id=task_id)).text == "yes"


# What is neither: InvalidAgentResponse


def status(context: RequestContext, state: TaskState, **options: Any) -> TaskStatusUpdateEvent:
    ids: dict[str, Any] = {"task_id": context.task_id, "context_id": context.context_id, **options}
    return TaskStatusUpdateEvent(status=TaskStatus(state=state), **ids)


async def message_after_task(context: RequestContext, queue: EventQueue) -> None:
    await queue.enqueue_event(new_task(context, TaskState.WORKING))
    await queue.enqueue_event(words("bad"))


async def message_after_update(context: RequestContext, queue: EventQueue) -> None:
    await updater_of(context, queue).start_work()
    await queue.enqueue_event(words("bad"))


async def another_task(context: RequestContext, queue: EventQueue) -> None:
    await queue.enqueue_event(Task(id="bad", status=TaskStatus(state=TaskState.WORKING)))


async def update_of_another_task(context: RequestContext, queue: EventQueue) -> None:
    await queue.enqueue_event(status(context, TaskState.COMPLETED, task_id="bad"))


async def update_of_another_context(context: RequestContext, queue: EventQueue) -> None:
    await queue.enqueue_event(status(context, TaskState.COMPLETED, context_id="bad"))


async def artifact_of_another_task(context: RequestContext, queue: EventQueue) -> None:
    artifact = Artifact(artifact_id="bad", parts=[Part(text="bad")])
    await queue.enqueue_event(TaskArtifactUpdateEvent(task_id="bad", context_id="", artifact=artifact))


async def message_of_another_task(context: RequestContext, queue: EventQueue) -> None:
    await queue.enqueue_event(words("bad", task_id="bad"))


async def message_of_another_context(context: RequestContext, queue: EventQueue) -> None:
    await updater_of(context, queue).complete(words("bad", context_id="bad"))


async def task_with_bad_words(context: RequestContext, queue: EventQueue) -> None:
    task = new_task(context, artifacts=[Artifact(artifact_id="bad", parts=[Part(text="bad")])])
    task.status = TaskStatus(state=TaskState.COMPLETED, message=words("bad", task_id="bad"))
    await queue.enqueue_event(task)


async def task_without_a_state(context: RequestContext, queue: EventQueue) -> None:
    artifacts = [Artifact(artifact_id="bad", parts=[Part(text="bad")])]
    await queue.enqueue_event(new_task(context, TaskState.UNSPECIFIED, artifacts=artifacts))


async def update_without_a_state(context: RequestContext, queue: EventQueue) -> None:
    await queue.enqueue_event(status(context, TaskState.UNSPECIFIED))


async def no_event(context: RequestContext, queue: EventQueue) -> None:
    bad: Any = "bad"
    await queue.enqueue_event(bad)


INVALID: dict[Act, str] = {
    message_after_task: "a Message after a Task",
    message_after_update: "a Message after a Task",
    another_task: "an event for task bad",
    update_of_another_task: "an event for task bad",
    update_of_another_context: "an event for context bad",
    artifact_of_another_task: "an event for task bad",
    message_of_another_task: "an event for task bad",
    message_of_another_context: "an event for context bad",
    task_with_bad_words: "an event for task bad",
    task_without_a_state: "a status needs a state",
    update_without_a_state: "a status needs a state",
    no_event: "an executor publishes Task, Message,",
}


@pytest.mark.parametrize("act", INVALID, ids=lambda act: act.__name__)
async def test_an_event_that_cannot_be_is_an_invalid_agent_response_and_the_task_fails(storage: str, act: Act) -> None:
    async with executing(act, storage) as client:
        failed = await client.send("hi")
    assert failed.state == "failed"
    assert (said(failed) or "").startswith(f"The agent gave an invalid response: {INVALID[act]}")
    assert failed.raw_task is not None
    assert failed.raw_task.artifacts is None
    assert spoken(failed)[:-1] == ["hi"]


async def test_an_executor_that_passes_over_the_error_publishes_nothing_more(storage: str) -> None:
    errors: list[Exception] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        for publish in (message_after_task(context, queue), updater_of(context, queue).complete()):
            try:
                await publish
            except InvalidAgentResponseError as error:
                errors.append(error)

    async with executing(execute, storage) as client:
        failed = await client.send("hi")
    assert failed.state == "failed"
    assert len(errors) == 2


@pytest.mark.parametrize("late", [new_task, words])
async def test_an_event_after_a_message_is_an_invalid_agent_response_and_the_message_stands(
    storage: str, late: Any
) -> None:
    errors: list[str] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await reply(context, queue)
        try:
            await queue.enqueue_event(late(context) if late is new_task else late("again"))
        except InvalidAgentResponseError as error:
            errors.append(str(error))

    async with executing(execute, storage) as client:
        result = await client.send("hi")
        kept = await client.get_task(result.task_id)
    assert result.text == "Echo: hi"
    assert spoken(kept) == ["hi", "Echo: hi"]
    assert [error.partition(":")[0] for error in errors] == [
        "a Task after a Message" if late is new_task else "a Message after a Message"
    ]


async def test_an_update_after_a_terminal_state_is_an_invalid_agent_response_and_the_end_stands(storage: str) -> None:
    errors: list[str] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        updater = updater_of(context, queue)
        await updater.complete(words("done"))
        for late in (updater.start_work(), updater.failed(), updater.add_artifact([Part(text="bad")])):
            try:
                await late
            except InvalidAgentResponseError as error:
                errors.append(str(error))

    async with executing(execute, storage) as client:
        result = await client.send("hi")
        kept = await client.get_task(result.task_id)
    assert (kept.state, kept.text, kept.artifacts) == ("completed", "done", [])
    assert len(errors) == 3
    assert all("after a terminal state" in error for error in errors)
