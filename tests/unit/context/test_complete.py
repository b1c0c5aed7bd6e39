"""`ctx.complete(text=None, *, artifact_id="final-answer")`: complete the task, optionally with a text artifact."""

from __future__ import annotations

import pytest

from errands import Part, TaskContext
from tests.unit.support import run, running, said, signature, stream

pytestmark = pytest.mark.anyio


def test_complete_has_the_documented_signature() -> None:
    assert signature(TaskContext.complete) == "(text=None, *, artifact_id='final-answer')"


async def test_complete_finishes_the_task_with_the_text_as_an_artifact(storage: str) -> None:
    result = await run(lambda ctx: ctx.complete("The answer is 42"), storage=storage)
    assert result.completed
    assert [(artifact.artifact_id, artifact.text) for artifact in result.artifacts] == [
        ("final-answer", "The answer is 42")
    ]


async def test_the_text_is_persisted_as_an_artifact_that_clients_can_retrieve_later(storage: str) -> None:
    async with running(lambda ctx: ctx.complete("kept"), storage) as client:
        task_id = (await client.send("hi")).task_id
        later = await client.get_task(task_id)
    assert later.raw_task is not None
    assert [artifact.parts for artifact in later.artifacts] == [[Part(text="kept")]]


async def test_complete_without_arguments_completes_with_no_output(storage: str) -> None:
    result = await run(lambda ctx: ctx.complete(), storage=storage)
    assert result.completed
    assert result.artifacts == []
    assert said(result) is None


async def test_an_empty_text_is_a_text(storage: str) -> None:
    result = await run(lambda ctx: ctx.complete(""), storage=storage)
    assert [artifact.text for artifact in result.artifacts] == [""]


async def test_complete_without_text_after_streaming_chunks_keeps_what_was_streamed(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        for chunk in ("a", "b", "c"):
            await ctx.emit_text_artifact(chunk, append=True)
        await ctx.complete()

    result = await run(handle, storage=storage)
    assert result.completed
    assert [(artifact.artifact_id, artifact.text) for artifact in result.artifacts] == [("answer", "abc")]


async def test_a_custom_artifact_id_stands_beside_other_artifacts(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("notes", artifact_id="notes")
        await ctx.complete("Final report", artifact_id="report")

    result = await run(handle, storage=storage)
    assert {artifact.artifact_id: artifact.text for artifact in result.artifacts} == {
        "notes": "notes",
        "report": "Final report",
    }


async def test_complete_sends_the_artifact_as_its_last_chunk_and_then_the_state(storage: str) -> None:
    events = await stream(lambda ctx: ctx.complete("whole"), storage=storage)
    artifact, ending = events[-2:]
    assert (artifact.kind, artifact.text, artifact.append, artifact.last_chunk) == ("artifact", "whole", False, True)
    assert (ending.kind, ending.state, ending.is_final) == ("status", "completed", True)


async def test_complete_replaces_an_artifact_of_the_same_id(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("draft", artifact_id="final-answer")
        await ctx.complete("final")

    result = await run(handle, storage=storage)
    assert [artifact.text for artifact in result.artifacts] == ["final"]


async def test_complete_adds_no_message_to_the_history(storage: str) -> None:
    result = await run(lambda ctx: ctx.complete("a deliverable"), storage=storage)
    assert result.raw_task is not None
    assert len(result.raw_task.history or []) == 1
