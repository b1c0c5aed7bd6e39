"""`ctx.user_text`: the user's input as plain text (all text parts joined)."""

from __future__ import annotations

import pytest

from errands import Part, TaskContext
from tests.unit.support import run, running

pytestmark = pytest.mark.anyio


async def echo(ctx: TaskContext) -> None:
    await ctx.complete(ctx.user_text)


@pytest.mark.parametrize("text", ["hello", "zwei\nZeilen", "  spaces  ", "日本語 🎈", '{"json": "stays text"}'])
async def test_user_text_is_the_users_input_as_plain_text(text: str, storage: str) -> None:
    assert (await run(echo, text, storage=storage)).text == text


async def test_user_text_is_all_text_parts_joined_by_line_breaks(storage: str) -> None:
    parts = [Part(text="first"), Part(text="second"), Part(text="third")]
    assert (await run(echo, parts, storage=storage)).text == "first\nsecond\nthird"


async def test_user_text_passes_over_parts_that_are_not_text() -> None:
    parts = [Part(text="before"), Part(data={"text": "not this"}), Part(url="http://files.test/a"), Part(text="after")]
    assert (await run(echo, parts)).text == "before\nafter"


async def test_user_text_is_empty_when_the_message_has_no_text() -> None:
    assert (await run(echo, [Part(data={"query": 1})])).text == ""


async def test_user_text_of_a_later_turn_is_that_of_the_follow_up_alone(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await (ctx.complete(ctx.user_text) if ctx.history else ctx.request_input("more?"))

    async with running(handle, storage) as client:
        first = await client.send("one")
        assert (await client.send("two", task_id=first.task_id)).text == "two"
