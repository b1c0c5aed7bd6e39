"""`ctx.data_parts`: structured data parts from the user message, each as a plain dict, and `ctx.json_values`."""

from __future__ import annotations

from typing import Any

import pytest

from errands import Part, TaskContext
from tests.unit.support import run

pytestmark = pytest.mark.anyio


async def data_seen(parts: list[Part], storage: str = "memory", *, of: str = "data_parts") -> list[Any]:
    seen: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        seen.extend(getattr(ctx, of))
        await ctx.complete()

    await run(handle, parts, storage=storage)
    return seen


async def test_data_parts_are_each_data_part_as_a_plain_dict(storage: str) -> None:
    parts = [Part(data={"query": "a"}), Part(text="between"), Part(data={"query": "b", "limit": 5})]
    seen = await data_seen(parts, storage)
    assert seen == [{"query": "a"}, {"query": "b", "limit": 5}]
    assert all(type(value) is dict for value in seen)


@pytest.mark.parametrize("value", [[1, 2], "text", 7, 2**53 + 1, 1.5, True, None], ids=repr)
async def test_json_values_may_be_any_json_and_data_parts_are_the_dicts_among_them(value: Any, storage: str) -> None:
    parts = [Part(data={"a": 1}), Part(data=value)]
    first, second = await data_seen(parts, storage, of="json_values")
    assert (first, second) == ({"a": 1}, value)
    assert type(second) is type(value)
    assert await data_seen(parts) == [{"a": 1}]


async def test_data_parts_are_empty_when_the_message_has_none() -> None:
    assert await data_seen([Part(text='{"query": "only text"}')]) == []
    assert await data_seen([Part(text='{"query": "only text"}')], of="json_values") == []


async def test_the_query_example_of_the_reference_works() -> None:
    def run_query(query: str) -> list[str]:
        return [query.upper()]

    async def handle(ctx: TaskContext) -> None:
        for part in ctx.data_parts:
            if "query" in part:
                results = run_query(part["query"])
                await ctx.complete_json(results)
                return

    assert (await run(handle, [Part(data={"other": 1}), Part(data={"query": "rows"})])).data == ["ROWS"]
