"""`ctx.emit_artifact(...)`: emit an artifact with full control over content and metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from errands import Part, TaskContext, TurnError
from errands.engines.memory import MemoryEngine
from errands.engines.sqlite import SQLiteEngine
from errands.runtime import turn
from errands.testing import connect
from tests.unit.support import Agent, Gate, first, log_of, reaches, run, running, signature, stream

pytestmark = pytest.mark.anyio

#: The task, and that it is at work.
OPENING_EVENTS = 2
CONTENTS: dict[str, Any] = {
    "text": "words",
    "data": {"n": 1},
    "file_bytes": b"\x00\x01",
    "file_url": "https://files.test/x",
}


def emitting(**arguments: Any) -> Any:
    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_artifact(**arguments)
        await ctx.complete()

    return handle


def test_emit_artifact_has_the_documented_signature() -> None:
    assert signature(TaskContext.emit_artifact) == (
        "(*, artifact_id, text=None, data=None, file_bytes=None, file_url=None, media_type=None, filename=None, "
        "name=None, description=None, append=False, last_chunk=False, metadata=None, extensions=None)"
    )


@pytest.mark.parametrize(
    ("argument", "part"),
    [
        ("text", Part(text="words")),
        ("data", Part(data={"n": 1})),
        ("file_bytes", Part(raw=b"\x00\x01")),
        ("file_url", Part(url="https://files.test/x")),
    ],
)
async def test_text_data_file_bytes_and_file_urls_are_supported(argument: str, part: Part, storage: str) -> None:
    result = await run(emitting(artifact_id="a", **{argument: CONTENTS[argument]}), storage=storage)
    assert result.completed
    assert [artifact.parts for artifact in result.artifacts] == [[part]]


@pytest.mark.parametrize(
    "given",
    [[], ["text", "data"], ["text", "file_url"], ["file_bytes", "file_url"], list(CONTENTS)],
    ids=lambda given: " and ".join(given) or "nothing",
)
async def test_anything_but_exactly_one_content_argument_is_refused(given: list[str]) -> None:
    errors: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        try:
            await ctx.emit_artifact(artifact_id="a", **{name: CONTENTS[name] for name in given})
        except ValueError as error:
            errors.append(str(error))
        await ctx.complete()

    result = await run(handle)
    assert result.completed
    assert result.artifacts == []
    assert errors == [f"give exactly one of text, data, file_bytes and file_url, not {' and '.join(given) or 'none'}"]


@pytest.mark.parametrize(
    ("argument", "empty"), [("text", ""), ("file_bytes", b""), ("data", {}), ("data", 0), ("data", False)]
)
async def test_empty_content_is_content(argument: str, empty: Any) -> None:
    (artifact,) = (await run(emitting(artifact_id="a", **{argument: empty}))).artifacts
    assert len(artifact.parts) == 1


async def test_every_argument_arrives_where_it_belongs(storage: str) -> None:
    handle = emitting(
        artifact_id="export",
        file_bytes=b"a;b",
        media_type="text/csv",
        filename="report.csv",
        name="Monthly Report",
        description="What came in",
        metadata={"month": 7},
        extensions=["https://extensions.test/x"],
        last_chunk=True,
    )
    task = (await run(handle, storage=storage)).raw_task
    assert task is not None
    assert task.artifacts is not None
    (artifact,) = task.artifacts
    assert artifact.artifact_id == "export"
    assert artifact.parts == [Part(raw=b"a;b", media_type="text/csv", filename="report.csv")]
    assert artifact.name == "Monthly Report"
    assert artifact.description == "What came in"
    assert artifact.metadata == {"month": 7}
    assert artifact.extensions == ["https://extensions.test/x"]


class Early:
    """A handler that emits an artifact, and is then held at a gate."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def __call__(self, ctx: TaskContext) -> None:
        await ctx.emit_artifact(artifact_id="a", text="early")
        await self.gate()
        await ctx.complete()


async def test_artifacts_are_streamed_to_subscribers_immediately(storage: str) -> None:
    handle = Early()
    async with running(handle, storage) as client:
        async for event in client.stream("hi"):
            if event.kind == "artifact":
                assert (event.text, event.artifact_id, event.append, event.last_chunk) == ("early", "a", False, False)
                handle.gate.open()
    assert event.state == "completed"


async def test_emitted_artifacts_are_persisted_before_the_task_is_complete(storage: str) -> None:
    handle = Early()
    async with running(handle, storage) as client:
        task_id = (await client.send("hi", blocking=False)).task_id
        await first(client.subscribe(task_id), lambda event: event.text == "early")
        polled = await client.get_task(task_id)
        handle.gate.open()
        await reaches(client, task_id, "completed")
    assert polled.state == "working"
    assert polled.text == "early"


async def test_many_chunks_are_batched_for_persistence(tmp_path: Path) -> None:
    async def handle(ctx: TaskContext) -> None:
        for number in range(500):
            await ctx.emit_artifact(artifact_id="a", text=f"{number} ", append=number > 0)
        await ctx.complete()

    engine = SQLiteEngine(tmp_path / "tasks.db")
    async with connect(Agent(handle), storage=engine) as client:
        before = engine.store.transactions
        result = await client.send("hi")
        assert engine.store.transactions - before < 50
    assert result.text == "".join(f"{number} " for number in range(500))


async def test_append_continues_an_artifact_and_its_text_is_whole(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        chunks = ["Once ", "upon ", "a time"]
        for i, chunk in enumerate(chunks):
            await ctx.emit_artifact(artifact_id="story", text=chunk, append=i > 0, last_chunk=i == len(chunks) - 1)
        await ctx.complete()

    result = await run(handle, storage=storage)
    assert [(artifact.artifact_id, artifact.parts) for artifact in result.artifacts] == [
        ("story", [Part(text="Once upon a time")])
    ]


async def test_a_stream_shows_each_chunk_with_its_flags(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        for i in range(3):
            await ctx.emit_artifact(artifact_id="story", text=str(i), append=i > 0, last_chunk=i == 2)
        await ctx.complete()

    events = [event for event in await stream(handle, storage=storage) if event.kind == "artifact"]
    assert [(event.text, event.append, event.last_chunk) for event in events] == [
        ("0", False, False),
        ("1", True, False),
        ("2", True, True),
    ]


async def test_without_append_an_artifact_of_the_same_id_is_replaced(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_artifact(artifact_id="a", text="first", name="First")
        await ctx.emit_artifact(artifact_id="a", text="second")
        await ctx.complete()

    (artifact,) = (await run(handle, storage=storage)).artifacts
    assert (artifact.text, artifact.name) == ("second", None)


async def test_append_to_an_artifact_that_is_not_there_begins_it(storage: str) -> None:
    (artifact,) = (await run(emitting(artifact_id="a", text="first", append=True), storage=storage)).artifacts
    assert artifact.text == "first"


async def test_appended_pieces_of_other_kinds_stay_parts_of_their_own(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_artifact(artifact_id="a", text="see ")
        await ctx.emit_artifact(artifact_id="a", text="this: ", append=True)
        await ctx.emit_artifact(artifact_id="a", data={"n": 1}, append=True)
        await ctx.emit_artifact(artifact_id="a", text="!", append=True)
        await ctx.complete()

    (artifact,) = (await run(handle, storage=storage)).artifacts
    assert artifact.parts == [Part(text="see this: "), Part(data={"n": 1}), Part(text="!")]


async def test_appending_may_add_to_the_description_and_metadata(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_artifact(artifact_id="a", text="1", name="Name", metadata={"kept": 1, "changed": 1})
        await ctx.emit_artifact(artifact_id="a", text="2", append=True, description="late", metadata={"changed": 2})
        await ctx.complete()

    (artifact,) = (await run(handle, storage=storage)).artifacts
    assert (artifact.name, artifact.description) == ("Name", "late")
    assert artifact.metadata == {"kept": 1, "changed": 2}


async def test_artifacts_keep_the_order_in_which_they_were_begun(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        for artifact_id in ("b", "a", "c"):
            await ctx.emit_artifact(artifact_id=artifact_id, text="1")
        await ctx.emit_artifact(artifact_id="b", text="2", append=True)
        await ctx.complete()

    result = await run(handle, storage=storage)
    assert [(artifact.artifact_id, artifact.text) for artifact in result.artifacts] == [
        ("b", "12"),
        ("a", "1"),
        ("c", "1"),
    ]


async def test_a_full_window_makes_the_emitter_wait_and_loses_nothing(
    storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn, "WINDOW_EVENTS", 4)
    monkeypatch.setattr(turn, "FOLD_BYTES", 512)

    async def handle(ctx: TaskContext) -> None:
        for number in range(60):
            await ctx.emit_artifact(artifact_id="a", text=f"{number} ", append=number > 0)
        await ctx.complete()

    result = await run(handle, storage=storage)
    assert result.text == "".join(f"{number} " for number in range(60))


async def test_emitting_faster_than_the_log_is_written_is_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "WINDOW_EVENTS", 4)
    written: list[int] = []

    async def handle(ctx: TaskContext) -> None:
        for number in range(12):
            await ctx.emit_artifact(artifact_id="a", text=f"{number} ", append=number > 0)
            written.append(len(await log_of(engine, ctx.task_id)) - OPENING_EVENTS)
        await ctx.complete()

    engine = MemoryEngine()
    async with connect(Agent(handle), storage=engine) as client:
        await client.send("hi")
    assert all(count > number - 4 for number, count in enumerate(written))


async def test_what_cannot_be_encoded_is_refused_at_the_call(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        with pytest.raises(TypeError):
            await ctx.emit_artifact(artifact_id="a", data={"no": object()})
        await ctx.complete("still fine")

    assert (await run(handle, storage=storage)).text == "still fine"


async def test_nothing_can_be_emitted_after_the_turn_has_ended(storage: str) -> None:
    errors: list[TurnError] = []

    async def handle(ctx: TaskContext) -> None:
        await ctx.complete("done")
        try:
            await ctx.emit_artifact(artifact_id="late", text="late")
        except TurnError as error:
            errors.append(error)

    result = await run(handle, storage=storage)
    assert [artifact.text for artifact in result.artifacts] == ["done"]
    assert len(errors) == 1
