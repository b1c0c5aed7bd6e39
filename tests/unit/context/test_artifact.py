"""`ctx.artifact(...)`: one artifact written piece by piece, begun, continued and sealed by its block."""

from __future__ import annotations

import pytest

from errands import Part, TaskContext
from tests.unit.support import run, signature, stream

pytestmark = pytest.mark.anyio


def test_artifact_takes_a_name_an_id_and_a_description() -> None:
    assert signature(TaskContext.artifact) == (
        "(name=None, *, artifact_id=None, description=None, metadata=None, extensions=None)"
    )


async def test_what_is_written_becomes_one_artifact(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        async with ctx.artifact("report", description="monthly", metadata={"n": 1}, extensions=["urn:x"]) as artifact:
            await artifact.write("once ")
            await artifact.write("upon")
        await ctx.complete()

    task = (await run(handle, storage=storage)).raw_task
    assert task is not None
    assert task.artifacts is not None
    (artifact,) = task.artifacts
    assert (artifact.name, artifact.description, artifact.metadata, artifact.extensions) == (
        "report",
        "monthly",
        {"n": 1},
        ["urn:x"],
    )
    assert artifact.parts == [Part(text="once upon")]


async def test_the_first_piece_begins_it_the_next_continue_it_and_leaving_the_block_seals_it(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        async with ctx.artifact("report") as artifact:
            await artifact.write("a")
            await artifact.write("b")
        await ctx.complete()

    events = [event for event in await stream(handle, storage=storage) if event.kind == "artifact"]
    assert [(event.text, event.append, event.last_chunk) for event in events] == [
        ("a", False, False),
        ("b", True, False),
        ("", True, True),
    ]


async def test_a_block_left_by_an_exception_keeps_what_was_written_and_is_not_sealed(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        async with ctx.artifact("report") as artifact:
            await artifact.write("half")
            raise RuntimeError("broken")

    events = await stream(handle, storage=storage)
    assert [(event.text, event.last_chunk) for event in events if event.kind == "artifact"] == [("half", False)]
    assert events[-1].state == "failed"


@pytest.mark.parametrize(
    "piece",
    [
        Part(data={"n": 1}),
        Part(raw=b"\x00", media_type="image/png", filename="a.png"),
        Part(url="https://files.test/x", media_type="text/csv"),
    ],
    ids=["data", "bytes", "link"],
)
async def test_pieces_may_be_data_bytes_or_links_and_nothing_is_added_to_them(piece: Part, storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        async with ctx.artifact("export") as artifact:
            if piece.raw is not None:
                await artifact.write(file_bytes=piece.raw, media_type=piece.media_type, filename=piece.filename)
            elif piece.url is not None:
                await artifact.write(file_url=piece.url, media_type=piece.media_type)
            else:
                await artifact.write(data=piece.data)
        await ctx.complete()

    (artifact,) = (await run(handle, storage=storage)).artifacts
    assert artifact.parts == [piece]


async def test_its_id_is_the_given_one_or_the_name_or_its_place(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        ids = [
            ctx.artifact("named", artifact_id="given").artifact_id,
            ctx.artifact("named").artifact_id,
            ctx.artifact().artifact_id,
            ctx.artifact().artifact_id,
        ]
        await ctx.complete_json(ids)

    assert (await run(handle, storage=storage)).data == ["given", "named", "artifact-3", "artifact-4"]


async def test_two_artifacts_may_be_written_at_the_same_time(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        async with ctx.artifact("a") as a, ctx.artifact("b") as b:
            await a.write("1")
            await b.write("x")
            await a.write("2")
        await ctx.complete()

    result = await run(handle, storage=storage)
    assert {artifact.artifact_id: artifact.text for artifact in result.artifacts} == {"a": "12", "b": "x"}


async def test_a_block_in_which_nothing_is_written_gives_an_empty_artifact(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        async with ctx.artifact("empty"):
            pass
        await ctx.complete()

    result = await run(handle, storage=storage)
    assert [(artifact.name, artifact.text) for artifact in result.artifacts] == [("empty", "")]


async def test_a_turn_that_is_run_again_replaces_what_its_first_try_had_begun(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        for text in ("first try", "second try"):
            async with ctx.artifact("report") as artifact:
                await artifact.write(text)
        await ctx.complete()

    result = await run(handle, storage=storage)
    assert [artifact.text for artifact in result.artifacts] == ["second try"]
