"""`ctx.previous_artifacts`: artifacts produced by this task in previous turns."""

from __future__ import annotations

import dataclasses

import pytest

from errands import Part, PreviousArtifact, TaskContext
from tests.unit.support import run, running

pytestmark = pytest.mark.anyio


async def test_previous_artifacts_are_empty_on_the_first_turn(storage: str) -> None:
    seen: list[list[PreviousArtifact]] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(ctx.previous_artifacts)
        await ctx.complete("result")

    await run(handle, storage=storage)
    assert seen == [[]]


async def test_each_previous_artifact_has_artifact_id_name_and_parts(storage: str) -> None:
    seen: list[list[PreviousArtifact]] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(ctx.previous_artifacts)
        if ctx.history:
            await ctx.complete("final")
            return
        await ctx.emit_artifact(artifact_id="draft", text="once ", name="Draft")
        await ctx.emit_artifact(artifact_id="draft", text="upon", append=True, last_chunk=True)
        await ctx.emit_data_artifact({"words": 2}, artifact_id="facts")
        await ctx.request_input("better?")

    async with running(handle, storage) as client:
        first = await client.send("write")
        await client.send("shorter", task_id=first.task_id)
    assert seen[1] == [
        PreviousArtifact(artifact_id="draft", name="Draft", parts=[Part(text="once upon")]),
        PreviousArtifact(
            artifact_id="facts", name=None, parts=[Part(data={"words": 2}, media_type="application/json")]
        ),
    ]


async def test_previous_artifacts_do_not_change_while_the_turn_emits_new_ones(storage: str) -> None:
    seen: list[list[str]] = []

    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("now", artifact_id=ctx.user_text)
        seen.append([artifact.artifact_id for artifact in ctx.previous_artifacts])
        await (ctx.complete() if ctx.history else ctx.request_input("more?"))

    async with running(handle, storage) as client:
        first = await client.send("one")
        await client.send("two", task_id=first.task_id)
    assert seen == [[], ["one"]]


def test_previous_artifacts_are_frozen() -> None:
    artifact = PreviousArtifact(artifact_id="a", name=None, parts=[])
    with pytest.raises(dataclasses.FrozenInstanceError):
        artifact.name = "b"  # type: ignore[misc]


async def test_the_refinement_example_of_the_reference_works(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        if ctx.previous_artifacts:
            prev = ctx.previous_artifacts[-1]
            await ctx.complete(f"Refining: {prev.parts[0].text}")
            return
        await ctx.emit_text_artifact("a first draft")
        await ctx.request_input("What should change?")

    async with running(handle, storage) as client:
        first = await client.send("write")
        second = await client.send("the tone", task_id=first.task_id)
    assert second.raw_task is not None
    assert [artifact.text for artifact in second.artifacts] == ["a first draft", "Refining: a first draft"]
