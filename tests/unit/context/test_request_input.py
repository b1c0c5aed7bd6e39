"""`ctx.request_input(question)`: ask the user for additional input (multi-turn conversation)."""

from __future__ import annotations

import msgspec
import pytest

from errands import Part, TaskContext
from tests.unit.support import run, running, said, signature, spoken, stream

pytestmark = pytest.mark.anyio


class Colour(msgspec.Struct):
    name: str
    depth: int = 8


def test_request_input_takes_the_question_and_beyond_the_reference_a_schema() -> None:
    assert signature(TaskContext.request_input) == "(question, *, schema=None)"


async def test_request_input_transitions_the_task_to_input_required(storage: str) -> None:
    assert (await run(lambda ctx: ctx.request_input("which?"), storage=storage)).input_required


async def test_the_client_can_display_the_question(storage: str) -> None:
    async with running(lambda ctx: ctx.request_input("which?"), storage) as client:
        sent = await client.send("hi")
        later = await client.get_task(sent.task_id)
    assert said(sent) == said(later) == "which?"


async def test_a_stream_ends_with_the_question(storage: str) -> None:
    ending = (await stream(lambda ctx: ctx.request_input("which?"), storage=storage))[-1]
    assert (ending.kind, ending.state, ending.text, ending.is_final) == ("status", "input-required", "which?", True)


async def test_the_question_joins_the_history(storage: str) -> None:
    assert spoken(await run(lambda ctx: ctx.request_input("which?"), storage=storage)) == ["hi", "which?"]


async def test_a_follow_up_in_the_same_conversation_continues_the_task(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await (ctx.complete(f"then {ctx.user_text}") if ctx.history else ctx.request_input("which?"))

    async with running(handle, storage) as client:
        conversation = client.conversation()
        first = await conversation.send("colour it")
        second = await conversation.send("blue")
    assert second.task_id == first.task_id
    assert second.context_id == first.context_id
    assert second.completed
    assert second.text == "then blue"


async def test_the_translation_example_of_the_reference_works(storage: str) -> None:
    def translate(text: str, language: str) -> str:
        return f"{text} in {language}"

    async def handle(ctx: TaskContext) -> None:
        if not ctx.history:
            await ctx.request_input("What language should I translate to?")
            return
        target_lang = ctx.user_text
        await ctx.complete(translate(ctx.history[0].text, target_lang))

    async with running(handle, storage) as client:
        first = await client.send("good morning")
        second = await client.send("French", task_id=first.task_id, context_id=first.context_id)
    assert second.text == "good morning in French"


async def test_without_a_schema_the_question_is_all_that_is_sent() -> None:
    result = await run(lambda ctx: ctx.request_input("which?"))
    assert result.raw_task is not None
    assert result.raw_task.status.message is not None
    assert result.raw_task.status.message.parts == [Part(text="which?")]


async def test_with_a_type_as_schema_the_client_is_told_the_shape_of_the_answer(storage: str) -> None:
    result = await run(lambda ctx: ctx.request_input("which?", schema=Colour), storage=storage)
    assert result.raw_task is not None
    assert result.raw_task.status.message is not None
    question, shape = result.raw_task.status.message.parts
    assert question == Part(text="which?")
    assert shape == Part(data={"schema": msgspec.json.schema(Colour)}, media_type="application/schema+json")
    assert result.data["schema"]["$defs"]["Colour"]["required"] == ["name"]


async def test_with_a_json_schema_the_client_is_told_that_very_schema(storage: str) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    result = await run(lambda ctx: ctx.request_input("which?", schema=schema), storage=storage)
    assert result.data == {"schema": schema}
