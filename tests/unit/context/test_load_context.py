"""`ctx.load_context()`: load persisted conversation context for this context_id."""

from __future__ import annotations

from typing import Any

import pytest

from errands import TaskContext
from errands.engines.memory import MemoryEngine
from errands.engines.urls import engine_from_url
from errands.model.log import Scope
from errands.runtime.journal import Journal
from errands.testing import connect
from tests.unit.support import Agent, lone_context, run, running, signature

pytestmark = pytest.mark.anyio


def test_load_context_has_the_documented_signature() -> None:
    assert signature(TaskContext.load_context) == "()"


async def test_load_context_is_none_when_nothing_was_stored(storage: str) -> None:
    seen: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(await ctx.load_context())
        await ctx.complete()

    await run(handle, storage=storage)
    assert seen == [None]


async def test_load_context_is_none_when_context_id_is_not_set() -> None:
    class Answering(MemoryEngine):
        async def load_context(self, scope: Scope, context_id: str) -> bytes | None:
            return b'"of somebody else"'

    journal = Journal(Answering())
    assert await lone_context(context_id="c", journal=journal).load_context() == "of somebody else"
    assert await lone_context(context_id=None, journal=journal).load_context() is None


async def test_load_context_gives_what_update_context_saved_in_an_earlier_turn(storage: str) -> None:
    seen: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(await ctx.load_context())
        await ctx.update_context({"turn": len(seen)})
        await (ctx.complete() if ctx.history else ctx.request_input("more?"))

    async with running(handle, storage) as client:
        first = await client.send("one")
        await client.send("two", task_id=first.task_id)
    assert seen == [None, {"turn": 1}]


async def test_load_context_gives_what_another_task_of_the_conversation_saved(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        seen = await ctx.load_context() or []
        await ctx.update_context([*seen, ctx.user_text])
        await ctx.complete_json(seen)

    async with running(handle, storage) as client:
        await client.send("one", context_id="c")
        await client.send("two", context_id="c")
        third = await client.send("three", context_id="c")
        other = await client.send("four", context_id="another")
    assert third.data == ["one", "two"]
    assert other.data == []


async def test_load_context_still_knows_after_a_restart(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        seen = await ctx.load_context()
        await ctx.update_context("known")
        await ctx.complete_json([seen])

    engine = engine_from_url(storage)
    async with connect(Agent(handle), storage=engine) as client:
        await client.send("one", context_id="c")
    async with connect(Agent(handle), storage=engine) as client:
        assert (await client.send("two", context_id="c")).data == ["known"]


async def test_the_preference_example_of_the_reference_works(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        prefs = await ctx.load_context() or {}
        lang = prefs.get("language", "en")
        await ctx.complete(f"{ctx.user_text} in {lang}")

    assert (await run(handle, "hello", storage=storage)).text == "hello in en"
