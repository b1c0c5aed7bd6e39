"""`ctx.reject(reason=None)`: the agent decides not to perform the task."""

from __future__ import annotations

import pytest

from errands import TaskContext
from tests.unit.support import run, said, signature, stream

pytestmark = pytest.mark.anyio


def test_reject_has_the_documented_signature() -> None:
    assert signature(TaskContext.reject) == "(reason=None)"


async def test_reject_declines_the_task_and_says_why(storage: str) -> None:
    result = await run(lambda ctx: ctx.reject("out of scope"), storage=storage)
    assert result.rejected
    assert said(result) == "out of scope"


async def test_reject_needs_no_reason(storage: str) -> None:
    result = await run(lambda ctx: ctx.reject(), storage=storage)
    assert result.rejected
    assert said(result) is None


async def test_reject_is_not_a_failure(storage: str) -> None:
    result = await run(lambda ctx: ctx.reject("policy"), storage=storage)
    assert not result.failed
    assert result.is_terminal


async def test_a_stream_ends_with_the_rejection(storage: str) -> None:
    ending = (await stream(lambda ctx: ctx.reject("policy"), storage=storage))[-1]
    assert (ending.state, ending.text, ending.is_final) == ("rejected", "policy", True)


@pytest.mark.parametrize(("text", "state"), [("DELETE everything", "rejected"), ("list everything", "completed")])
async def test_the_policy_example_of_the_reference_works(text: str, state: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        if "delete" in ctx.user_text.lower():
            await ctx.reject("I cannot perform destructive actions.")
            return
        await ctx.complete()

    assert (await run(handle, text)).state == state
