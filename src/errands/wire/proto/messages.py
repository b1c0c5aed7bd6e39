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
from errands.wire.proto.values import fill_struct, fill_value, read_struct, read_time, read_value, write_time

#: The numbers are the same in both versions, and so are the names but for one state.
STATES = [TaskState(name) for name in a2a_pb2.TaskState.keys()]  # noqa: SIM118 - an enum, not a dict
STATE_NUMBERS = {state: number for number, state in enumerate(STATES)}
ROLES = [Role(name) for name in a2a_pb2.Role.keys()]  # noqa: SIM118
ROLE_NUMBERS = {role: number for number, role in enumerate(ROLES)}


class Writer:
    """The model as messages of the version whose generated module is `pb`.

    Every message is filled where it belongs: one that is made by itself and then put into another is copied.
    """

    pb: Any = a2a_pb2

    def fill_part(self, written: Any, part: Part) -> None:
        if part.text is not None:
            written.text = part.text
        elif part.raw is not None:
            written.raw = part.raw
        elif part.url is not None:
            written.url = part.url
        else:
            written.data.SetInParent()
            fill_value(written.data, part.data)
        if part.metadata is not None:
            fill_struct(written.metadata, part.metadata)
        if part.filename is not None:
            written.filename = part.filename
        if part.media_type is not None:
            written.media_type = part.media_type

    def fill_message(self, written: Any, message: Message) -> None:
        self._fill_message(written, written.parts, message)
        if message.reference_task_ids is not None:
            written.reference_task_ids.extend(message.reference_task_ids)

    def _fill_message(self, written: Any, parts: Any, message: Message) -> None:
        """What every version has; `parts` is where it keeps them."""
        written.message_id = message.message_id
        written.role = ROLE_NUMBERS[message.role]
        if message.context_id is not None:
            written.context_id = message.context_id
        if message.task_id is not None:
            written.task_id = message.task_id
        for part in message.parts:
            self.fill_part(parts.add(), part)
        if message.metadata is not None:
            fill_struct(written.metadata, message.metadata)
        if message.extensions is not None:
            written.extensions.extend(message.extensions)

    def fill_artifact(self, written: Any, artifact: Artifact) -> None:
        written.artifact_id = artifact.artifact_id
        if artifact.name is not None:
            written.name = artifact.name
        if artifact.description is not None:
            written.description = artifact.description
        for part in artifact.parts:
            self.fill_part(written.parts.add(), part)
        if artifact.metadata is not None:
            fill_struct(written.metadata, artifact.metadata)
        if artifact.extensions is not None:
            written.extensions.extend(artifact.extensions)

    def fill_status(self, written: Any, status: TaskStatus, message: str = "message") -> None:
        """`message` is the name of the field for what was said."""
        written.state = STATE_NUMBERS[status.state]
        if status.message is not None:
            self.fill_message(getattr(written, message), status.message)
        if (timestamp := write_time(status.timestamp)) is not None:
            written.timestamp.CopyFrom(timestamp)

    def fill_task(self, written: Any, task: Task) -> None:
        written.id = task.id
        if task.context_id is not None:
            written.context_id = task.context_id
        self.fill_status(written.status, task.status)
        for artifact in task.artifacts or ():
            self.fill_artifact(written.artifacts.add(), artifact)
        for message in task.history or ():
            self.fill_message(written.history.add(), message)
        if task.metadata is not None:
            fill_struct(written.metadata, task.metadata)

    def fill_status_update(self, written: Any, update: TaskStatusUpdateEvent) -> None:
        written.task_id = update.task_id
        written.context_id = update.context_id
        self.fill_status(written.status, update.status)
        if update.metadata is not None:
            fill_struct(written.metadata, update.metadata)

    def fill_artifact_update(self, written: Any, update: TaskArtifactUpdateEvent) -> None:
        written.task_id = update.task_id
        written.context_id = update.context_id
        self.fill_artifact(written.artifact, update.artifact)
        written.append = update.append
        written.last_chunk = update.last_chunk
        if update.metadata is not None:
            fill_struct(written.metadata, update.metadata)

    def task(self, task: Task) -> Any:
        written = self.pb.Task()
        self.fill_task(written, task)
        return written

    def event(self, event: StreamResponse, message: str = "message") -> Any:
        """`message` is the name of the field for a message."""
        written = self.pb.StreamResponse()
        if event.artifact_update is not None:
            self.fill_artifact_update(written.artifact_update, event.artifact_update)
        elif event.status_update is not None:
            self.fill_status_update(written.status_update, event.status_update)
        elif event.task is not None:
            self.fill_task(written.task, event.task)
        elif event.message is not None:
            self.fill_message(getattr(written, message), event.message)
        return written

    def sent(self, response: SendMessageResponse, message: str = "message") -> Any:
        """`message` is the name of the field for a message."""
        written = self.pb.SendMessageResponse()
        if response.task is not None:
            self.fill_task(written.task, response.task)
        elif response.message is not None:
            self.fill_message(getattr(written, message), response.message)
        return written


class Reader:
    """Messages as the model. Generous: what is missing is empty. Raises ValueError for what the model cannot hold.

    Lists are taken as a whole, by `[:]`: protobuf ends a walk through one with an exception.
    """

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
            parts=[self.part(part) for part in message.parts[:]],
            context_id=message.context_id or None,
            task_id=message.task_id or None,
            metadata=self.metadata(message),
            extensions=message.extensions[:] or None,
            reference_task_ids=message.reference_task_ids[:] or None,
        )

    def artifact(self, artifact: Any) -> Artifact:
        return Artifact(
            artifact_id=artifact.artifact_id,
            parts=[self.part(part) for part in artifact.parts[:]],
            name=artifact.name or None,
            description=artifact.description or None,
            metadata=self.metadata(artifact),
            extensions=artifact.extensions[:] or None,
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
            artifacts=[self.artifact(artifact) for artifact in task.artifacts[:]] or None,
            history=[self.message(message) for message in task.history[:]] or None,
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
