"""failed: the task encountered an error. This is a terminal state."""

from __future__ import annotations

import asyncio
import re

import pytest

from errands import TaskContext
from errands.client import TaskTerminalError
from tests.unit.support import run, running, said, stream

pytestmark = pytest.mark.anyio


class SecretError(Exception):
    """An error whose text must not leave the process."""


async def break_down(ctx: TaskContext) -> None:
    raise SecretError("password=hunter2")


async def test_failed_is_reached_via_fail(storage: str) -> None:
    result = await run(lambda ctx: ctx.fail("no luck"), storage=storage)
    assert result.failed
    assert said(result) == "no luck"


async def test_failed_is_reached_when_an_unhandled_exception_escapes_handle(storage: str) -> None:
    assert (await run(break_down, storage=storage)).failed


async def test_the_client_is_told_of_an_exception_without_its_cause(storage: str) -> None:
    events = await stream(break_down, storage=storage)
    assert events[-1].state == "failed"
    assert re.fullmatch(r"The agent failed unexpectedly \(reference [0-9a-f]{8}\)\.", events[-1].text or "")
    assert "hunter2" not in repr(events)
    assert "SecretError" not in repr(events)


async def test_the_cause_is_logged_under_the_reference_the_client_was_told(
    storage: str, caplog: pytest.LogCaptureFixture
) -> None:
    result = await run(break_down, storage=storage)
    told = re.search(r"reference ([0-9a-f]{8})", said(result) or "")
    assert told is not None
    (record,) = [record for record in caplog.records if told[1] in record.getMessage()]
    assert record.levelname == "ERROR"
    assert result.task_id in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], SecretError)


async def test_each_failure_has_a_reference_of_its_own() -> None:
    async with running(break_down) as client:
        assert said(await client.send("one")) != said(await client.send("two"))


async def test_failed_is_terminal(storage: str) -> None:
    async with running(lambda ctx: ctx.fail("no luck"), storage) as client:
        ended = await client.send("hi")
        with pytest.raises(TaskTerminalError):
            await client.send("more", task_id=ended.task_id)
    assert ended.is_terminal


@pytest.mark.parametrize("way", ["fail", "exception", "return"])
async def test_partial_artifacts_are_kept(way: str, storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("the first ")
        await ctx.emit_text_artifact("half", append=True)
        if way == "fail":
            await ctx.fail("no more")
        elif way == "exception":
            raise RuntimeError

    async with running(handle, storage) as client:
        ended = await client.send("hi")
        later = await client.get_task(ended.task_id)
    assert later.failed
    assert [artifact.text for artifact in later.artifacts] == ["the first half"]


@pytest.mark.parametrize("method", ["complete", "respond", "fail", "reject", "reply_directly", "request_input"])
async def test_text_that_cannot_be_written_fails_the_task_and_keeps_what_was_emitted(method: str, storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("kept")
        await getattr(ctx, method)("half a character: \ud800")

    result = await run(handle, storage=storage)
    assert result.failed
    assert [artifact.text for artifact in result.artifacts] == ["kept"]


async def test_a_handler_that_swallows_a_failed_lifecycle_call_has_not_finished_its_task(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        try:
            await ctx.complete("half a character: \ud800")
        except ValueError:
            return

    result = await run(handle, storage=storage)
    assert result.failed
    assert "returned without finishing" in (said(result) or "")


async def test_an_agent_that_cancels_its_own_work_fails(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        raise asyncio.CancelledError

    result = await run(handle, storage=storage)
    assert result.failed
    assert said(result) == "The agent canceled its own work."


async def test_one_failing_task_does_not_disturb_the_others(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        if ctx.user_text == "break":
            raise RuntimeError
        await ctx.complete(ctx.user_text)

    async with running(handle, storage) as client:
        texts = ["a", "break", "b", "break", "c"]
        results = await asyncio.gather(*(client.send(text) for text in texts))
    assert [result.state for result in results] == ["completed", "failed", "completed", "failed", "completed"]
