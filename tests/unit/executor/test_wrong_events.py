"""An event that could not be read back is refused where it is published, and the task fails at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from errands import (
    Artifact,
    EventQueue,
    IDGenerator,
    IDGeneratorContext,
    Message,
    Part,
    RequestContext,
    SimpleRequestContextBuilder,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from errands.model.log import Change
from errands.testing import connect, serve
from tests.unit.executor.agents import Executor, executing, new_task, updater_of, words
from tests.unit.support import running, said

pytestmark = pytest.mark.anyio


def changed(event: Any, **fields: Any) -> Any:
    """Return an event whose fields were set after it was made, when nothing checks them."""
    for name, value in fields.items():
        setattr(event, name, value)
    return event


def status(context: RequestContext, **fields: Any) -> TaskStatusUpdateEvent:
    changed_status = changed(TaskStatus(state=TaskState.working), **fields)
    return TaskStatusUpdateEvent(
        task_id=context.task_id or "", context_id=context.context_id or "", status=changed_status
    )


def artifact(context: RequestContext, **fields: Any) -> TaskArtifactUpdateEvent:
    made = changed(Artifact(artifact_id="a", parts=[Part(text="x")]), **fields)
    return TaskArtifactUpdateEvent(task_id=context.task_id or "", context_id=context.context_id or "", artifact=made)


WRONG: dict[str, Callable[[RequestContext], Any]] = {
    "a state that is a text": lambda context: status(context, state="completed"),
    "a message that is a text": lambda context: status(context, message="done"),
    "a text that is a number": lambda context: artifact(context, parts=[changed(Part(text="x"), text=42)]),
    "metadata that are a list": lambda context: artifact(context, metadata=[1]),
    "an object in metadata": lambda context: artifact(context, metadata={"a": object()}),
    "an object as data": lambda context: artifact(context, parts=[Part(data=object())]),
    "a message with an object": lambda context: changed(words("hi"), metadata={"a": object()}),
    "a task with a wrong history": lambda context: new_task(context, metadata={"a": object()}),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_an_event_that_cannot_be_read_back_is_refused_and_nothing_of_it_is_kept(wrong: str, storage: str) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        with pytest.raises((TypeError, ValueError, AttributeError)):
            await queue.enqueue_event(WRONG[wrong](context))
        await updater_of(context, queue).complete(words("fine"))

    async with executing(execute, storage) as client:
        sent = await client.send("hi")
        assert (sent.state, said(sent)) == ("completed", "fine")
        assert (await client.list_tasks()).total_size == 1


@pytest.mark.parametrize(
    ("model", "arguments"),
    [(TaskStatus, {"state": "completed"}), (Message, {"message_id": "m", "role": "user", "parts": []})],
)
async def test_a_wrong_event_that_is_not_caught_fails_the_task_at_once(
    model: type, arguments: dict[str, Any], storage: str
) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        model(**arguments)

    async with executing(execute, storage) as client:
        failed = await client.send("hi")
    assert failed.failed
    assert "unexpectedly (reference" in (said(failed) or "")


async def test_what_an_executor_changes_in_its_task_is_not_changed_in_the_log(storage: str) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        assert context.message is not None
        context.message.parts[0].text = 42  # type: ignore[assignment]
        if context.current_task is None:
            await updater_of(context, queue).requires_input(words("more?"))
            return
        for message in context.current_task.history or []:
            message.parts.clear()
        context.current_task.metadata = {"a": object()}
        await updater_of(context, queue).complete(words("done"))

    async with executing(execute, storage) as client:
        first = await client.send("hi")
        second = await client.send("go on", task_id=first.task_id)
        assert second.raw_task is not None
        assert [message.parts[0].text for message in second.raw_task.history or []] == ["hi", "more?", "go on", "done"]


class Numbers(IDGenerator):
    def __init__(self, given: Any) -> None:
        self._given = given

    def generate(self, context: IDGeneratorContext) -> str:
        given: str = self._given
        return given


@pytest.mark.parametrize("wrong", [5, "", "x" * 1000, "a\0b", "\ud800"])
async def test_an_id_that_no_store_can_hold_creates_no_task(wrong: Any, storage: str) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await updater_of(context, queue).complete()

    builder = SimpleRequestContextBuilder(task_id_generator=Numbers(wrong))
    server = serve(Executor(execute), storage=storage, request_context_builder=builder)
    async with connect(server) as client:
        with pytest.raises(Exception, match="reference"):
            await client.send("hi")
        assert (await client.list_tasks()).total_size == 0


async def test_a_bug_while_events_are_written_fails_the_task_instead_of_using_up_its_leases(
    storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def handle(ctx: Any) -> None:
        engine = ctx._turn.journal.engine
        commit = engine.commit

        def broken(change: Change) -> Any:
            monkeypatch.setattr(engine, "commit", commit)
            raise AttributeError("a bug")

        monkeypatch.setattr(engine, "commit", broken)
        await ctx.emit_text_artifact("lost")
        await ctx._turn.catch_up()

    async with running(handle, storage) as client:
        failed = await client.send("hi")
    assert failed.failed
    assert "unexpectedly (reference" in (said(failed) or "")
