"""`ctx.emit_data_artifact(...)`: emit a structured data artifact chunk."""

from __future__ import annotations

import pytest

from errands import Part, TaskContext
from tests.unit.support import run, signature, stream

pytestmark = pytest.mark.anyio


def test_emit_data_artifact_has_the_documented_signature() -> None:
    assert signature(TaskContext.emit_data_artifact) == (
        "(data, *, artifact_id='answer', media_type='application/json', append=False, last_chunk=False)"
    )


async def test_a_structured_result_is_one_artifact(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        users = ["ada", "bob"]
        await ctx.emit_data_artifact({"users": users, "total": len(users)}, last_chunk=True)
        await ctx.complete()

    result = await run(handle, storage=storage)
    assert result.data == {"users": ["ada", "bob"], "total": 2}
    assert [artifact.artifact_id for artifact in result.artifacts] == ["answer"]


async def test_media_type_is_set_in_artifact_metadata_and_defaults_to_application_json(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_data_artifact({}, artifact_id="plain")
        await ctx.emit_data_artifact({}, artifact_id="geo", media_type="application/geo+json")
        await ctx.complete()

    result = await run(handle, storage=storage)
    assert {artifact.artifact_id: artifact.metadata for artifact in result.artifacts} == {
        "plain": {"media_type": "application/json"},
        "geo": {"media_type": "application/geo+json"},
    }


async def test_rows_are_streamed_incrementally_and_stored_as_parts_of_one_artifact(storage: str) -> None:
    query_results = [{"id": 1}, {"id": 2}, {"id": 3}]
    total = len(query_results)

    async def handle(ctx: TaskContext) -> None:
        for i, row in enumerate(query_results):
            await ctx.emit_data_artifact(row, append=i > 0, last_chunk=i == total - 1)
        await ctx.complete()

    events = [event for event in await stream(handle, storage=storage) if event.kind == "artifact"]
    assert [(event.data, event.append, event.last_chunk) for event in events] == [
        ({"id": 1}, False, False),
        ({"id": 2}, True, False),
        ({"id": 3}, True, True),
    ]
    (artifact,) = (await run(handle, storage=storage)).artifacts
    assert artifact.parts == [Part(data=row, media_type="application/json") for row in query_results]
    assert artifact.metadata == {"media_type": "application/json"}


async def test_null_is_data_too(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_data_artifact(None)
        await ctx.complete()

    (artifact,) = (await run(handle, storage=storage)).artifacts
    assert artifact.parts == [Part(data=None, media_type="application/json")]
