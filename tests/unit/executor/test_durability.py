"""An executor's task survives the process that ran it, and goes on elsewhere."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from errands import AgentExecutor, EventQueue, Part, RequestContext, Settings
from errands.engines.base import Engine
from errands.engines.urls import engine_from_url
from errands.model.core import TaskState
from errands.model.log import Work
from errands.testing import ManualClock, connect
from tests.cells import every_engine
from tests.unit.executor.agents import Executor, executing, new_task, updater_of, words
from tests.unit.support import Gate, opening, reaches, said, step

pytestmark = [pytest.mark.anyio, every_engine]


async def leave_behind(storage: str, state: TaskState = TaskState.WORKING) -> Engine:
    """A task whose executor had published a state when its process died."""
    engine = engine_from_url(storage)
    async with engine:
        await engine.commit(opening(work=Work.LEASE, worker="dead", due_at=3))
        await engine.commit(step("t1", state, fence=1))
    return engine


@pytest.mark.parametrize(
    "state", [TaskState.SUBMITTED, TaskState.WORKING, TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED]
)
async def test_a_task_whose_process_died_is_executed_again_and_the_attempt_says_so(
    storage: str, state: TaskState
) -> None:
    seen: list[tuple[int, str]] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        seen.append((context.attempt, context.get_user_input()))
        await queue.enqueue_event(new_task(context))
        updater = updater_of(context, queue)
        await updater.start_work()
        await updater.complete(words("at last"))

    engine = await leave_behind(storage, state)
    async with connect(Executor(execute), storage=engine) as client:
        assert (await reaches(client, "t1", "completed")).text == "at last"
    assert seen == [(2, "hi")]


async def test_what_was_published_before_the_crash_is_in_current_task(storage: str) -> None:
    if storage == "memory":
        pytest.skip("tasks in memory end with their server")
    gate = Gate()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        updater = updater_of(context, queue)
        if context.attempt == 1:
            await updater.start_work()
            await updater.add_artifact([Part(text="half")], artifact_id="a")
            await gate()
        task = context.current_task
        assert task is not None
        assert task.artifacts is not None
        await updater.complete(words(f"had {task.artifacts[0].parts[0].text}"))

    async with executing(execute, storage, settings=Settings(drain_timeout=0.01)) as client:
        task_id = (await client.send("hi", blocking=False)).task_id
        await gate.reached.wait()
    async with executing(execute, storage) as client:
        assert said(await reaches(client, task_id, "completed")) == "had half"


async def test_an_executor_may_choose_to_fail_what_was_interrupted(storage: str) -> None:
    class Careful(AgentExecutor):
        on_interrupted: Literal["redeliver", "fail"] = "fail"

        async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
            raise AssertionError("must not be called")

        async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
            raise AssertionError("must not be called")

    engine = await leave_behind(storage)
    async with connect(Careful(), storage=engine) as client:
        failed = await reaches(client, "t1", "failed")
    assert said(failed) == "The agent was interrupted while it worked on this task."


async def hold(storage: str, clock: ManualClock, state: TaskState) -> Engine:
    """A task that another process holds for ten seconds more; it will not give a sign again."""
    engine = engine_from_url(storage)
    engine.clock = clock
    async with engine:
        await engine.commit(opening(work=Work.LEASE, worker="dead", due_at=clock() + 10_000))
        await engine.commit(step("t1", state, fence=1))
    return engine


async def test_a_message_to_a_task_whose_process_died_in_a_pause_is_dealt_with_after_the_first(storage: str) -> None:
    seen: list[str] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        seen.append(context.get_user_input())
        await updater_of(context, queue).complete()

    clock = ManualClock()
    engine = await hold(storage, clock, TaskState.AUTH_REQUIRED)
    async with connect(Executor(execute), storage=engine, settings=Settings(poll_interval=0.02)) as client:
        assert (await client.send("two", task_id="t1", blocking=False)).state == "auth-required"
        clock.advance(seconds=11)
        await reaches(client, "t1", "completed")
    assert seen == ["hi", "two"]


async def test_canceling_what_a_dead_process_left_calls_cancel_here(storage: str) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        # Only when the queue was looked into between the end of the lease and the cancel; then this is told to stop.
        await asyncio.Event().wait()

    clock, executor = ManualClock(), Executor(execute)
    engine = await hold(storage, clock, TaskState.WORKING)
    async with connect(executor, storage=engine, settings=Settings(poll_interval=60)) as client:
        clock.advance(seconds=11)
        assert (await client.cancel("t1")).state == "canceled"
    assert executor.canceled == 1


async def test_a_message_waits_in_the_queue_until_there_is_room(storage: str) -> None:
    gate = Gate()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        if context.get_user_input() == "one":
            await updater_of(context, queue).start_work()
            await gate()
            await updater_of(context, queue).complete()
        else:
            await queue.enqueue_event(words("a message"))

    async with executing(execute, storage, max_concurrent_tasks=1) as client:
        first = await client.send("one", blocking=False)
        events = client.stream("two")
        await gate.reached.wait()
        gate.open()
        assert [event.kind async for event in events] == ["message"]
        await reaches(client, first.task_id, "completed")
