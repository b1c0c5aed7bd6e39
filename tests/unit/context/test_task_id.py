"""`ctx.task_id`: current task identifier."""

from __future__ import annotations

import uuid

import pytest

from errands import TaskContext
from tests.unit.support import run, running

pytestmark = pytest.mark.anyio


async def test_task_id_is_the_identifier_of_the_current_task(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.complete(ctx.task_id)

    result = await run(handle, storage=storage)
    assert result.text == result.task_id


async def test_task_id_is_a_uuid() -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.complete(ctx.task_id)

    task_id = (await run(handle)).text
    assert task_id is not None
    assert str(uuid.UUID(task_id)) == task_id
    assert uuid.UUID(task_id).version == 7


async def test_task_id_stays_the_same_in_every_turn_of_a_task(storage: str) -> None:
    seen: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(ctx.task_id)
        await (ctx.complete() if ctx.history else ctx.request_input("more?"))

    async with running(handle, storage) as client:
        first = await client.send("one")
        await client.send("two", task_id=first.task_id)
    assert seen == [first.task_id, first.task_id]


async def test_every_task_has_a_task_id_of_its_own(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.complete(ctx.task_id)

    async with running(handle, storage) as client:
        first = await client.send("one")
        second = await client.send("two", context_id=first.context_id)
    assert first.text != second.text
