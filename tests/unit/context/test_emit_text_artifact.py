"""`ctx.emit_text_artifact(...)`: emit a text artifact chunk, the most common streaming pattern."""

from __future__ import annotations

import pytest

from errands import Part, TaskContext
from tests.unit.support import run, signature, stream

pytestmark = pytest.mark.anyio


def test_emit_text_artifact_has_the_documented_signature() -> None:
    assert signature(TaskContext.emit_text_artifact) == (
        "(text, *, artifact_id='answer', append=False, last_chunk=False)"
    )


async def test_a_single_shot_artifact_needs_no_streaming(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("Here is the summary.", last_chunk=True)
        await ctx.complete()

    result = await run(handle, storage=storage)
    assert [(artifact.artifact_id, artifact.parts) for artifact in result.artifacts] == [
        ("answer", [Part(text="Here is the summary.")])
    ]


async def test_tokens_are_streamed_one_by_one_and_stored_as_one_text(storage: str) -> None:
    llm_stream = ["To", "ken", " by", " to", "ken"]
    total = len(llm_stream)

    async def handle(ctx: TaskContext) -> None:
        for i, token in enumerate(llm_stream):
            await ctx.emit_text_artifact(token, append=i > 0, last_chunk=i == total - 1)
        await ctx.complete()

    events = [event for event in await stream(handle, storage=storage) if event.kind == "artifact"]
    assert [event.text for event in events] == llm_stream
    assert [event.append for event in events] == [False, True, True, True, True]
    assert [event.last_chunk for event in events] == [False, False, False, False, True]
    assert (await run(handle, storage=storage)).text == "Token by token"


async def test_emit_text_artifact_takes_an_artifact_id() -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("a", artifact_id="one")
        await ctx.emit_text_artifact("b", artifact_id="two")
        await ctx.complete()

    result = await run(handle)
    assert [(artifact.artifact_id, artifact.text) for artifact in result.artifacts] == [("one", "a"), ("two", "b")]


async def test_it_does_the_same_as_emit_artifact_with_text(storage: str) -> None:
    async def with_wrapper(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("same", last_chunk=True)
        await ctx.complete()

    async def without(ctx: TaskContext) -> None:
        await ctx.emit_artifact(artifact_id="answer", text="same", last_chunk=True)
        await ctx.complete()

    assert (await run(with_wrapper, storage=storage)).artifacts == (await run(without, storage=storage)).artifacts
