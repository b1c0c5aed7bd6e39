"""`TaskUpdater`: each method publishes the event it is named after."""

from __future__ import annotations

from typing import Any

import pytest

from errands import (
    EventQueue,
    IDGenerator,
    IDGeneratorContext,
    Message,
    Part,
    Role,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
    TaskUpdater,
)
from tests.unit.executor.agents import words

pytestmark = pytest.mark.anyio


class Kept(EventQueue):
    """A queue that keeps what is published."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    async def enqueue_event(self, event: Any) -> None:
        self.events.append(event)

    def is_closed(self) -> bool:
        return False

    async def close(self) -> None:
        return None


class Fixed(IDGenerator):
    def generate(self, context: IDGeneratorContext) -> str:
        return f"of {context.task_id} and {context.context_id}"


STATES = {
    "submit": TaskState.SUBMITTED,
    "start_work": TaskState.WORKING,
    "complete": TaskState.COMPLETED,
    "failed": TaskState.FAILED,
    "fail": TaskState.FAILED,
    "reject": TaskState.REJECTED,
    "cancel": TaskState.CANCELED,
    "requires_input": TaskState.INPUT_REQUIRED,
    "requires_auth": TaskState.AUTH_REQUIRED,
}


@pytest.mark.parametrize("method", STATES)
async def test_it_publishes_the_state_with_the_words(method: str) -> None:
    queue = Kept()
    await getattr(TaskUpdater(queue, "t", "c"), method)(words("so"))
    [event] = queue.events
    assert isinstance(event, TaskStatusUpdateEvent)
    assert (event.task_id, event.context_id, event.status.state) == ("t", "c", STATES[method])
    assert event.status.message == words("so")
    assert event.status.timestamp


async def test_update_status_takes_a_time_and_metadata() -> None:
    queue = Kept()
    at = "2026-01-31T12:00:00.000Z"
    await TaskUpdater(queue, "t", "c").update_status(TaskState.WORKING, timestamp=at, metadata={"a": 1})
    assert (queue.events[0].status.timestamp, queue.events[0].metadata) == (at, {"a": 1})


async def test_add_artifact_publishes_a_piece_of_an_artifact() -> None:
    queue = Kept()
    await TaskUpdater(queue, "t", "c").add_artifact(
        [Part(text="x")], "a", "report", {"m": 1}, append=True, last_chunk=True, extensions=["https://example.com/x"]
    )
    [event] = queue.events
    assert isinstance(event, TaskArtifactUpdateEvent)
    assert (event.append, event.last_chunk) == (True, True)
    assert (event.artifact.artifact_id, event.artifact.name, event.artifact.metadata) == ("a", "report", {"m": 1})
    assert event.artifact.extensions == ["https://example.com/x"]


async def test_identifiers_come_from_the_generators() -> None:
    queue = Kept()
    updater = TaskUpdater(queue, "t", "c", Fixed(), Fixed())
    await updater.add_artifact([Part(text="x")])
    assert queue.events[0].artifact.artifact_id == "of t and c"
    assert updater.new_agent_message([Part(text="x")]).message_id == "of t and c"


@pytest.mark.parametrize("ids", [("", "c"), ("t", None)])
def test_it_needs_a_task_and_a_context(ids: tuple[str | None, str | None]) -> None:
    with pytest.raises(ValueError, match="identifiers of a task and its context"):
        TaskUpdater(Kept(), *ids)


async def test_new_agent_message_publishes_nothing() -> None:
    queue = Kept()
    message = TaskUpdater(queue, "t", "c").new_agent_message([Part(text="x")], {"m": 1})
    assert message == Message(
        message_id=message.message_id,
        role=Role.AGENT,
        parts=[Part(text="x")],
        task_id="t",
        context_id="c",
        metadata={"m": 1},
    )
    assert queue.events == []
