"""`ctx.history`: previous messages in this task, excluding the current message."""

from __future__ import annotations

import dataclasses

import pytest

from errands import HistoryMessage, Part, TaskContext
from tests.unit.support import Gate, reaches, run, running, spoken

pytestmark = pytest.mark.anyio


def texts(ctx: TaskContext) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in ctx.history]


async def test_history_is_empty_on_the_first_turn(storage: str) -> None:
    seen: list[list[HistoryMessage]] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(ctx.history)
        await ctx.complete()

    await run(handle, storage=storage)
    assert seen == [[]]


async def test_history_has_both_sides_and_excludes_the_current_message(storage: str) -> None:
    seen: list[list[tuple[str, str]]] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(texts(ctx))
        await (ctx.complete() if len(ctx.history) == 4 else ctx.request_input(f"and after {ctx.user_text}?"))

    async with running(handle, storage) as client:
        task_id = (await client.send("one")).task_id
        await client.send("two", task_id=task_id)
        await client.send("three", task_id=task_id)
    assert seen[2] == [
        ("user", "one"),
        ("agent", "and after one?"),
        ("user", "two"),
        ("agent", "and after two?"),
    ]


async def test_each_history_message_has_role_text_parts_and_message_id(storage: str) -> None:
    seen: list[HistoryMessage] = []

    async def handle(ctx: TaskContext) -> None:
        seen.extend(ctx.history)
        await (ctx.complete() if ctx.history else ctx.request_input("more?"))

    parts = [Part(text="a"), Part(data={"n": 1}), Part(text="b")]
    async with running(handle, storage) as client:
        first = await client.send(parts, message_id="m1")
        await client.send("two", task_id=first.task_id)
    assert seen[0] == HistoryMessage(role="user", text="a\nb", parts=parts, message_id="m1")
    assert (seen[1].role, seen[1].text, seen[1].parts) == ("agent", "more?", [Part(text="more?")])
    assert seen[1].message_id


def test_history_messages_are_frozen() -> None:
    message = HistoryMessage(role="user", text="a", parts=[], message_id="m")
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.text = "b"  # type: ignore[misc]


async def test_history_has_nothing_of_other_tasks_in_the_same_conversation(storage: str) -> None:
    seen: list[list[tuple[str, str]]] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(texts(ctx))
        await ctx.respond("noted")

    async with running(handle, storage) as client:
        await client.send("one", context_id="c")
        await client.send("two", context_id="c")
    assert seen == [[], []]


async def test_history_leaves_out_progress_updates(storage: str) -> None:
    seen: list[list[tuple[str, str]]] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(texts(ctx))
        await ctx.send_status("half way")
        await (ctx.complete() if ctx.history else ctx.request_input("more?"))

    async with running(handle, storage) as client:
        first = await client.send("one")
        await client.send("two", task_id=first.task_id)
    assert seen[1] == [("user", "one"), ("agent", "more?")]


@pytest.mark.parametrize("answer", ["respond", "request_input"])
async def test_history_has_what_the_agent_said_while_the_current_message_was_waiting(answer: str, storage: str) -> None:
    gate = Gate()
    seen: list[list[tuple[str, str]]] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(texts(ctx))
        if ctx.user_text == "one":
            await gate()
            await getattr(ctx, answer)("to one")
        else:
            await ctx.respond(f"to {ctx.user_text}")

    async with running(handle, storage) as client:
        task_id = (await client.send("one", blocking=False)).task_id
        await client.send("two", task_id=task_id, blocking=False)
        await client.send("three", task_id=task_id, blocking=False)
        gate.open()
        result = await reaches(client, task_id, "completed")
    assert seen[1] == [("user", "one"), ("agent", "to one")]
    assert seen[2] == [("user", "one"), ("user", "two"), ("agent", "to one"), ("agent", "to two")]
    assert spoken(result) == ["one", "two", "three", "to one", "to two", "to three"]


async def test_the_conversation_example_of_the_reference_works(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        if ctx.history:
            prev = ctx.history[-1]
            await ctx.complete(f"You previously said: {prev.text}")
        else:
            await ctx.request_input("What would you like to discuss?")

    async with running(handle, storage) as client:
        first = await client.send("hello")
        second = await client.send("weather", task_id=first.task_id)
    assert first.text == "What would you like to discuss?"
    assert second.text == "You previously said: What would you like to discuss?"
