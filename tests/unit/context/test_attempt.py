"""`ctx.attempt`: which try of this turn it is, from 1; more than 1 after a crash."""

from __future__ import annotations

from typing import Any

import pytest

from errands import Settings, TaskContext, Worker
from errands.engines.base import Engine
from errands.engines.urls import engine_from_url
from errands.model.core import TaskState
from errands.model.log import Work
from errands.testing import connect
from tests.unit.support import Agent, Gate, opening, reaches, run, running, said, step

pytestmark = pytest.mark.anyio


async def leave_behind(engine: Engine, *, crashes: int) -> None:
    """A task whose worker has died so many times while it worked on it."""
    async with engine:
        await engine.commit(opening(work=Work.IDLE))
        for number in range(crashes):
            await engine.commit(step("t1", TaskState.WORKING, work=Work.LEASE, worker=f"dead {number}", due_at=3))


async def report(ctx: TaskContext) -> None:
    await ctx.complete_json(ctx.attempt)


async def test_attempt_is_1_on_the_first_try(storage: str) -> None:
    assert (await run(report, storage=storage)).data == 1


async def test_attempt_counts_the_tries_of_workers_that_died(storage: str) -> None:
    engine = engine_from_url(storage)
    await leave_behind(engine, crashes=2)
    async with connect(Agent(report), storage=engine) as client:
        assert (await reaches(client, "t1", "completed")).data == 3


async def test_attempt_begins_again_at_1_in_the_next_turn(storage: str) -> None:
    seen: list[int] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(ctx.attempt)
        await (ctx.complete() if len(seen) == 3 else ctx.request_input("more?"))

    engine = engine_from_url(storage)
    await leave_behind(engine, crashes=1)
    async with connect(Agent(handle), storage=engine) as client:
        await reaches(client, "t1", "input-required")
        await client.send("two", task_id="t1")
        await client.send("three", task_id="t1")
    assert seen == [2, 1, 1]


async def test_attempt_is_1_when_the_task_only_waited_in_the_queue(storage: str) -> None:
    engine = engine_from_url(storage)
    async with engine:
        await engine.commit(opening())
    async with connect(Agent(report), storage=engine) as client:
        assert (await reaches(client, "t1", "completed")).data == 1


async def test_attempt_is_1_for_a_message_that_waited_for_the_turn_before_it(storage: str) -> None:
    seen: list[tuple[str, int]] = []
    gate = Gate()

    async def handle(ctx: TaskContext) -> None:
        await gate()
        seen.append((ctx.user_text, ctx.attempt))
        await ctx.complete()

    async with running(handle, storage) as client:
        task_id = (await client.send("one", blocking=False)).task_id
        await client.send("two", task_id=task_id, blocking=False)
        await client.send("three", task_id=task_id, blocking=False)
        gate.open()
        await reaches(client, task_id, "completed")
    assert seen == [("one", 1), ("two", 1), ("three", 1)]


async def test_after_max_attempts_the_task_fails_and_says_so(storage: str) -> None:
    calls: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        calls.append(ctx.task_id)

    engine = engine_from_url(storage)
    await leave_behind(engine, crashes=3)
    async with connect(Agent(handle), storage=engine, settings=Settings(max_attempts=3)) as client:
        result = await reaches(client, "t1", "failed")
    assert said(result) == "The agent was interrupted 3 times while it worked on this task."
    assert calls == []


async def test_a_worker_may_choose_to_fail_interrupted_turns_instead_of_running_them_again(storage: str) -> None:
    class Careful(Worker):
        on_interrupted = "fail"

        async def handle(self, ctx: TaskContext) -> None:
            await ctx.complete(f"attempt {ctx.attempt}")

    engine = engine_from_url(storage)
    await leave_behind(engine, crashes=1)
    async with connect(Careful(), storage=engine) as client:
        result = await reaches(client, "t1", "failed")
        fresh = await client.send("hi")
    assert said(result) == "The agent was interrupted while it worked on this task."
    assert fresh.text == "attempt 1"


async def test_a_message_that_waited_for_the_turn_before_it_does_not_count_as_interrupted(storage: str) -> None:
    gate = Gate()

    class Careful(Worker):
        on_interrupted = "fail"

        async def handle(self, ctx: TaskContext) -> None:
            await gate()
            await ctx.complete(ctx.user_text)

    async with connect(Careful(), storage=storage) as client:
        task_id = (await client.send("one", blocking=False)).task_id
        await client.send("two", task_id=task_id, blocking=False)
        gate.open()
        assert (await reaches(client, task_id, "completed", "failed")).text == "two"


async def test_a_try_that_is_run_again_sees_the_same_message(storage: str) -> None:
    seen: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        seen.extend([ctx.message_id, ctx.user_text, ctx.history])
        await ctx.complete()

    engine = engine_from_url(storage)
    await leave_behind(engine, crashes=1)
    async with connect(Agent(handle), storage=engine) as client:
        await reaches(client, "t1", "completed")
    assert seen == ["first of t1", "hi", []]


async def test_every_message_of_a_running_conversation_is_its_own_first_try(storage: str) -> None:
    async with running(report, storage) as client:
        results = [await client.send(text, context_id="c") for text in ("one", "two")]
    assert [result.data for result in results] == [1, 1]
