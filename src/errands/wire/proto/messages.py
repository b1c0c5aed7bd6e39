"""Tasks, messages, parts and events as protobuf, in version 1.0, whose fields have the names of the model's attributes.

An absent string is empty in protobuf and None in the model. Version 0.3 derives from this and puts its own names in.
"""

from __future__ import annotations

from typing import Any

from a2a.types import a2a_pb2
from msgspec import UNSET

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
from errands.model.requests import SendMessageResponse
from errands.wire.proto.values import fill_value, read_struct, read_time, read_value, write_struct, write_time

#: The numbers are the same in both versions, and so are the names but for one state.
STATES = [TaskState(name) for name in a2a_pb2.TaskState.keys()]  # noqa: SIM118 - an enum, not a dict
STATE_NUMBERS = {state: number for number, state in enumerate(STATES)}
ROLES = [Role(name) for name in a2a_pb2.Role.keys()]  # noqa: SIM118
ROLE_NUMBERS = {role: number for number, role in enumerate(ROLES)}


class Writer:
    """The model as messages of the version whose generated module is `pb`."""

    pb: Any = a2a_pb2

    def part(self, part: Part) -> Any:
        written = self.pb.Part(
            text=part.text,
            raw=part.raw,
            url=part.url,
            metadata=write_struct(part.metadata),
            filename=part.filename,
            media_type=part.media_type,
        )
        if part.data is not UNSET:
            written.data.SetInParent()
            fill_value(written.data, part.data)
        return written

    def message(self, message: Message | None) -> Any:
        if message is None:
            return None
        return self.pb.Message(
            message_id=message.message_id,
            context_id=message.context_id,
            task_id=message.task_id,
            role=ROLE_NUMBERS[message.role],
            parts=[self.part(part) for part in message.parts],
            metadata=write_struct(message.metadata),
            extensions=message.extensions,
            reference_task_ids=message.reference_task_ids,
        )

    def artifact(self, artifact: Artifact) -> Any:
        return self.pb.Artifact(
            artifact_id=artifact.artifact_id,
            name=artifact.name,
            description=artifact.description,
            parts=[self.part(part) for part in artifact.parts],
            metadata=write_struct(artifact.metadata),
            extensions=artifact.extensions,
        )

    def status(self, status: TaskStatus) -> Any:
        return self.pb.TaskStatus(
            state=STATE_NUMBERS[status.state],
            message=self.message(status.message),
            timestamp=write_time(status.timestamp),
        )

    def task(self, task: Task) -> Any:
        return self.pb.Task(
            id=task.id,
            context_id=task.context_id,
            status=self.status(task.status),
            artifacts=[self.artifact(artifact) for artifact in task.artifacts or ()],
            history=[self.message(message) for message in task.history or ()],
            metadata=write_struct(task.metadata),
        )

    def status_update(self, update: TaskStatusUpdateEvent) -> Any:
        return self.pb.TaskStatusUpdateEvent(
            task_id=update.task_id,
            context_id=update.context_id,
            status=self.status(update.status),
            metadata=write_struct(update.metadata),
        )

    def artifact_update(self, update: TaskArtifactUpdateEvent) -> Any:
        return self.pb.TaskArtifactUpdateEvent(
            task_id=update.task_id,
            context_id=update.context_id,
            artifact=self.artifact(update.artifact),
            append=update.append,
            last_chunk=update.last_chunk,
            metadata=write_struct(update.metadata),
        )

    def event(self, event: StreamResponse) -> Any:
        if event.artifact_update is not None:
            return self.pb.StreamResponse(artifact_update=self.artifact_update(event.artifact_update))
        if event.status_update is not None:
            return self.pb.StreamResponse(status_update=self.status_update(event.status_update))
        if event.task is not None:
            return self.pb.StreamResponse(task=self.task(event.task))
        return self.pb.StreamResponse(message=self.message(event.message))

    def sent(self, response: SendMessageResponse) -> Any:
        if response.task is not None:
            return self.pb.SendMessageResponse(task=self.task(response.task))
        return self.pb.SendMessageResponse(message=self.message(response.message))


class Reader:
    """Messages as the model. Generous: what is missing is empty. Raises ValueError for what the model cannot hold."""

    def metadata(self, message: Any, field: str = "metadata") -> dict[str, Any] | None:
        return read_struct(getattr(message, field)) if message.HasField(field) else None

    def part(self, part: Any) -> Part:
        kind = part.WhichOneof("content")
        return Part(
            text=part.text if kind == "text" else None,
            raw=part.raw if kind == "raw" else None,
            url=part.url if kind == "url" else None,
            data=read_value(part.data) if kind == "data" else UNSET,
            metadata=self.metadata(part),
            filename=part.filename or None,
            media_type=part.media_type or None,
        )

    def message(self, message: Any) -> Message:
        return Message(
            message_id=message.message_id,
            role=ROLES[message.role] if message.role < len(ROLES) else Role.UNSPECIFIED,
            parts=[self.part(part) for part in message.parts],
            context_id=message.context_id or None,
            task_id=message.task_id or None,
            metadata=self.metadata(message),
            extensions=list(message.extensions) or None,
            reference_task_ids=list(message.reference_task_ids) or None,
        )

    def artifact(self, artifact: Any) -> Artifact:
        return Artifact(
            artifact_id=artifact.artifact_id,
            parts=[self.part(part) for part in artifact.parts],
            name=artifact.name or None,
            description=artifact.description or None,
            metadata=self.metadata(artifact),
            extensions=list(artifact.extensions) or None,
        )

    def state(self, number: int) -> TaskState:
        return STATES[number] if 0 <= number < len(STATES) else TaskState.UNSPECIFIED

    def status(self, status: Any, message: str = "message") -> TaskStatus:
        return TaskStatus(
            state=self.state(status.state),
            message=self.message(getattr(status, message)) if status.HasField(message) else None,
            timestamp=read_time(status.timestamp) if status.HasField("timestamp") else None,
        )

    def task(self, task: Any) -> Task:
        return Task(
            id=task.id,
            status=self.status(task.status),
            context_id=task.context_id or None,
            artifacts=[self.artifact(artifact) for artifact in task.artifacts] or None,
            history=[self.message(message) for message in task.history] or None,
            metadata=self.metadata(task),
        )

    def status_update(self, update: Any) -> TaskStatusUpdateEvent:
        return TaskStatusUpdateEvent(
            task_id=update.task_id,
            context_id=update.context_id,
            status=self.status(update.status),
            metadata=self.metadata(update),
        )

    def artifact_update(self, update: Any) -> TaskArtifactUpdateEvent:
        return TaskArtifactUpdateEvent(
            task_id=update.task_id,
            context_id=update.context_id,
            artifact=self.artifact(update.artifact),
            append=update.append,
            last_chunk=update.last_chunk,
            metadata=self.metadata(update),
        )

    def event(self, event: Any) -> StreamResponse:
        kind = event.WhichOneof("payload")
        if kind == "artifact_update":
            return StreamResponse(artifact_update=self.artifact_update(event.artifact_update))
        if kind == "status_update":
            return StreamResponse(status_update=self.status_update(event.status_update))
        if kind == "task":
            return StreamResponse(task=self.task(event.task))
        return StreamResponse(message=self.message(getattr(event, kind)) if kind else None)

    def sent(self, response: Any) -> SendMessageResponse:
        kind = response.WhichOneof("payload")
        if kind == "task":
            return SendMessageResponse(task=self.task(response.task))
        return SendMessageResponse(message=self.message(getattr(response, kind)) if kind else None)
