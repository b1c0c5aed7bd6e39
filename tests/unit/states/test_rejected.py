"""rejected: the agent decided not to perform the task. This is a terminal state."""

from __future__ import annotations

import pytest

from errands import TaskContext
from errands.client import TaskTerminalError
from tests.unit.support import run, running, said

pytestmark = pytest.mark.anyio


async def test_rejected_is_reached_via_reject(storage: str) -> None:
    result = await run(lambda ctx: ctx.reject("not my line"), storage=storage)
    assert result.rejected
    assert said(result) == "not my line"


async def test_rejected_is_terminal(storage: str) -> None:
    async with running(lambda ctx: ctx.reject(), storage) as client:
        ended = await client.send("hi")
        with pytest.raises(TaskTerminalError, match="already rejected"):
            await client.send("please", task_id=ended.task_id)
    assert ended.is_terminal


async def test_an_agent_may_still_reject_after_it_has_begun(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status("reading the contract")
        await ctx.emit_text_artifact("clause 1")
        await ctx.reject("clause 2 forbids it")

    result = await run(handle, storage=storage)
    assert result.rejected
    assert [artifact.text for artifact in result.artifacts] == ["clause 1"]


async def test_an_agent_may_reject_in_a_later_turn(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await (ctx.reject("not that") if ctx.history else ctx.request_input("what?"))

    async with running(handle, storage) as client:
        paused = await client.send("hi")
        assert (await client.send("that", task_id=paused.task_id)).rejected
