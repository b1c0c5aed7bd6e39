"""canceled: cooperatively, or by force after a timeout. This is a terminal state."""

from __future__ import annotations

import asyncio

import pytest

from errands import TaskContext, TaskNotCancelableError, TaskTerminalStateError
from errands.client import TaskTerminalError
from errands.testing import connect, serve
from tests.unit.support import (
    LIFECYCLE,
    Agent,
    Gate,
    first,
    log_of,
    reaches,
    running,
    said,
    spoken,
    until_cancelled,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("way", ["fail", "reject", "return", "exception"])
async def test_a_worker_that_checks_is_cancelled_cancels_cooperatively(way: str, storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await until_cancelled(ctx)
        if way == "fail":
            await ctx.fail("Cancelled by user.")
        elif way == "reject":
            await ctx.reject("Cancelled by user.")
        elif way == "exception":
            raise RuntimeError("stopped half way")

    async with running(handle, storage) as client:
        task = await client.send("hi", blocking=False)
        result = await client.cancel(task.task_id)
        assert (await client.get_task(task.task_id)).canceled
    assert result.canceled
    if way in ("fail", "reject"):
        assert said(result) == "Cancelled by user."


async def test_an_exception_after_a_cancel_does_not_show_its_cause(
    storage: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(ctx: TaskContext) -> None:
        await until_cancelled(ctx)
        raise RuntimeError("stopped half way")

    async with running(handle, storage) as client:
        task = await client.send("hi", blocking=False)
        result = await client.cancel(task.task_id)
    assert "stopped half way" not in (said(result) or "")
    assert "stopped half way" in caplog.text


async def test_a_worker_that_completes_in_spite_of_the_wish_has_completed(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await until_cancelled(ctx)
        await ctx.complete("finished anyway")

    async with running(handle, storage) as client:
        task = await client.send("hi", blocking=False)
        with pytest.raises(TaskNotCancelableError, match="completed"):
            await client.cancel(task.task_id)
        assert (await client.get_task(task.task_id)).text == "finished anyway"


@pytest.mark.parametrize("pause", ["request_input", "request_auth"])
async def test_a_worker_that_pauses_in_spite_of_the_wish_is_canceled_without_waiting_for_the_timeout(
    pause: str, storage: str
) -> None:
    async def handle(ctx: TaskContext) -> None:
        await until_cancelled(ctx)
        await LIFECYCLE[pause][0](ctx)

    async with running(handle, storage, cancel_force_timeout=3600) as client:
        task = await client.send("hi", blocking=False)
        assert (await client.cancel(task.task_id)).canceled
        assert (await client.get_task(task.task_id)).canceled


async def test_a_worker_that_does_not_react_is_canceled_by_force_after_a_timeout(storage: str) -> None:
    begun, interrupted = asyncio.Event(), asyncio.Event()

    async def handle(ctx: TaskContext) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            interrupted.set()
            raise

    async with running(handle, storage, cancel_force_timeout=0.05) as client:
        task = await client.send("hi", blocking=False)
        await begun.wait()
        assert (await client.cancel(task.task_id)).canceled
        await interrupted.wait()


async def test_a_worker_that_does_not_let_itself_be_stopped_can_write_no_more(storage: str) -> None:
    gate, begun, over = Gate(), asyncio.Event(), asyncio.Event()
    errors: list[TaskTerminalStateError] = []
    kept: list[object] = []

    async def handle(ctx: TaskContext) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await gate()
        for call in (ctx.emit_text_artifact, ctx.complete, ctx.update_context):
            try:
                await call("too late")
            except TaskTerminalStateError as error:
                errors.append(error)
        kept.append(await ctx.load_context())
        over.set()

    async with running(handle, storage, cancel_force_timeout=0.05) as client:
        task = await client.send("hi", blocking=False)
        await begun.wait()
        canceled = await client.cancel(task.task_id)
        gate.open()
        await over.wait()
        assert await client.get_task(task.task_id) == canceled
    assert canceled.canceled
    assert (len(errors), kept) == (3, [None])


async def test_the_wait_for_a_worker_ends_when_it_reacts_and_not_at_the_timeout(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await until_cancelled(ctx)

    async with running(handle, storage, cancel_force_timeout=3600) as client:
        task = await client.send("hi", blocking=False)
        assert (await client.cancel(task.task_id)).canceled


@pytest.mark.parametrize("pause", ["request_input", "request_auth"])
async def test_a_paused_task_is_canceled_at_once(pause: str, storage: str) -> None:
    turns: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        turns.append(ctx.user_text)
        await LIFECYCLE[pause][0](ctx)

    async with running(handle, storage, cancel_force_timeout=3600) as client:
        paused = await client.send("hi")
        assert (await client.cancel(paused.task_id)).canceled
        with pytest.raises(TaskTerminalError):
            await client.send("an answer", task_id=paused.task_id)
    assert turns == ["hi"]


@pytest.mark.parametrize("way", ["fail", "return", "exception", "force", "paused"])
async def test_partial_artifacts_are_kept(way: str, storage: str) -> None:
    begun = asyncio.Event()

    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("the first ")
        await ctx.emit_text_artifact("half", append=True)
        begun.set()
        if way == "paused":
            await ctx.request_input("go on?")
            return
        if way == "force":
            await asyncio.Event().wait()
        await until_cancelled(ctx)
        if way == "fail":
            await ctx.fail("stopped")
        elif way == "exception":
            raise RuntimeError

    async with running(handle, storage, cancel_force_timeout=0.05) as client:
        task = await client.send("hi", blocking=False)
        await begun.wait()
        await client.cancel(task.task_id)
        result = await client.get_task(task.task_id)
    assert result.canceled
    assert [artifact.text for artifact in result.artifacts] == ["the first half"]


async def test_canceled_is_terminal(storage: str) -> None:
    async with running(until_cancelled, storage) as client:
        task = await client.send("hi", blocking=False)
        result = await client.cancel(task.task_id)
        with pytest.raises(TaskTerminalError, match="already canceled"):
            await client.send("more", task_id=task.task_id)
    assert result.is_terminal


async def test_whoever_waits_for_the_task_learns_of_the_cancel(storage: str) -> None:
    gate = Gate()

    async def handle(ctx: TaskContext) -> None:
        await gate()
        await until_cancelled(ctx)

    async with running(handle, storage) as client, asyncio.TaskGroup() as group:
        sending = group.create_task(client.send("hi"))
        await gate.reached.wait()
        (task,) = (await client.list_tasks()).tasks
        events = client.subscribe(task.task_id)
        assert (await anext(events)).kind == "task"
        following = group.create_task(first(events, lambda event: event.kind == "status" and event.is_final))
        gate.open()
        await client.cancel(task.task_id)
        assert (await sending).canceled
        assert (await following).state == "canceled"


async def test_canceling_twice_at_the_same_time_cancels_once(storage: str) -> None:
    gate = Gate()

    async def handle(ctx: TaskContext) -> None:
        await gate()
        await until_cancelled(ctx)

    server = serve(Agent(handle), storage=storage)
    async with connect(server) as client:
        task = await client.send("hi", blocking=False)
        gate.open()
        outcomes = await asyncio.gather(
            client.cancel(task.task_id), client.cancel(task.task_id), return_exceptions=True
        )
        log = await log_of(server.engine, task.task_id)
    assert sum(b"TASK_STATE_CANCELED" in event.data for event in log) == 1
    assert not [outcome for outcome in outcomes if isinstance(outcome, BaseException)]


async def test_a_message_that_waits_is_not_begun_after_a_cancel(storage: str) -> None:
    gate = Gate()
    turns: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        turns.append(ctx.user_text)
        await gate()
        await until_cancelled(ctx)

    async with running(handle, storage) as client:
        task_id = (await client.send("one", blocking=False)).task_id
        await client.send("two", task_id=task_id, blocking=False)
        gate.open()
        result = await client.cancel(task_id)
    assert result.canceled
    assert turns == ["one"]
    assert spoken(result) == ["one", "two"]


async def test_the_wish_to_cancel_holds_for_the_turn_of_a_waiting_message(storage: str) -> None:
    gate = Gate()
    turns: list[tuple[str, bool]] = []

    async def handle(ctx: TaskContext) -> None:
        await gate()
        if ctx.user_text == "one":
            await until_cancelled(ctx)
            await ctx.complete()
        turns.append((ctx.user_text, ctx.is_cancelled))

    async with running(handle, storage) as client:
        task_id = (await client.send("one", blocking=False)).task_id
        await client.send("two", task_id=task_id, blocking=False)
        gate.open()
        assert (await client.cancel(task_id)).canceled
        await reaches(client, task_id, "canceled")
    assert turns == [("one", True), ("two", True)]
