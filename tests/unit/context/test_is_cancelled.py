"""`ctx.is_cancelled`: whether cancellation was requested for this task."""

from __future__ import annotations

import asyncio

import pytest

from errands import TaskContext, TaskNotCancelableError
from errands.engines.urls import engine_from_url
from errands.model.core import TaskState
from errands.model.log import Draft, Work
from errands.testing import connect
from tests.unit.support import Agent, Gate, opening, reaches, run, running, said, step, until_cancelled

pytestmark = pytest.mark.anyio


async def test_is_cancelled_is_false_while_nobody_wants_a_cancel(storage: str) -> None:
    seen: list[bool] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(ctx.is_cancelled)
        await ctx.complete()

    assert (await run(handle, storage=storage)).completed
    assert seen == [False]


async def test_is_cancelled_becomes_true_while_the_handler_runs(storage: str) -> None:
    seen: list[bool] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(ctx.is_cancelled)
        await until_cancelled(ctx)
        seen.append(ctx.is_cancelled)

    async with running(handle, storage) as client:
        task = await client.send("work", blocking=False)
        assert (await client.cancel(task.task_id)).canceled
    assert seen == [False, True]


async def test_is_cancelled_concerns_only_the_canceled_task(storage: str) -> None:
    gate = Gate()
    seen: dict[str, bool] = {}

    async def handle(ctx: TaskContext) -> None:
        if ctx.user_text == "canceled":
            await until_cancelled(ctx)
        else:
            await gate()
        seen[ctx.user_text] = ctx.is_cancelled
        await ctx.complete()

    async with running(handle, storage) as client:
        other = await client.send("other", blocking=False)
        canceled = await client.send("canceled", blocking=False)
        with pytest.raises(TaskNotCancelableError, match="completed"):
            await client.cancel(canceled.task_id)
        gate.open()
        await reaches(client, other.task_id, "completed")
    assert seen == {"canceled": True, "other": False}


async def test_the_loop_of_the_reference_stops_when_a_cancel_is_wanted(storage: str) -> None:
    processed: list[int] = []
    begun = asyncio.Event()

    async def handle(ctx: TaskContext) -> None:
        for chunk in range(1_000_000):
            if ctx.is_cancelled:
                await ctx.fail("Cancelled by user.")
                return
            processed.append(chunk)
            await ctx.emit_text_artifact(f"{chunk} ", append=chunk > 0)
            begun.set()
            await asyncio.sleep(0)

    async with running(handle, storage) as client:
        task = await client.send("a large dataset", blocking=False)
        await begun.wait()
        result = await client.cancel(task.task_id)
    assert result.canceled
    assert said(result) == "Cancelled by user."
    assert 0 < len(processed) < 1_000_000
    assert result.artifacts[0].text == "".join(f"{chunk} " for chunk in processed)


async def test_is_cancelled_is_true_from_the_start_when_the_wish_came_before_the_worker_was_replaced(
    storage: str,
) -> None:
    seen: list[bool] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(ctx.is_cancelled)

    engine = engine_from_url(storage)
    async with engine:
        await engine.commit(opening(work=Work.IDLE))
        await engine.commit(step("t1", TaskState.WORKING, work=Work.LEASE, worker="gone", due_at=3))
        wish = step("t1", TaskState.WORKING, state=None, events=(Draft("cancel", b"{}"),), cancel_requested=True)
        await engine.commit(wish)
    async with connect(Agent(handle), storage=engine) as client:
        await reaches(client, "t1", "canceled")
    assert seen == [True]
