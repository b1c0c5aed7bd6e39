"""The same message sent again finds its first task: the work is done once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from errands import Settings, TaskContext
from errands.engines.urls import engine_from_url
from errands.testing import ManualClock, connect
from tests.cells import every_engine
from tests.unit.support import Agent, Gate, reaches, running, spoken

pytestmark = [pytest.mark.anyio, every_engine]


class Counting:
    def __init__(self) -> None:
        self.turns: list[str] = []

    async def __call__(self, ctx: TaskContext) -> None:
        self.turns.append(ctx.user_text)
        await ctx.complete(f"done {len(self.turns)}")


async def test_a_message_sent_again_after_its_task_has_ended_gets_the_same_answer(storage: str) -> None:
    handle = Counting()
    async with running(handle, storage) as client:
        first = await client.send("hi", message_id="m1")
        second = await client.send("hi", message_id="m1")
    assert second == first
    assert handle.turns == ["hi"]


async def test_a_message_sent_again_while_its_task_runs_waits_for_the_same_answer(storage: str) -> None:
    gate = Gate()
    turns: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        turns.append(ctx.task_id)
        await gate()
        await ctx.complete("done")

    async with running(handle, storage) as client, asyncio.TaskGroup() as group:
        first = group.create_task(client.send("hi", message_id="m1"))
        await gate.reached.wait()
        second = group.create_task(client.send("hi", message_id="m1"))
        third = await client.send("hi", message_id="m1", blocking=False)
        gate.open()
        results = [await first, await second]
    assert results[0] == results[1]
    assert third.task_id == results[0].task_id
    assert len(turns) == 1


async def test_the_same_message_many_times_at_once_makes_one_task(storage: str) -> None:
    handle = Counting()
    async with running(handle, storage) as client:
        results = await asyncio.gather(*(client.send("hi", message_id="m1") for _ in range(10)))
        page = await client.list_tasks()
    assert len({result.task_id for result in results}) == 1
    assert len(page.tasks) == 1
    assert handle.turns == ["hi"]


async def test_a_follow_up_sent_again_is_dealt_with_once(storage: str) -> None:
    turns: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        turns.append(ctx.user_text)
        await (ctx.complete() if ctx.history else ctx.request_input("more?"))

    async with running(handle, storage) as client:
        task_id = (await client.send("one")).task_id
        first = await client.send("two", task_id=task_id, message_id="m2")
        second = await client.send("two", task_id=task_id, message_id="m2")
    assert second == first
    assert turns == ["one", "two"]


async def test_a_queued_message_sent_again_is_queued_once(storage: str) -> None:
    gate = Gate()
    turns: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        turns.append(ctx.user_text)
        await gate()
        await ctx.complete()

    async with running(handle, storage) as client:
        task_id = (await client.send("one", blocking=False)).task_id
        for _ in range(3):
            await client.send("two", task_id=task_id, message_id="m2", blocking=False)
        gate.open()
        result = await reaches(client, task_id, "completed")
    assert turns == ["one", "two"]
    assert spoken(result) == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "options"),
    [("hi", {"message_id": "m2"}), ("ho", {"message_id": "m1"}), ("hi", {"message_id": "m1", "context_id": "c2"})],
    ids=["another id", "another text", "another conversation"],
)
async def test_a_message_that_differs_in_anything_is_another_message(
    text: str, options: dict[str, Any], storage: str
) -> None:
    async with running(Counting(), storage) as client:
        first = await client.send("hi", message_id="m1", context_id="c1")
        other = await client.send(text, **{"context_id": "c1", **options})
    assert other.task_id != first.task_id


async def test_a_stream_of_a_repeated_message_shows_the_task_it_made(storage: str) -> None:
    handle = Counting()
    async with running(handle, storage) as client:
        first = await client.send("hi", message_id="m1")
        events = [event async for event in client.stream("hi", message_id="m1")]
    assert [(event.kind, event.task_id, event.state) for event in events] == [("task", first.task_id, "completed")]
    assert handle.turns == ["hi"]


async def test_a_repeated_message_is_recognised_after_a_restart(storage: str) -> None:
    handle = Counting()
    engine = engine_from_url(storage)
    async with connect(Agent(handle), storage=engine) as client:
        first = await client.send("hi", message_id="m1")
    async with connect(Agent(handle), storage=engine) as client:
        assert await client.send("hi", message_id="m1") == first
    assert handle.turns == ["hi"]


async def test_after_the_idempotency_window_the_same_message_is_a_new_one(storage: str) -> None:
    handle = Counting()
    engine = engine_from_url(storage)
    clock = ManualClock()
    engine.clock = clock
    settings = Settings(idempotency_window=60)
    async with connect(Agent(handle), storage=engine, settings=settings) as client:
        first = await client.send("hi", message_id="m1")
        clock.advance(seconds=60)
        within = await client.send("hi", message_id="m1")
        clock.advance(ms=1)
        after = await client.send("hi", message_id="m1")
    assert within.task_id == first.task_id
    assert after.task_id != first.task_id
    assert handle.turns == ["hi", "hi"]
