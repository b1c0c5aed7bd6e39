"""These methods transition the task to a new state. Exactly one must be called per `handle()` invocation."""

from __future__ import annotations

import asyncio
import re

import pytest

from errands import TaskContext, TurnError
from tests.unit.support import LIFECYCLE, Gate, run, running, said

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("method", LIFECYCLE)
async def test_each_lifecycle_method_takes_the_task_to_its_state(method: str, storage: str) -> None:
    call, state = LIFECYCLE[method]
    assert (await run(call, storage=storage)).state == state


@pytest.mark.parametrize("second", LIFECYCLE)
@pytest.mark.parametrize("first", LIFECYCLE)
async def test_a_second_lifecycle_call_raises_turn_error_and_changes_nothing(first: str, second: str) -> None:
    errors: list[TurnError] = []
    states: list[object] = []

    async def handle(ctx: TaskContext) -> None:
        await LIFECYCLE[first][0](ctx)
        try:
            await LIFECYCLE[second][0](ctx)
        except TurnError as error:
            errors.append(error)

    async with running(handle) as client:
        result = await client.send("hi")
        task_id = result.task_id or (result.raw_message and result.raw_message.task_id) or ""
        states.append((await client.get_task(task_id)).state)
    assert states == [LIFECYCLE[first][1]]
    assert len(errors) == 1
    assert "exactly one of" in str(errors[0])


@pytest.mark.parametrize(("first", "second"), [("complete", "fail"), ("request_input", "complete")])
async def test_a_second_lifecycle_call_leaves_the_stored_task_as_it_was(first: str, second: str, storage: str) -> None:
    ended, tried = Gate(), asyncio.Event()

    async def handle(ctx: TaskContext) -> None:
        await LIFECYCLE[first][0](ctx)
        await ended()
        with pytest.raises(TurnError):
            await LIFECYCLE[second][0](ctx)
        tried.set()

    async with running(handle, storage) as client:
        task_id = (await client.send("hi")).task_id
        before = await client.get_task(task_id)
        ended.open()
        await tried.wait()
        assert await client.get_task(task_id) == before


async def test_a_second_lifecycle_call_that_is_not_caught_is_logged_and_the_first_stays(
    storage: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.complete("first")
        await ctx.fail("second")

    async with running(handle, storage) as client:
        result = await client.send("hi")
    assert result.completed
    assert "The turn has already ended" in caplog.text


async def test_of_two_calls_at_the_same_time_one_counts_and_the_other_is_refused(storage: str) -> None:
    outcomes: list[object] = []

    async def handle(ctx: TaskContext) -> None:
        outcomes.extend(await asyncio.gather(ctx.complete("first"), ctx.fail("second"), return_exceptions=True))

    result = await run(handle, storage=storage)
    assert result.completed
    assert outcomes[0] is None
    assert isinstance(outcomes[1], TurnError)


async def test_no_lifecycle_call_fails_the_task_with_a_message_that_says_so(
    storage: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("all I have")

    result = await run(handle, storage=storage)
    assert result.failed
    assert re.match("The agent returned without finishing the task: .* must call complete", said(result) or "")
    assert [artifact.text for artifact in result.artifacts] == ["all I have"]
    assert "returned without a lifecycle call" in caplog.text


async def test_the_rule_holds_for_every_turn_anew(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        if not ctx.history:
            await ctx.request_input("more?")

    async with running(handle, storage) as client:
        first = await client.send("one")
        second = await client.send("two", task_id=first.task_id)
    assert first.input_required
    assert second.failed
