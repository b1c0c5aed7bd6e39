"""`ctx.turn_ended`: whether the handler already signaled the end of this turn."""

from __future__ import annotations

import pytest

from errands import TaskContext
from tests.unit.support import LIFECYCLE, run, running

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("method", LIFECYCLE)
async def test_turn_ended_is_true_after_any_terminal_or_pausing_method(method: str, storage: str) -> None:
    call, _ = LIFECYCLE[method]
    seen: list[bool] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(ctx.turn_ended)
        await call(ctx)
        seen.append(ctx.turn_ended)

    await run(handle, storage=storage)
    assert seen == [False, True]


async def test_turn_ended_stays_false_while_the_task_keeps_working() -> None:
    seen: list[bool] = []

    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status("on it")
        await ctx.send_status()
        await ctx.emit_text_artifact("a")
        await ctx.emit_data_artifact({}, artifact_id="b")
        await ctx.emit_artifact(artifact_id="c", file_bytes=b"")
        await ctx.update_context({})
        async with ctx.artifact("d") as artifact:
            await artifact.write("d")
        seen.append(ctx.turn_ended)
        await ctx.complete()

    await run(handle)
    assert seen == [False]


async def test_turn_ended_is_false_again_in_the_next_turn(storage: str) -> None:
    seen: list[bool] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(ctx.turn_ended)
        await (ctx.complete() if ctx.history else ctx.request_input("more?"))

    async with running(handle, storage) as client:
        first = await client.send("one")
        await client.send("two", task_id=first.task_id)
    assert seen == [False, False]


async def test_turn_ended_stays_false_when_a_lifecycle_call_could_not_be_carried_out(storage: str) -> None:
    seen: list[bool] = []

    async def handle(ctx: TaskContext) -> None:
        with pytest.raises(TypeError):
            await ctx.complete_json(object())
        seen.append(ctx.turn_ended)
        await ctx.fail("that is no JSON")

    assert (await run(handle, storage=storage)).failed
    assert seen == [False]
