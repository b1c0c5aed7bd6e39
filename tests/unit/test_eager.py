"""Coroutines that are started at once: as in a task of asyncio, except that one that never waits has none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from errands.eager import EagerTasks

name: ContextVar[str] = ContextVar("name", default="")
pytestmark = pytest.mark.anyio


@pytest.fixture
async def eager() -> AsyncIterator[EagerTasks]:
    tasks = EagerTasks(asyncio.get_running_loop())
    await make_ready(tasks)
    yield tasks
    tasks.close()


async def make_ready(tasks: EagerTasks) -> None:
    """Start something twice, so that there are spare tasks for one coroutine within another."""

    async def nothing() -> None:
        tasks.start(nested())

    async def nested() -> None:
        pass

    for _ in range(6):
        tasks.start(nothing())
        await asyncio.sleep(0)


async def test_a_coroutine_that_never_waits_has_ended_when_it_was_started(eager: EagerTasks) -> None:
    ended: list[str] = []
    before = asyncio.all_tasks()

    async def work() -> None:
        await inner()
        ended.append("work")

    async def inner() -> None:
        ended.append("inner")

    assert eager.start(work()) is None
    assert ended == ["inner", "work"]
    assert asyncio.all_tasks() == before


async def test_a_coroutine_that_waits_goes_on_as_a_task(eager: EagerTasks) -> None:
    seen: list[object] = []

    async def work() -> None:
        seen.append(asyncio.current_task())
        await asyncio.sleep(0)
        seen.append(asyncio.current_task())

    task = eager.start(work())
    assert task is not None
    assert len(seen) == 1
    await task
    assert seen == [task, task]


async def test_the_starting_task_is_the_current_one_again_afterwards(eager: EagerTasks) -> None:
    this, seen = asyncio.current_task(), []

    async def outer() -> None:
        seen.append(asyncio.current_task())
        eager.start(inner())
        seen.append(asyncio.current_task())

    async def inner() -> None:
        seen.append(asyncio.current_task())

    eager.start(outer())
    assert asyncio.current_task() is this
    first, between, after = seen
    assert first is after
    assert len({this, first, between}) == 3


async def test_what_a_coroutine_sets_in_its_context_stays_there(eager: EagerTasks) -> None:
    async def set_name() -> None:
        assert name.get() == ""
        name.set("one")

    for _ in range(3):
        assert eager.start(set_name()) in (None, *asyncio.all_tasks())
        await asyncio.sleep(0)
    assert name.get() == ""


async def test_a_coroutine_sees_the_context_in_which_it_was_started(eager: EagerTasks) -> None:
    seen: list[str] = []

    async def look() -> None:
        seen.append(name.get())
        await asyncio.sleep(0)
        seen.append(name.get())

    token = name.set("mine")
    task = eager.start(look())
    name.reset(token)
    assert task is not None
    await task
    assert seen == ["mine", "mine"]


async def test_a_timeout_that_begins_before_the_first_wait_ends_it(eager: EagerTasks) -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            ended.append("in time")

    task = eager.start(work())
    assert task is not None
    await task
    assert ended == ["in time"]


@pytest.mark.parametrize("later", [0, 1, 2], ids=["at once", "in the next iteration", "after that"])
async def test_canceling_the_task_cancels_what_it_waits_for(eager: EagerTasks, later: int) -> None:
    told: list[str] = []

    async def child() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append("child")
            raise

    async def work() -> None:
        children = [asyncio.ensure_future(child()) for _ in range(2)]
        try:
            await asyncio.gather(*children)
        except asyncio.CancelledError:
            told.append("work")
            raise

    task = eager.start(work())
    assert task is not None
    for _ in range(later):
        await asyncio.sleep(0)
    if not later:
        await asyncio.sleep(0)  # so that the children have begun
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told == ["child", "child", "work"]


async def test_a_coroutine_that_cancels_itself_is_told_when_it_waits(eager: EagerTasks) -> None:
    told: list[str] = []

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        told.append("goes on")
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            told.append("canceled")
            raise

    task = eager.start(work())
    assert task is not None
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told == ["goes on", "canceled"]
    await make_ready(eager)
    await test_a_coroutine_that_never_waits_has_ended_when_it_was_started(eager)


async def test_one_that_cancels_itself_and_ends_does_not_disturb_the_next(eager: EagerTasks) -> None:
    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    eager.start(work())
    await asyncio.sleep(0)
    await make_ready(eager)
    await test_a_coroutine_that_waits_goes_on_as_a_task(eager)


@pytest.mark.parametrize("waits", [False, True])
def test_what_ends_a_program_ends_it_from_here_too(waits: bool) -> None:
    async def leave() -> None:
        if waits:
            await asyncio.sleep(0)
        raise SystemExit(3)

    async def program() -> None:
        tasks = EagerTasks(asyncio.get_running_loop())
        await make_ready(tasks)
        tasks.start(leave())
        await asyncio.sleep(3600)

    with pytest.raises(SystemExit) as exit_:
        asyncio.run(program())
    assert exit_.value.code == 3


async def test_closing_leaves_no_task() -> None:
    before = asyncio.all_tasks()
    tasks = EagerTasks(asyncio.get_running_loop())
    await make_ready(tasks)
    tasks.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


Start = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None] | None]
#: What a coroutine does, one after the other, and when it is canceled from outside: in which iteration of the loop.
STEPS = st.lists(st.sampled_from(["yield", "wait", "done", "timeout", "swallow", "set", "cancel"]), max_size=6)


async def story(start: Start, steps: list[str], canceled: int | None) -> list[object]:
    """Run the steps, and return everything that can be seen of them."""
    loop = asyncio.get_running_loop()
    seen: list[object] = []

    async def one(step: str) -> None:
        if step == "yield":
            await asyncio.sleep(0)
        elif step == "wait":
            await asyncio.sleep(0.0001)
        elif step == "done":
            future = loop.create_future()
            future.set_result(None)
            await future
        elif step == "timeout":
            try:
                async with asyncio.timeout(0):
                    await asyncio.sleep(3600)
            except TimeoutError:
                seen.append("timed out")
        elif step == "swallow":
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                seen.append("swallowed")
        elif step == "set":
            seen.append(name.get())
            name.set(f"{name.get()}+")
        else:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

    async def work() -> None:
        try:
            for step in steps:
                seen.append(step)
                await one(step)
        except asyncio.CancelledError:
            seen.append("canceled")
            raise
        finally:
            seen.append(asyncio.current_task() is not None)

    task = start(work())
    for iteration in range(4):
        if iteration == canceled and task is not None and not task.done():
            task.cancel()
        await asyncio.sleep(0)
    if task is not None:
        await asyncio.wait([task])
        # One that has ended without waiting leaves no task to tell of a cancel that it never noticed.
        seen.append(task.cancelled())
    return seen


def told(steps: list[str], canceled: int | None, *, is_eager: bool) -> list[object]:
    async def tell() -> list[object]:
        tasks = EagerTasks(asyncio.get_running_loop())
        await make_ready(tasks)
        try:
            return await story(tasks.start if is_eager else asyncio.create_task, steps, canceled)
        finally:
            tasks.close()

    return asyncio.run(tell())


@given(STEPS)
def test_a_coroutine_does_the_same_as_in_a_task(steps: list[str]) -> None:
    plain, begun = told(steps, None, is_eager=False), told(steps, None, is_eager=True)
    assert begun in (plain, plain[:-1])


@given(STEPS, st.integers(1, 3))
def test_a_canceled_one_ends_and_cleans_up_once(steps: list[str], canceled: int) -> None:
    """It may be some iterations ahead of a task when it is canceled, so what it has done until then may differ."""
    seen = told(steps, canceled, is_eager=True)
    was_canceled = seen.pop() if seen[-2:-1] == [True] else False
    assert seen.pop() is True
    assert True not in seen
    assert was_canceled == ("canceled" in seen)
