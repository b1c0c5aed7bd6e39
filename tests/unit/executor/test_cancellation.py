"""Cancellation: `execute` is interrupted, then `cancel` is called, and the task is canceled whatever it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from errands import A2AClient, EventQueue, Part, RequestContext, Settings, TaskNotCancelableError
from errands.engines.memory import MemoryEngine
from errands.model.log import LogSlice, Work
from errands.testing import connect
from tests.unit.executor.agents import Executor, Never, Works, updater_of, words
from tests.unit.support import ANYBODY, Gate, opening, reaches, said

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def under_way(executor: Executor, work: Never, **options: Any) -> AsyncIterator[tuple[A2AClient, str]]:
    """A client, and the id of a task that the executor is at work on."""
    async with connect(executor, **options) as client:
        task_id = (await client.send("hi", blocking=False)).task_id
        await work.awaited.wait()
        yield client, task_id


async def test_cancel_interrupts_execute_and_then_calls_cancel(storage: str) -> None:
    work = Never()
    order: list[str] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await updater_of(context, queue).start_work()
        try:
            await work()
        except asyncio.CancelledError:
            order.append("interrupted")
            raise

    async def cancel(context: RequestContext, queue: EventQueue) -> None:
        order.append("cancel")
        assert context.current_task is not None
        assert context.current_task.status.state.short == "working"
        await updater_of(context, queue).cancel(words("stopped at your wish"))

    async with under_way(Executor(execute, cancel), work, storage=storage) as (client, task_id):
        canceled = await client.cancel(task_id)
    assert (canceled.state, said(canceled)) == ("canceled", "stopped at your wish")
    assert order == ["interrupted", "cancel"]


async def test_a_cancel_that_publishes_nothing_cancels_the_task_all_the_same(storage: str) -> None:
    works = Works()
    executor = Executor(works)
    async with under_way(executor, works.work, storage=storage) as (client, task_id):
        assert (await client.cancel(task_id)).state == "canceled"
    assert executor.canceled == 1


async def test_a_cancel_that_raises_cancels_the_task_all_the_same(storage: str) -> None:
    works = Works()

    async def cancel(context: RequestContext, queue: EventQueue) -> None:
        raise NotImplementedError("cancel is not supported")

    async with under_way(Executor(works, cancel), works.work, storage=storage) as (client, task_id):
        assert (await client.cancel(task_id)).state == "canceled"


async def test_what_cancel_publishes_before_is_kept(storage: str) -> None:
    works = Works()

    async def cancel(context: RequestContext, queue: EventQueue) -> None:
        await updater_of(context, queue).add_artifact([Part(text="so far")], artifact_id="a")

    async with under_way(Executor(works, cancel), works.work, storage=storage) as (client, task_id):
        canceled = await client.cancel(task_id)
    assert (canceled.state, canceled.text) == ("canceled", "so far")


async def test_an_executor_that_finds_the_work_done_may_say_so_in_cancel(storage: str) -> None:
    works = Works()

    async def cancel(context: RequestContext, queue: EventQueue) -> None:
        await updater_of(context, queue).complete(words("it was done"))

    async with under_way(Executor(works, cancel), works.work, storage=storage) as (client, task_id):
        with pytest.raises(TaskNotCancelableError):
            await client.cancel(task_id)
        assert (await client.get_task(task_id)).text == "it was done"


async def test_an_execute_that_fails_while_it_is_interrupted_is_canceled(storage: str) -> None:
    work = Never()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await updater_of(context, queue).start_work()
        try:
            await work()
        finally:
            raise RuntimeError("clean-up failed")

    executor = Executor(execute)
    async with under_way(executor, work, storage=storage) as (client, task_id):
        assert (await client.cancel(task_id)).state == "canceled"
    assert executor.canceled == 1


async def test_an_execute_that_ends_the_task_when_it_is_interrupted_needs_no_cancel(storage: str) -> None:
    work = Never()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        updater = updater_of(context, queue)
        await updater.start_work()
        try:
            await work()
        except asyncio.CancelledError:
            await updater.cancel(words("of my own"))

    executor = Executor(execute)
    async with under_way(executor, work, storage=storage) as (client, task_id):
        assert said(await client.cancel(task_id)) == "of my own"
    assert executor.canceled == 0


async def test_execute_is_interrupted_once_however_often_the_cancel_is_asked_for(storage: str) -> None:
    work, tidying = Never(), Gate()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        updater = updater_of(context, queue)
        await updater.start_work()
        try:
            await work()
        finally:
            await tidying()
            await updater.cancel(words("tidied up"))

    async with under_way(Executor(execute), work, storage=storage) as (client, task_id):
        first = asyncio.create_task(client.cancel(task_id))
        await tidying.reached.wait()
        second = asyncio.create_task(client.cancel(task_id))
        await client.get_task(task_id)
        tidying.open()
        assert said(await first) == "tidied up"
        # The second may have come when it was over.
        with suppress(TaskNotCancelableError):
            assert said(await second) == "tidied up"


@pytest.mark.parametrize("stubborn", ["execute", "cancel"])
async def test_an_executor_that_does_not_let_itself_be_stopped_is_canceled_by_force(
    storage: str, stubborn: str
) -> None:
    work, last = Never(), Gate()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await updater_of(context, queue).start_work()
        try:
            await work()
        except asyncio.CancelledError:
            if stubborn == "execute":
                await last()
            raise

    async def cancel(context: RequestContext, queue: EventQueue) -> None:
        if stubborn == "cancel":
            await last()

    executor = Executor(execute, cancel)
    async with under_way(executor, work, storage=storage, cancel_force_timeout=0.05) as (client, task_id):
        assert (await client.cancel(task_id)).state == "canceled"
        last.open()


async def test_cancel_is_called_for_a_task_that_was_paused_and_does_not_run(storage: str) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await updater_of(context, queue).requires_input(words("sure?"))

    async def cancel(context: RequestContext, queue: EventQueue) -> None:
        assert context.current_task is not None
        assert context.current_task.status.state.short == "input-required"
        assert context.get_user_input() == "hi"
        await updater_of(context, queue).cancel(words("let go of it"))

    executor = Executor(execute, cancel)
    async with connect(executor, storage=storage) as client:
        task_id = (await client.send("hi")).task_id
        canceled = await client.cancel(task_id)
    assert (canceled.state, said(canceled)) == ("canceled", "let go of it")
    assert executor.canceled == 1


async def test_cancel_of_a_paused_task_waits_for_room_where_there_is_none(storage: str) -> None:
    gate = Gate()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        updater = updater_of(context, queue)
        if context.get_user_input() == "busy":
            await updater.start_work()
            await gate()
            await updater.complete()
        else:
            await updater.requires_input()

    executor = Executor(execute)
    async with connect(executor, storage=storage, max_concurrent_tasks=1) as client:
        paused = await client.send("hi")
        busy = await client.send("busy", blocking=False)
        canceling = asyncio.create_task(client.cancel(paused.task_id))
        await gate.reached.wait()
        gate.open()
        assert (await canceling).state == "canceled"
        await reaches(client, busy.task_id, "completed")
    assert executor.canceled == 1


async def test_a_task_that_never_ran_is_canceled_without_cancel(storage: str) -> None:
    executor = Executor(Works())
    async with connect(executor, storage=storage, max_concurrent_tasks=1) as client:
        running = await client.send("one", blocking=False)
        waiting = asyncio.create_task(client.send("two", context_id="waiting"))
        while not (found := [task async for task in client.list_tasks(context_id="waiting")]):
            await asyncio.sleep(0)
        assert (await client.cancel(found[0].task_id)).state == "canceled"
        assert (await waiting).state == "canceled"
        assert executor.canceled == 0
        await client.cancel(running.task_id)
    assert executor.canceled == 1


async def test_an_ended_task_cannot_be_canceled(storage: str) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await updater_of(context, queue).complete()

    executor = Executor(execute)
    async with connect(executor, storage=storage) as client:
        done = await client.send("hi")
        with pytest.raises(TaskNotCancelableError):
            await client.cancel(done.task_id)
    assert executor.canceled == 0


async def test_an_executor_that_cancels_itself_fails(storage: str) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        raise asyncio.CancelledError

    async with connect(Executor(execute), storage=storage) as client:
        failed = await client.send("hi")
    assert (failed.state, said(failed)) == ("failed", "The agent canceled its own work.")


async def test_a_cancel_that_comes_before_execute_has_returned_from_a_pause_is_seen(storage: str) -> None:
    executor = Executor(lambda context, queue: updater_of(context, queue).requires_input())
    # By force it would take an hour.
    async with connect(executor, storage=storage, cancel_force_timeout=3600) as client:
        for _ in range(20):
            asked = await client.send("hi")
            assert (await client.cancel(asked.task_id)).state == "canceled"
    assert executor.canceled == 20


async def test_a_cancel_that_comes_before_the_executor_was_called_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        raise AssertionError("must not be called")

    engine, gate, executor = MemoryEngine(), Gate(), Executor(execute)
    read = engine.read

    async def slow_read(*arguments: Any) -> LogSlice:
        await gate()
        return await read(*arguments)

    monkeypatch.setattr(engine, "read", slow_read)
    async with engine:
        await engine.commit(opening(work=Work.READY, due_at=1))
    async with connect(executor, storage=engine, settings=Settings(cancel_force_timeout=60)) as client:
        await gate.reached.wait()
        canceling = asyncio.ensure_future(client.cancel("t1"))
        while not (await engine.load("t1", ANYBODY)).head.cancel_requested:
            await asyncio.sleep(0)
        gate.open()
        assert (await canceling).canceled
    assert executor.canceled == 1
