"""Structs without checks, for decoding what was checked before it was stored."""

from __future__ import annotations

import msgspec

from errands.model.base import encode, unchecked
from errands.model.core import (
    Artifact,
    Message,
    Part,
    Role,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)

MESSAGE = Message(
    message_id="m", role=Role.AGENT, parts=[Part(text="hi"), Part(data={"a": [1, None]})], metadata={"b": 1}
)
STATUS = TaskStatus(state=TaskState.COMPLETED, message=MESSAGE, timestamp="2026-01-31T12:00:00.000Z")
ARTIFACT = Artifact(artifact_id="a", parts=[Part(raw=b"x", media_type="text/plain")], extensions=["urn:x"])
TASK = Task(id="t", status=STATUS, context_id="c", history=[MESSAGE], artifacts=[ARTIFACT])


def test_every_kind_of_event_is_read_as_with_the_checks() -> None:
    for event in (
        StreamResponse(task=TASK),
        StreamResponse(message=MESSAGE),
        StreamResponse(status_update=TaskStatusUpdateEvent(task_id="t", context_id="c", status=STATUS)),
        StreamResponse(artifact_update=TaskArtifactUpdateEvent(task_id="t", context_id="c", artifact=ARTIFACT)),
    ):
        read = msgspec.json.decode(encode(event), type=unchecked(StreamResponse))
        assert msgspec.json.decode(encode(read), type=StreamResponse) == event
