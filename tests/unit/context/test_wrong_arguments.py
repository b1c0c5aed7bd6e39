"""A wrong argument raises at the call, names the argument, and nothing is written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from errands import (
    Artifact,
    LifecycleHooks,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskContext,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
    Worker,
)
from errands.runtime.validation import MAX_LEVELS
from errands.testing import connect
from tests.unit.support import run, running

pytestmark = pytest.mark.anyio

Call = Callable[[TaskContext], Awaitable[None]]


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def piece(**wrong: Any) -> Call:
    return lambda ctx: ctx.emit_artifact(**{"artifact_id": "a", "text": "x", **wrong})


async def written(ctx: TaskContext, **described: Any) -> None:
    async with ctx.artifact(**described) as artifact:
        await artifact.write("x")


#: What is called, and the argument that is wrong.
WRONG: list[tuple[Call, str]] = [
    (lambda ctx: ctx.complete(42), "text"),  # type: ignore[arg-type]
    (lambda ctx: ctx.complete({"a": 1}), "text"),  # type: ignore[arg-type]
    (lambda ctx: ctx.complete("x", artifact_id=""), "artifact_id"),
    (lambda ctx: ctx.complete("x", artifact_id=5), "artifact_id"),  # type: ignore[arg-type]
    (lambda ctx: ctx.complete("half a character: \ud800"), "text"),
    (lambda ctx: ctx.complete_json(object()), "data"),
    (lambda ctx: ctx.complete_json(nested(MAX_LEVELS + 1)), "data"),
    (lambda ctx: ctx.complete_json(nested(100_000)), "data"),
    (lambda ctx: ctx.respond(5), "text"),  # type: ignore[arg-type]
    (lambda ctx: ctx.reply_directly(None), "text"),  # type: ignore[arg-type]
    (lambda ctx: ctx.fail(ValueError("x")), "reason"),  # type: ignore[arg-type]
    (lambda ctx: ctx.reject(5), "reason"),  # type: ignore[arg-type]
    (lambda ctx: ctx.request_input(5), "question"),  # type: ignore[arg-type]
    (lambda ctx: ctx.request_input("which?", schema=5), "schema"),  # type: ignore[arg-type]
    (lambda ctx: ctx.request_input("which?", schema={"const": object()}), "schema"),
    (lambda ctx: ctx.request_auth(5), "details"),  # type: ignore[arg-type]
    (lambda ctx: ctx.request_auth(schemes="bearer"), "schemes"),  # type: ignore[arg-type]
    (lambda ctx: ctx.request_auth(auth_url=5), "auth_url"),  # type: ignore[arg-type]
    (lambda ctx: ctx.send_status(5), "message"),  # type: ignore[arg-type]
    (lambda ctx: ctx.emit_text_artifact(7), "text"),  # type: ignore[arg-type]
    (lambda ctx: ctx.emit_text_artifact("x", append="yes"), "append"),  # type: ignore[arg-type]
    (lambda ctx: ctx.emit_data_artifact({1j}), "data"),
    (lambda ctx: ctx.emit_data_artifact({}, media_type=5), "media_type"),  # type: ignore[arg-type]
    (piece(metadata=[1]), "metadata"),
    (piece(metadata={"a": object()}), "metadata"),
    (piece(name=5), "name"),
    (piece(description=5), "description"),
    (piece(media_type=5), "media_type"),
    (piece(filename=5), "filename"),
    (piece(extensions="urn:x"), "extensions"),
    (piece(extensions=[5]), "extensions"),
    (piece(text=None, file_url=5), "file_url"),
    (piece(text=None, file_bytes="text"), "file_bytes"),
    (piece(last_chunk=1), "last_chunk"),
    (lambda ctx: written(ctx, name=5), "artifact_id"),
    (lambda ctx: written(ctx, artifact_id="a", name=5), "name"),
    (lambda ctx: written(ctx, metadata=[1]), "metadata"),
    (lambda ctx: ctx.record_llm(5), "model"),  # type: ignore[arg-type]
    (lambda ctx: ctx.record_llm("m", prompt=1.5), "prompt"),  # type: ignore[arg-type]
    (lambda ctx: ctx.record_llm("m", completion=2**63), "completion"),
    (lambda ctx: ctx.update_context(object()), "context"),
    (lambda ctx: ctx.update_context(nested(MAX_LEVELS + 1)), "context"),
]


async def test_a_wrong_argument_is_named_and_nothing_is_written(storage: str) -> None:
    said: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        for call, _ in WRONG:
            with pytest.raises((TypeError, ValueError)) as refused:
                await call(ctx)
            said.append(str(refused.value))
        await ctx.complete("fine")

    async with running(handle, storage) as client:
        result = await client.send("hi")
        assert (result.state, result.text) == ("completed", "fine")
        assert result.raw_task is not None
        assert [artifact.artifact_id for artifact in result.raw_task.artifacts or []] == ["final-answer"]
        assert len((await client.list_tasks()).tasks) == 1
    assert [argument for text, (_, argument) in zip(said, WRONG, strict=True) if argument not in text] == []


async def test_an_error_says_what_takes_other_values() -> None:
    async def handle(ctx: TaskContext) -> None:
        with pytest.raises(TypeError, match="not dict; other values are JSON data, for example complete_json"):
            await ctx.complete({"a": 1})  # type: ignore[arg-type]
        await ctx.complete_json({"a": 1})

    assert (await run(handle)).data == {"a": 1}


async def test_json_as_deep_as_allowed_is_read_back(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.update_context(nested(MAX_LEVELS))
        await ctx.complete_json(await ctx.load_context())

    assert (await run(handle, storage=storage)).data == nested(MAX_LEVELS)


async def test_what_a_handler_changes_afterwards_is_not_changed_in_its_task(storage: str) -> None:
    kept: dict[str, Any] = {"list": [1]}

    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_data_artifact(kept, artifact_id="a")
        kept["list"].append(object())
        ctx.message.parts[0].text = 42  # type: ignore[assignment]
        ctx.parts.clear()
        ctx.metadata["x"] = object()
        for message in ctx.history:
            message.parts[0].text = 42
        for artifact in ctx.previous_artifacts:
            artifact.parts.clear()
        await (ctx.complete() if ctx.history else ctx.request_input("more?"))

    async with running(handle, storage) as client:
        first = await client.send("hi")
        kept["list"] = [1]
        second = await client.send("go on", task_id=first.task_id)
        assert second.state == "completed"
        assert second.raw_task is not None
        assert [message.parts[0].text for message in second.raw_task.history or []] == ["hi", "more?", "go on"]
        assert (await client.get_task(first.task_id or "")).data == {"list": [1]}


async def test_a_writer_that_was_given_a_wrong_first_piece_can_go_on(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        async with ctx.artifact("report", description="A report.") as report:
            with pytest.raises(TypeError):
                await report.write(5)  # type: ignore[arg-type]
            await report.write("good")
        await ctx.complete()

    result = await run(handle, storage=storage)
    assert result.raw_task is not None
    [artifact] = result.raw_task.artifacts or []
    assert (artifact.description, artifact.parts) == ("A report.", [Part(text="good")])


SAID: dict[str, Any] = {"message_id": "m", "role": Role.user, "parts": [Part(text="x")]}
TOLD: dict[str, Any] = {"task_id": "t", "context_id": "c"}


@pytest.mark.parametrize(
    ("model", "arguments", "field"),
    [
        (Part, {"text": 5}, "text"),
        (Part, {"raw": "text"}, "raw"),
        (Part, {"url": 5}, "url"),
        (Part, {"text": "x", "metadata": [1]}, "metadata"),
        (Part, {"text": "x", "filename": 5}, "filename"),
        (Part, {"text": "x", "media_type": 5}, "media_type"),
        (Message, SAID | {"role": "user"}, "role"),
        (Message, SAID | {"message_id": 5}, "message_id"),
        (Message, SAID | {"parts": ["x"]}, "parts"),
        (Message, SAID | {"parts": Part(text="x")}, "parts"),
        (Message, SAID | {"extensions": "urn:x"}, "extensions"),
        (Message, SAID | {"extensions": [5]}, "extensions"),
        (TaskStatus, {"state": "completed"}, "state"),
        (TaskStatus, {"state": TaskState.completed, "message": "done"}, "message"),
        (TaskStatus, {"state": TaskState.completed, "timestamp": 5}, "timestamp"),
        (Artifact, {"artifact_id": "", "parts": [Part(text="x")]}, "artifact_id"),
        (Artifact, {"artifact_id": "a", "parts": "x"}, "parts"),
        (Artifact, {"artifact_id": "a", "parts": [Part(text="x")], "name": 5}, "name"),
        (Task, {"id": "t", "status": TaskState.working}, "status"),
        (Task, {"id": "t", "status": TaskStatus(state=TaskState.working), "history": ["x"]}, "history"),
        (TaskStatusUpdateEvent, TOLD | {"status": TaskStatus(state=TaskState.working), "task_id": 5}, "task_id"),
        (TaskStatusUpdateEvent, TOLD | {"status": "working"}, "status"),
        (TaskArtifactUpdateEvent, TOLD | {"artifact": "a"}, "artifact"),
    ],
)
def test_a_constructor_names_the_field_that_is_wrong(model: type, arguments: dict[str, Any], field: str) -> None:
    with pytest.raises((TypeError, ValueError), match=field):
        model(**arguments)


def test_constructors_take_subclasses_and_sequences_as_what_they_are() -> None:
    class Word(str):
        __slots__ = ()

    content: Any = bytearray(b"x")
    part = Part(raw=content, filename=Word("name"))
    assert (type(part.raw), type(part.filename)) == (bytes, str)
    assert Artifact(artifact_id="a", parts=(part,)).parts == [part]  # type: ignore[arg-type]


def test_a_hook_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match="on_terminal must be an async function or None, not int"):
        LifecycleHooks(on_terminal=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("hook", [lambda: None, lambda *_: 1 / 0, lambda *_: None], ids=["arguments", "raises", "sync"])
async def test_a_hook_of_the_wrong_form_changes_nothing(hook: Any, storage: str) -> None:
    hooks = LifecycleHooks(on_state_change=hook, on_working=hook, on_terminal=hook)
    async with running(lambda ctx: ctx.complete("done"), storage, hooks=hooks) as client:
        assert (await client.send("hi")).text == "done"


@pytest.mark.parametrize(
    "wrong",
    [{"text": 7}, {"text": None}, {"artifact_id": ""}, {"artifact_id": 5}, {"append": "yes"}, {"last_chunk": 1}],
    ids=str,
)
async def test_a_later_piece_of_a_text_is_checked_as_the_first(wrong: dict[str, Any]) -> None:
    refused: list[Exception] = []

    class Streams(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            await ctx.emit_text_artifact("first ")
            try:
                await ctx.emit_text_artifact(**{"text": "wrong ", "append": True, **wrong})
            except (TypeError, ValueError) as error:
                refused.append(error)
            await ctx.emit_text_artifact("second", append=True)
            await ctx.complete()

    async with connect(Streams()) as client:
        assert (await client.send("go")).text == "first second"
    assert len(refused) == 1
