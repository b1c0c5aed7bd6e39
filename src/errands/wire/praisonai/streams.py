"""Streams as PraisonAI sends them: named events without an envelope, and `done` at the end."""

from __future__ import annotations

from typing import Any

import msgspec

from errands.errors import A2AError
from errands.model.base import encode
from errands.model.core import (
    COMPLETED,
    SETTLED_STATES,
    Message,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from errands.wire.praisonai.names import ARTIFACT_EVENT, DONE_EVENT, ERROR_EVENT, STATUS_EVENT
from errands.wire.praisonai.writing import artifact_fields, artifact_of, present, status_fields, write_error
from errands.wire.sse import named, plain_frame

_decode_event = msgspec.json.Decoder(StreamResponse).decode


class StreamWriter:
    """One stream's events: named, without an envelope. It remembers whether the agent's answer was among them."""

    def __init__(self) -> None:
        self._has_artifact = False
        self._is_final = False

    def end(self) -> bytes:
        """The last frame; none when the server stops before the task does."""
        return _frame(DONE_EVENT, {}) if self._is_final else b""

    def write(self, data: bytes) -> bytes:
        """The frames for one event of the log."""
        event = _decode_event(data)
        if event.artifact_update is not None:
            return self._artifact(event.artifact_update)
        if event.status_update is not None:
            return self._status(event.status_update)
        if event.message is not None:
            return self._status(_answered(event.message))
        assert event.task is not None
        return self._snapshot(event.task)

    def _snapshot(self, task: Task) -> bytes:
        context_id = task.context_id or ""
        artifacts = [
            TaskArtifactUpdateEvent(task_id=task.id, context_id=context_id, artifact=artifact, last_chunk=True)
            for artifact in task.artifacts or []
        ]
        status = TaskStatusUpdateEvent(task_id=task.id, context_id=context_id, status=task.status)
        return b"".join([*map(self._artifact, artifacts), self._status(status)])

    def _artifact(self, update: TaskArtifactUpdateEvent) -> bytes:
        self._has_artifact = True
        body = {
            "taskId": update.task_id,
            "contextId": update.context_id,
            "artifact": artifact_fields(update.artifact),
            "append": update.append,
            "lastChunk": update.last_chunk,
            "metadata": update.metadata,
        }
        return _frame(ARTIFACT_EVENT, body)

    def _status(self, update: TaskStatusUpdateEvent) -> bytes:
        answer = b""
        status = update.status
        if status.state is COMPLETED and status.message is not None and not self._has_artifact:
            artifact = artifact_of(update.task_id, status.message)
            answer = self._artifact(
                TaskArtifactUpdateEvent(
                    task_id=update.task_id, context_id=update.context_id, artifact=artifact, last_chunk=True
                )
            )
        self._is_final = status.state in SETTLED_STATES
        body = {
            "taskId": update.task_id,
            "contextId": update.context_id,
            "status": status_fields(status),
            "final": self._is_final,
            "metadata": update.metadata,
        }
        return answer + _frame(STATUS_EVENT, body)


def _answered(message: Message) -> TaskStatusUpdateEvent:
    """A message that is the whole answer, as the end of its task: here there are only tasks."""
    status = TaskStatus(state=COMPLETED, message=message)
    return TaskStatusUpdateEvent(task_id=message.task_id or "", context_id=message.context_id or "", status=status)


def error_frame(error: A2AError) -> bytes:
    """What a stream that breaks says last."""
    return _frame(ERROR_EVENT, write_error(error))


def _frame(name: str, body: dict[str, Any]) -> bytes:
    return named(name, plain_frame(encode(present(body))))
