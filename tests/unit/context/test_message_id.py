"""`ctx.message_id`: identifier of the triggering message."""

from __future__ import annotations

import pytest

from errands import TaskContext
from tests.unit.support import Gate, reaches, run, running

pytestmark = pytest.mark.anyio


async def test_message_id_is_the_identifier_of_the_triggering_message(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.complete(ctx.message_id)

    assert (await run(handle, storage=storage, message_id="the very message")).text == "the very message"


async def test_message_id_of_a_later_turn_is_that_of_the_follow_up(storage: str) -> None:
    seen: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(ctx.message_id)
        await (ctx.complete() if ctx.history else ctx.request_input("more?"))

    async with running(handle, storage) as client:
        first = await client.send("one", message_id="m1")
        await client.send("two", task_id=first.task_id, message_id="m2")
    assert seen == ["m1", "m2"]


async def test_message_id_of_a_turn_is_that_of_its_own_message_while_others_wait(storage: str) -> None:
    seen: list[str] = []
    gate = Gate()

    async def handle(ctx: TaskContext) -> None:
        await gate()
        seen.append(ctx.message_id)
        await ctx.complete()

    async with running(handle, storage) as client:
        task_id = (await client.send("one", message_id="m1", blocking=False)).task_id
        await client.send("two", task_id=task_id, message_id="m2", blocking=False)
        await client.send("three", task_id=task_id, message_id="m3", blocking=False)
        gate.open()
        await reaches(client, task_id, "completed")
    assert seen == ["m1", "m2", "m3"]
