"""The operations of the protocol through errands' own client: one test body, every dialect, every engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from errands import A2AClient, Message, Part, Role, TaskState
from errands.errors import (
    ContextMismatchError,
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from tests.cells import one_engine
from tests.interaction.agents import Asks, Direct, Echo, Gated, Parrot, Patient, card
from tests.interaction.conftest import DIALECTS, Connect, Dialect, one_dialect

pytestmark = pytest.mark.anyio

#: The 0.3 proto has no ListTasks.
NOT_LISTING = Dialect("0.3", "grpc")
listing = pytest.mark.parametrize("dialect", [d for d in DIALECTS if d != NOT_LISTING], ids="-".join, indirect=True)


async def kinds(stream: Any) -> list[tuple[str, str | None]]:
    return [(event.kind, event.state or event.text) async for event in stream]


# SendMessage


async def test_a_blocking_send_answers_with_the_completed_task(connected: Connect) -> None:
    async with connected(Echo()) as client:
        result = await client.send("hi")
        assert result.completed
        assert result.text == "Echo: hi"
        assert result.raw_task is not None
        assert result.raw_task.history is not None
        assert [message.role for message in result.raw_task.history] == [Role.USER]


async def test_a_send_that_returns_immediately_does_not_wait_for_the_agent(connected: Connect) -> None:
    worker = Gated()
    async with connected(worker) as client:
        result = await client.send("hi", blocking=False)
        assert result.state in ("submitted", "working")
        worker.gate.set()
        async for _ in client.subscribe(result.task_id):
            pass
        assert (await client.get_task(result.task_id)).text == "first second"


@one_engine
async def test_a_message_without_a_context_gets_one_and_one_with_a_context_keeps_it(connected: Connect) -> None:
    async with connected(Echo()) as client:
        assert (await client.send([Part(text="hi")], context_id="")).context_id
        assert (await client.send("hi", context_id="my-context")).context_id == "my-context"


async def test_the_same_message_sent_again_finds_its_task(connected: Connect) -> None:
    async with connected(Echo()) as client:
        message = Message(message_id="once", role=Role.USER, parts=[Part(text="hi")])
        first = await client.send(message)
        again = await client.send(message)
        assert again.task_id == first.task_id
        assert again.text == first.text


@one_dialect
async def test_the_same_message_id_with_another_text_is_a_new_message(connected: Connect) -> None:
    async with connected(Echo()) as client:
        first = await client.send(Message(message_id="x", role=Role.USER, parts=[Part(text="one")]))
        other = await client.send(Message(message_id="x", role=Role.USER, parts=[Part(text="two")]))
        assert (first.text, other.text) == ("Echo: one", "Echo: two")
        assert first.task_id != other.task_id


async def test_a_paused_task_goes_on_with_the_users_answer(connected: Connect) -> None:
    async with connected(Asks()) as client:
        asked = await client.send("hello")
        assert asked.input_required
        assert asked.text == "Which language?"
        answered = await client.send("French", task_id=asked.task_id)
        assert answered.text == "hello in French"
        assert answered.context_id == asked.context_id
        assert answered.raw_task is not None
        assert answered.raw_task.history is not None
        assert [m.role for m in answered.raw_task.history] == [Role.USER, Role.AGENT, Role.USER]


@one_engine
async def test_a_conversation_carries_task_and_context(connected: Connect) -> None:
    async with connected(Asks()) as client:
        conversation = client.conversation()
        asked = await conversation.send("hello")
        answered = await conversation.send("French")
        fresh = await conversation.send("bye")
        assert asked.task_id == answered.task_id != fresh.task_id
        assert asked.context_id == answered.context_id == fresh.context_id


@one_engine
async def test_a_direct_reply_is_a_message_and_no_task(connected: Connect) -> None:
    async with connected(Direct()) as client:
        result = await client.send("hi")
        assert result.raw_task is None
        assert result.text == "You said hi"


@one_engine
async def test_a_direct_reply_on_a_stream_is_the_tasks_lifecycle(connected: Connect) -> None:
    async with connected(Direct()) as client:
        assert await kinds(client.stream("hi")) == [
            ("task", "submitted"),
            ("status", "working"),
            ("status", "completed"),
        ]


async def test_every_kind_of_part_goes_in_and_comes_out_unchanged(connected: Connect, dialect: Dialect) -> None:
    # Protobuf's numbers are doubles: what they cannot hold, no gRPC client can send.
    big = 2**53 - 1 if dialect.binding == "grpc" else 2**53 + 1
    parts = [
        Part(text="Grüße 🌍"),
        Part(raw=bytes(range(256)), media_type="application/octet-stream", filename="all.bin"),
        Part(url="https://example.com/a.pdf", media_type="application/pdf", filename="a.pdf"),
        Part(data={"revision": 1, "big": big, "ratio": 1.5, "none": None, "list": [True, "x"]}),
    ]
    async with connected(Parrot(), agent_card=card(input_modes=["*/*"])) as client:
        result = await client.send(parts)
        assert result.raw_task is not None
        assert [a.parts[0] for a in result.raw_task.artifacts or []] == parts
        assert result.raw_task.artifacts is not None
        data: Any = result.raw_task.artifacts[3].parts[0].data
        assert type(data["revision"]) is int
        assert type(data["ratio"]) is float


# SendStreamingMessage, SubscribeToTask


async def test_a_stream_begins_with_the_task_and_ends_with_its_end(connected: Connect) -> None:
    worker = Gated()
    worker.gate.set()
    async with connected(worker) as client:
        assert await kinds(client.stream("hi")) == [
            ("task", "submitted"),
            ("status", "working"),
            ("artifact", "first "),
            ("artifact", "second"),
            ("status", "completed"),
        ]


@one_engine
async def test_events_carry_the_versions_of_the_log(connected: Connect) -> None:
    worker = Gated()
    worker.gate.set()
    async with connected(worker) as client:
        ids = [event.event_id async for event in client.stream("hi")]
        assert ids == ["1", "2", "3", "4", "5"]


@one_engine
async def test_text_arrives_piece_by_piece(connected: Connect) -> None:
    worker = Gated()
    async with connected(worker) as client:
        pieces = client.stream_text("hi")
        assert await anext(pieces) == "first "
        worker.gate.set()
        assert await anext(pieces) == "second"


async def test_a_subscriber_is_shown_the_task_and_then_what_happens(connected: Connect) -> None:
    worker = Gated()
    async with connected(worker) as client:
        task = await client.send("hi", blocking=False)
        await worker.started.wait()
        events = client.subscribe(task.task_id)
        first = await anext(events)
        assert first.kind == "task"
        assert first.text == "first "
        worker.gate.set()
        assert await kinds(events) == [("artifact", "second"), ("status", "completed")]


async def test_several_subscribers_see_the_same_events(connected: Connect) -> None:
    worker = Gated()
    async with connected(worker) as client:
        task = await client.send("hi", blocking=False)
        await worker.started.wait()
        streams = [client.subscribe(task.task_id, last_event_id="0") for _ in range(3)]
        firsts = [await anext(stream) for stream in streams]
        worker.gate.set()
        rest = await asyncio.gather(*(kinds(stream) for stream in streams))
        assert [event.event_id for event in firsts] == ["1", "1", "1"]
        assert rest[0] == rest[1] == rest[2]


@pytest.mark.parametrize("seen", range(5))
@one_dialect
async def test_a_subscriber_that_names_its_last_event_is_shown_what_it_missed(connected: Connect, seen: int) -> None:
    worker = Gated()
    worker.gate.set()
    async with connected(worker) as client:
        task = await client.send("hi")
        missed = [event.event_id async for event in client.subscribe(task.task_id, last_event_id=str(seen))]
        assert missed == [str(version) for version in range(seen + 1, 6)]


@one_engine
async def test_subscribing_to_an_ended_task_gives_the_task_as_it_is(connected: Connect) -> None:
    async with connected(Echo()) as client:
        task = await client.send("hi")
        assert await kinds(client.subscribe(task.task_id)) == [("task", "completed")]


# GetTask, ListTasks


@pytest.mark.parametrize(("length", "expected"), [(None, 3), (0, 0), (1, 1), (2, 2), (9, 3)])
@one_engine
async def test_history_length_limits_the_history(
    connected: Connect, dialect: Dialect, length: int | None, expected: int
) -> None:
    if dialect == ("0.3", "grpc") and length == 0:
        expected = 3  # the 0.3 proto cannot tell 0 from absent
    async with connected(Asks()) as client:
        asked = await client.send("hello")
        await client.send("French", task_id=asked.task_id)
        task = (await client.get_task(asked.task_id, history_length=length)).raw_task
        assert task is not None
        assert len(task.history or []) == expected


@listing
async def test_a_listing_goes_through_all_pages_newest_first(connected: Connect) -> None:
    async with connected(Echo()) as client:
        sent = [(await client.send(f"{n}")).task_id for n in range(7)]
        listed = [task.task_id async for task in client.list_tasks(page_size=3)]
        assert sorted(listed) == sorted(sent)
        page = await client.list_tasks(page_size=3)
        assert (len(page.tasks), page.total_size, page.page_size) == (3, 7, 3)
        stamps = [task.raw_task.status.timestamp async for task in client.list_tasks() if task.raw_task]
        assert stamps == sorted(stamps, key=str, reverse=True)


@listing
async def test_a_listing_filters_by_context_state_and_time(connected: Connect) -> None:
    async with connected(Asks()) as client:
        asked = await client.send("hello", context_id="a")
        done = await client.send("French", task_id=(await client.send("x", context_id="b")).task_id)
        assert done.raw_task is not None
        by_context = [t.task_id async for t in client.list_tasks(context_id="a")]
        by_state = [t.task_id async for t in client.list_tasks(status="completed")]
        since = done.raw_task.status.timestamp
        by_time = [t.task_id async for t in client.list_tasks(status_timestamp_after=since)]
        never = [t async for t in client.list_tasks(status_timestamp_after="2999-01-01T00:00:00Z")]
        assert by_context == [asked.task_id]
        assert by_state == [done.task_id]
        assert done.task_id in by_time
        assert never == []


@listing
@one_engine
async def test_a_listing_leaves_artifacts_out_unless_they_are_wanted(connected: Connect) -> None:
    async with connected(Echo()) as client:
        await client.send("hi")
        without = (await client.list_tasks()).tasks[0].raw_task
        with_them = (await client.list_tasks(include_artifacts=True)).tasks[0].raw_task
        assert without is not None
        assert with_them is not None
        assert without.artifacts is None
        assert with_them.artifacts


@listing
@one_engine
async def test_a_listing_refuses_a_token_that_is_none(connected: Connect) -> None:
    async with connected(Echo()) as client:
        with pytest.raises(InvalidParamsError):
            await client.list_tasks(page_token="nonsense")


@pytest.mark.parametrize("dialect", [NOT_LISTING], ids="-".join, indirect=True)
@one_engine
async def test_a_dialect_that_has_no_listing_says_so(connected: Connect) -> None:
    async with connected(Echo()) as client:
        with pytest.raises(UnsupportedOperationError, match=r"0\.3"):
            await client.list_tasks()


# CancelTask


async def test_a_running_task_is_canceled_and_keeps_its_partial_artifact(connected: Connect) -> None:
    worker = Patient()
    async with connected(worker) as client:
        task = await client.send("hi", blocking=False)
        await worker.started.wait()
        canceled = await client.cancel(task.task_id)
        assert canceled.canceled
        assert canceled.text == "partial"
        assert (await client.get_task(task.task_id)).canceled


@one_engine
async def test_a_paused_task_is_canceled_at_once(connected: Connect) -> None:
    async with connected(Asks()) as client:
        asked = await client.send("hello")
        assert (await client.cancel(asked.task_id)).canceled


@one_engine
async def test_an_ended_task_cannot_be_canceled(connected: Connect) -> None:
    async with connected(Echo()) as client:
        task = await client.send("hi")
        with pytest.raises(TaskNotCancelableError):
            await client.cancel(task.task_id)


# Errors


@pytest.mark.parametrize("operation", ["get_task", "cancel", "subscribe", "send"])
@one_engine
async def test_a_task_that_does_not_exist_is_not_found(connected: Connect, operation: str) -> None:
    async with connected(Echo()) as client:
        with pytest.raises(TaskNotFoundError):
            await call(client, operation, "no-such-task")


async def call(client: A2AClient, operation: str, task_id: str) -> Any:
    """One of the operations on a task, whatever its shape."""
    if operation == "send":
        return await client.send("more", task_id=task_id)
    if operation == "subscribe":
        return [event async for event in client.subscribe(task_id)]
    return await getattr(client, operation)(task_id)


@one_engine
async def test_a_message_to_an_ended_task_is_refused(connected: Connect) -> None:
    async with connected(Echo()) as client:
        task = await client.send("hi")
        with pytest.raises(UnsupportedOperationError, match="already completed"):
            await client.send("more", task_id=task.task_id)


@one_dialect
async def test_a_message_with_the_context_of_another_task_is_refused(connected: Connect) -> None:
    async with connected(Asks()) as client:
        asked = await client.send("hello")
        with pytest.raises(InvalidParamsError, match="another context"):
            await client.send("French", task_id=asked.task_id, context_id="other")
        assert issubclass(ContextMismatchError, InvalidParamsError)
        assert (await client.get_task(asked.task_id)).state == TaskState.INPUT_REQUIRED.short
