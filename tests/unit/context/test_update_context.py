"""`ctx.update_context(context)`: persist conversation context for this context_id."""

from __future__ import annotations

from typing import Any

import pytest

from errands import TaskContext
from errands.engines.memory import MemoryEngine
from errands.model.log import Change, Head
from errands.runtime.journal import Journal
from tests.unit.support import lone_context, run, running, said, signature

pytestmark = pytest.mark.anyio


def test_update_context_has_the_documented_signature() -> None:
    assert signature(TaskContext.update_context) == "(context)"


@pytest.mark.parametrize("value", [{"a": [1, {"b": None}]}, [], "text", 7, 2**53 + 1, 1.5, False, {}], ids=repr)
async def test_any_json_serializable_value_can_be_kept(value: Any, storage: str) -> None:
    seen: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        await ctx.update_context(value)
        seen.append(await ctx.load_context())
        await ctx.complete()

    await run(handle, storage=storage)
    assert seen == [value]
    assert type(seen[0]) is type(value)


async def test_the_context_is_stored_per_context_id(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        if ctx.user_text != "what was it?":
            await ctx.update_context(ctx.user_text)
        await ctx.complete_json([await ctx.load_context()])

    async with running(handle, storage) as client:
        await client.send("red", context_id="a")
        await client.send("blue", context_id="b")
        assert (await client.send("what was it?", context_id="a")).data == ["red"]
        assert (await client.send("what was it?", context_id="b")).data == ["blue"]


async def test_the_last_update_is_what_counts(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.update_context({"old": 1})
        await ctx.update_context({"new": 2})
        await ctx.complete_json(await ctx.load_context())

    assert (await run(handle, storage=storage)).data == {"new": 2}


async def test_the_context_is_kept_even_when_the_task_fails(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        if ctx.user_text == "break":
            await ctx.update_context("kept")
            raise RuntimeError
        await ctx.complete_json([await ctx.load_context()])

    async with running(handle, storage) as client:
        await client.send("break", context_id="c")
        assert (await client.send("look", context_id="c")).data == ["kept"]


async def test_update_context_does_nothing_when_context_id_is_not_set() -> None:
    saved: list[bytes | None] = []

    class Noting(MemoryEngine):
        async def commit(self, change: Change) -> Head:
            saved.append(change.context)
            return Head(version=1)

    journal = Journal(Noting())
    await lone_context(context_id="c", journal=journal).update_context("kept")
    await lone_context(context_id=None, journal=journal).update_context("lost")
    assert saved == [b'"kept"']


async def test_what_is_no_json_is_refused_and_the_former_value_stays(storage: str) -> None:
    seen: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        await ctx.update_context("former")
        with pytest.raises(TypeError):
            await ctx.update_context(object())
        seen.append(await ctx.load_context())
        await ctx.complete()

    await run(handle, storage=storage)
    assert seen == ["former"]


async def test_the_preference_example_of_the_reference_works(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        prefs = await ctx.load_context() or {}
        prefs["language"] = ctx.user_text
        await ctx.update_context(prefs)
        await ctx.respond("Language preference saved.")

    result = await run(handle, "fr", storage=storage)
    assert said(result) == "Language preference saved."
