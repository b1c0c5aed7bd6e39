"""completed: the task finished successfully. This is a terminal state."""

from __future__ import annotations

import pytest

from errands import TaskContext
from errands.client import TaskTerminalError
from tests.unit.support import LIFECYCLE, run, running, stream

pytestmark = pytest.mark.anyio

METHODS = [method for method, (_, state) in LIFECYCLE.items() if state == "completed"]


def test_completed_is_reached_by_four_methods() -> None:
    assert METHODS == ["complete", "complete_json", "respond", "reply_directly"]


@pytest.mark.parametrize("method", METHODS)
async def test_completed_is_reached_via_complete_respond_or_reply_directly(method: str, storage: str) -> None:
    async with running(LIFECYCLE[method][0], storage) as client:
        sent = await client.send("hi")
        (task,) = (await client.list_tasks()).tasks
    assert sent.completed
    assert task.completed


@pytest.mark.parametrize("method", METHODS)
async def test_a_stream_ends_with_completed(method: str, storage: str) -> None:
    ending = (await stream(LIFECYCLE[method][0], storage=storage))[-1]
    assert (ending.state, ending.is_final) == ("completed", True)


async def test_completed_is_terminal(storage: str) -> None:
    async with running(lambda ctx: ctx.complete("done"), storage) as client:
        ended = await client.send("hi")
        with pytest.raises(TaskTerminalError):
            await client.send("more", task_id=ended.task_id)
    assert ended.is_terminal


async def test_what_happens_in_the_handler_after_completed_changes_nothing(
    storage: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.complete("done")
        raise RuntimeError("while cleaning up")

    result = await run(handle, storage=storage)
    assert result.completed
    assert "while cleaning up" in caplog.text


async def test_a_completed_task_can_still_be_subscribed_to_for_what_was_missed(storage: str) -> None:
    async with running(lambda ctx: ctx.complete("done"), storage) as client:
        events = [event async for event in client.stream("hi")]
        missed = [event async for event in client.subscribe(events[0].task_id or "", last_event_id="2")]
    assert missed == events[2:]
