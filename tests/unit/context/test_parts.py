"""`ctx.parts`: raw A2A message parts (text, files, data)."""

from __future__ import annotations

import pytest

from errands import Part, TaskContext
from errands.testing import connect
from tests.unit.support import Agent, open_card

pytestmark = pytest.mark.anyio

PARTS = [
    Part(text="read these"),
    Part(raw=b"\x00\xff", filename="two.bin", media_type="application/octet-stream"),
    Part(url="https://files.test/a.pdf", media_type="application/pdf"),
    Part(data={"nested": [1, 2.5, None, {"deep": True}]}, metadata={"from": "a form"}),
]


async def parts_seen(parts: list[Part], storage: str) -> list[Part]:
    seen: list[Part] = []

    async def handle(ctx: TaskContext) -> None:
        seen.extend(ctx.parts)
        await ctx.complete()

    async with connect(Agent(handle), storage=storage, agent_card=open_card()) as client:
        await client.send(parts)
    return seen


async def test_parts_are_the_messages_parts_as_they_came_and_in_their_order(storage: str) -> None:
    assert await parts_seen(PARTS, storage) == PARTS


async def test_parts_keep_numbers_as_they_were_written(storage: str) -> None:
    numbers = {"whole": 1, "beyond a float": 2**53 + 1, "fraction": 1.0}
    (part,) = await parts_seen([Part(data=numbers)], storage)
    assert part.data == numbers
    assert [type(value) for value in part.data.values()] == [int, int, float]


async def test_parts_tell_a_null_from_no_data(storage: str) -> None:
    null, text = await parts_seen([Part(data=None), Part(text="")], storage)
    assert null.data is None
    assert text.data is not None
