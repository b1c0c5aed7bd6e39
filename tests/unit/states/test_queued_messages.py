"""A message to a task that is at work waits for its next turn, and is never lost."""

from __future__ import annotations

import asyncio

import pytest

from errands import TaskContext
from errands.engines.urls import engine_from_url
from errands.errors import OverloadedError
from errands.runtime import submission
from errands.testing import connect, serve
from tests.cells import every_engine
from tests.unit.support import LIFECYCLE, Agent, Gate, heard, log_of, reaches, running, said, spoken

pytestmark = [pytest.mark.anyio, every_engine]

#: After these the task goes on with the message that waits.
GOING_ON = ["complete", "complete_json", "respond", "reply_directly", "request_input", "request_auth"]
#: After these it has ended, whatever waits.
ENDING = ["fail", "reject"]


class Conversation:
    """A handler whose first turn waits at a gate and then ends with `method`; later turns answer."""

    def __init__(self, method: str) -> None:
        self.gate = Gate()
        self.turns: list[str] = []
        self._method = method

    async def __call__(self, ctx: TaskContext) -> None:
        self.turns.append(ctx.user_text)
        if len(self.turns) == 1:
            await self.gate()
            await LIFECYCLE[self._method][0](ctx)
        else:
            await ctx.respond(f"to {ctx.user_text}")


async def test_a_message_to_a_working_task_is_accepted_and_the_task_stays_working(storage: str) -> None:
    handle = Conversation("complete")
    async with running(handle, storage) as client:
        task_id = (await client.send("one", blocking=False)).task_id
        await handle.gate.reached.wait()
        queued = await client.send("two", task_id=task_id, blocking=False)
        assert queued.state == "working"
        assert spoken(queued) == ["one", "two"]
        assert handle.turns == ["one"]
        handle.gate.open()
        await reaches(client, task_id, "completed")


@pytest.mark.parametrize("method", GOING_ON)
async def test_a_queued_message_gets_its_turn_whatever_way_the_first_turn_goes_on(method: str, storage: str) -> None:
    handle = Conversation(method)
    async with running(handle, storage) as client:
        task_id = (await client.send("one", blocking=False)).task_id
        await client.send("two", task_id=task_id, blocking=False)
        await client.send("three", task_id=task_id, blocking=False)
        handle.gate.open()
        result = await reaches(client, task_id, "completed")
    assert handle.turns == ["one", "two", "three"]
    assert said(result) == "to three"
    assert [text for text in spoken(result) if text in ("one", "two", "three")] == ["one", "two", "three"]


@pytest.mark.parametrize("method", ENDING)
async def test_a_queued_message_stays_in_the_history_of_a_task_that_ended_before_its_turn(
    method: str, storage: str
) -> None:
    handle = Conversation(method)
    async with running(handle, storage) as client, asyncio.TaskGroup() as group:
        task_id = (await client.send("one", blocking=False)).task_id
        await client.send("two", task_id=task_id, blocking=False)
        waiting = group.create_task(client.send("three", task_id=task_id))
        await heard(client, task_id, "three")
        handle.gate.open()
        ended = await reaches(client, task_id, LIFECYCLE[method][1])
        answer = await waiting
    assert handle.turns == ["one"]
    assert spoken(ended)[:3] == ["one", "two", "three"]
    assert answer.state == LIFECYCLE[method][1]


async def test_what_the_first_turn_said_and_made_is_kept(storage: str) -> None:
    for method, texts, artifacts in (
        ("complete", ["one", "two", "to two"], ["done"]),
        ("respond", ["one", "two", "done", "to two"], []),
        ("request_input", ["one", "two", "which?", "to two"], []),
    ):
        handle = Conversation(method)
        async with running(handle, storage) as client:
            task_id = (await client.send("one", blocking=False)).task_id
            await client.send("two", task_id=task_id, blocking=False)
            handle.gate.open()
            result = await reaches(client, task_id, "completed")
        assert spoken(result) == texts
        assert [artifact.text for artifact in result.artifacts] == artifacts


async def test_a_task_with_waiting_messages_does_not_show_as_completed_in_between(storage: str) -> None:
    handle = Conversation("complete")
    server = serve(Agent(handle), storage=storage)
    async with connect(server) as client:
        task_id = (await client.send("one", blocking=False)).task_id
        await client.send("two", task_id=task_id, blocking=False)
        handle.gate.open()
        await reaches(client, task_id, "completed")
        log = await log_of(server.engine, task_id)
    assert [b"TASK_STATE_COMPLETED" in event.data for event in log].count(True) == 1
    assert b"TASK_STATE_COMPLETED" in log[-1].data


async def test_every_blocking_sender_gets_the_task_as_its_last_turn_left_it(storage: str) -> None:
    handle = Conversation("complete")
    async with running(handle, storage) as client, asyncio.TaskGroup() as group:
        first = group.create_task(client.send("one"))
        await handle.gate.reached.wait()
        (task,) = (await client.list_tasks()).tasks
        await client.send("two", task_id=task.task_id, blocking=False)
        second = group.create_task(client.send("three", task_id=task.task_id))
        await heard(client, task.task_id, "three")
        handle.gate.open()
        results = [await first, await second]
    assert [result.state for result in results] == ["completed", "completed"]
    assert said(results[0]) == said(results[1]) == "to three"


async def test_queued_messages_survive_the_worker_that_they_waited_for(storage: str) -> None:
    turns: list[str] = []
    begun = asyncio.Event()

    async def endless(ctx: TaskContext) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def finishing(ctx: TaskContext) -> None:
        turns.append(ctx.user_text)
        await ctx.complete()

    engine = engine_from_url(storage)
    server = serve(Agent(endless), storage=engine)
    server.settings.drain_timeout = 0.05
    async with connect(server) as client:
        task_id = (await client.send("one", blocking=False)).task_id
        await begun.wait()
        await client.send("two", task_id=task_id, blocking=False)
    async with connect(Agent(finishing), storage=engine) as client:
        await reaches(client, task_id, "completed")
    assert turns == ["one", "two"]


async def test_a_message_sent_at_the_very_end_of_a_turn_is_either_dealt_with_or_refused(storage: str) -> None:
    turns: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        turns.append(ctx.user_text)
        await ctx.complete()

    async with running(handle, storage) as client:
        for number in range(20):
            task_id = (await client.send(f"{number} first", blocking=False)).task_id
            (sent,) = await asyncio.gather(client.send(f"{number} second", task_id=task_id), return_exceptions=True)
            was_dealt_with = f"{number} second" in turns
            assert was_dealt_with is not isinstance(sent, Exception)
            assert (await client.get_task(task_id)).completed


async def test_more_messages_than_a_task_can_hold_are_refused_and_those_before_are_dealt_with(
    monkeypatch: pytest.MonkeyPatch, storage: str
) -> None:
    monkeypatch.setattr(submission, "MAX_WAITING", 3)
    handle = Conversation("complete")
    async with connect(Agent(handle), storage=storage, client={"max_retries": 0}) as client:
        task_id = (await client.send("one", blocking=False)).task_id
        await handle.gate.reached.wait()
        for text in ("two", "three"):
            await client.send(text, task_id=task_id, blocking=False)
        with pytest.raises(OverloadedError, match="3 messages wait in task") as refused:
            await client.send("four", task_id=task_id, blocking=False)
        assert refused.value.retry_after == 60
        handle.gate.open()
        await reaches(client, task_id, "completed")
        assert handle.turns == ["one", "two", "three"]
