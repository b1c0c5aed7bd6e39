"""A2A 0.3 as its JSON schema says: what JSON-RPC carries, and HTTP+JSON when the specification's text is followed.

Objects are told apart by `kind`. Only what differs from `errands.model` is here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from errands.model.base import Metadata, Model
from errands.model.requests import Id, NonNegative

State = Literal[
    "submitted",
    "working",
    "input-required",
    "completed",
    "canceled",
    "failed",
    "rejected",
    "auth-required",
    "unknown",
]
Role = Literal["user", "agent"]


class File(Model):
    """Exactly one of `content` and `uri` is set."""

    #: base64 on the wire.
    content: bytes | None = msgspec.field(name="bytes", default=None)
    uri: str | None = None
    name: str | None = None
    mime_type: str | None = None

    def __post_init__(self) -> None:
        if (self.content is None) == (self.uri is None):
            raise ValueError("a file needs either bytes or uri")


class Part(Model):
    """`kind` says which of `text`, `file` and `data` it is; where it is missing, what is there says it."""

    kind: str = ""
    text: str | None = None
    file: File | None = None
    data: Any | UnsetType = UNSET
    metadata: Metadata | None = None

    def __post_init__(self) -> None:
        kind = self.kind
        if not kind:
            self.kind = kind = "text" if self.text is not None else "file" if self.file is not None else "data"
        if kind == "text":
            missing = self.text is None
        elif kind == "file":
            missing = self.file is None
        elif kind == "data":
            missing = self.data is UNSET
        else:
            raise ValueError("the kind of a part is text, file or data")
        if missing:
            raise ValueError(f"a part of kind {kind} needs {kind}")


class Message(Model, tag_field="kind", tag="message", kw_only=True):
    message_id: str
    role: Role
    parts: list[Part]
    context_id: str | None = None
    task_id: str | None = None
    metadata: Metadata | None = None
    extensions: list[str] | None = None
    reference_task_ids: list[str] | None = None


class TaskStatus(Model):
    state: State
    message: Message | None = None
    timestamp: str | None = None


class Artifact(Model):
    artifact_id: str
    parts: list[Part]
    name: str | None = None
    description: str | None = None
    metadata: Metadata | None = None
    extensions: list[str] | None = None


class Task(Model, tag_field="kind", tag="task"):
    id: str
    context_id: str
    status: TaskStatus
    artifacts: list[Artifact] | None = None
    history: list[Message] | None = None
    metadata: Metadata | None = None


class TaskStatusUpdateEvent(Model, tag_field="kind", tag="status-update", kw_only=True):
    task_id: str
    context_id: str
    status: TaskStatus
    #: Nothing follows in this stream. Readers go by the state.
    final: bool
    metadata: Metadata | None = None


class TaskArtifactUpdateEvent(Model, tag_field="kind", tag="artifact-update"):
    task_id: str
    context_id: str
    artifact: Artifact
    append: bool | None = None
    last_chunk: bool | None = None
    metadata: Metadata | None = None


#: What a stream over JSON-RPC carries; an answer to `message/send` is one of the first two.
Event = Task | Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent


class StreamResponse(Model):
    """One event over HTTP+JSON, or the answer to a message; exactly one field is set."""

    task: Task | None = None
    message: Message | None = None
    status_update: TaskStatusUpdateEvent | None = None
    artifact_update: TaskArtifactUpdateEvent | None = None


class TaskList(Model):
    tasks: list[Task]
    next_page_token: str
    page_size: int
    total_size: int


class AuthenticationInfo(Model):
    schemes: list[str]
    credentials: str | None = None


class PushNotificationConfig(Model):
    url: Id
    id: str | None = None
    token: str | None = None
    authentication: AuthenticationInfo | None = None


class TaskPushNotificationConfig(Model):
    task_id: str = ""
    push_notification_config: PushNotificationConfig | None = None


class MessageSendConfiguration(Model):
    accepted_output_modes: list[str] | None = None
    push_notification_config: PushNotificationConfig | None = None
    history_length: NonNegative | None = None
    #: False: answer at once. When it is missing, the answer waits for the end of the turn.
    blocking: bool | None = None


class MessageSendParams(Model):
    message: Message
    configuration: MessageSendConfiguration | None = None
    metadata: Metadata | None = None


class TaskListParams(Model):
    context_id: str | None = None
    status: str | None = None
    page_size: Annotated[int, Meta(ge=1, le=100)] | None = None
    page_token: str | None = None
    history_length: NonNegative | None = None
    status_timestamp_after: str | None = None
    include_artifacts: bool | None = None


class PushNotificationConfigParams(Model):
    """`id` is the task's."""

    id: Id
    push_notification_config_id: str | None = None


class CreatePushNotificationConfig(Model):
    """The body over HTTP+JSON: the config under `config`, or the config itself."""

    #: From the path.
    task_id: str | None = None
    config: TaskPushNotificationConfig | None = None
    push_notification_config: PushNotificationConfig | None = None
