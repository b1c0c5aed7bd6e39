"""A2A 0.3 as ProtoJSON of its proto: what the official SDKs send and serve over HTTP+JSON.

Fields at their zero value are left out, so everything has a default. Receivers refuse fields they do not know, so
nothing may be written that the proto of 0.3 has not. Only what differs from `errands.model` is here.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from errands.model.base import Metadata, Model
from errands.model.requests import NonNegative

State = Literal[
    "TASK_STATE_UNSPECIFIED",
    "TASK_STATE_SUBMITTED",
    "TASK_STATE_WORKING",
    "TASK_STATE_COMPLETED",
    "TASK_STATE_FAILED",
    "TASK_STATE_CANCELLED",
    "TASK_STATE_INPUT_REQUIRED",
    "TASK_STATE_REJECTED",
    "TASK_STATE_AUTH_REQUIRED",
]
Role = Literal["ROLE_UNSPECIFIED", "ROLE_USER", "ROLE_AGENT"]


class FilePart(Model):
    file_with_uri: str | None = None
    #: The proto's bytes, which most SDKs fill with base64 once more: see `file_bytes`.
    file_with_bytes: bytes | None = None
    mime_type: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if (self.file_with_uri is None) == (self.file_with_bytes is None):
            raise ValueError("a file needs either fileWithUri or fileWithBytes")


class DataPart(Model):
    data: Metadata = {}


class Part(Model):
    text: str | None = None
    file: FilePart | None = None
    data: DataPart | None = None
    metadata: Metadata | None = None

    def __post_init__(self) -> None:
        if (self.text is not None) + (self.file is not None) + (self.data is not None) != 1:
            raise ValueError("a part needs exactly one of text, file and data")


class Message(Model):
    message_id: str = ""
    context_id: str | None = None
    task_id: str | None = None
    role: Role = "ROLE_UNSPECIFIED"
    parts: list[Part] = msgspec.field(name="content", default_factory=list)
    metadata: Metadata | None = None
    extensions: list[str] | None = None


class TaskStatus(Model):
    state: State = "TASK_STATE_UNSPECIFIED"
    message: Message | None = None
    timestamp: str | None = None


class Artifact(Model):
    artifact_id: str = ""
    name: str | None = None
    description: str | None = None
    parts: list[Part] = []
    metadata: Metadata | None = None
    extensions: list[str] | None = None


class Task(Model):
    id: str = ""
    context_id: str = ""
    status: TaskStatus = msgspec.field(default_factory=TaskStatus)
    artifacts: list[Artifact] | None = None
    history: list[Message] | None = None
    metadata: Metadata | None = None


class TaskStatusUpdateEvent(Model):
    task_id: str = ""
    context_id: str = ""
    status: TaskStatus = msgspec.field(default_factory=TaskStatus)
    final: bool = False
    metadata: Metadata | None = None


class TaskArtifactUpdateEvent(Model):
    task_id: str = ""
    context_id: str = ""
    artifact: Artifact = msgspec.field(default_factory=Artifact)
    append: bool | None = None
    last_chunk: bool | None = None
    metadata: Metadata | None = None


class StreamResponse(Model):
    """One event, or the answer to a message; exactly one field is set."""

    task: Task | None = None
    message: Message | None = None
    status_update: TaskStatusUpdateEvent | None = None
    artifact_update: TaskArtifactUpdateEvent | None = None


class TaskList(Model):
    """No message of 0.3: its proto has no way to list tasks."""

    tasks: list[Task] = []
    next_page_token: str = ""
    page_size: int = 0
    total_size: int = 0


class AuthenticationInfo(Model):
    schemes: list[str] = []
    credentials: str | None = None


class PushNotificationConfig(Model):
    url: str = ""
    id: str | None = None
    token: str | None = None
    authentication: AuthenticationInfo | None = None


class TaskPushNotificationConfig(Model):
    #: `tasks/{task}/pushNotificationConfigs/{config}`
    name: str = ""
    push_notification_config: PushNotificationConfig | None = None


class TaskPushNotificationConfigList(Model):
    configs: list[TaskPushNotificationConfig] = []


class SendMessageConfiguration(Model):
    accepted_output_modes: list[str] | None = None
    push_notification: PushNotificationConfig | None = None
    history_length: NonNegative | None = None
    blocking: bool = False


class SendMessageRequest(Model):
    """a2a-sdk 0.3 writes `message`, a2a-sdk 1.x the proto's own name for it, `request`."""

    message: Message | None = None
    request: Message | None = None
    configuration: SendMessageConfiguration | None = None
    metadata: Metadata | None = None


class CreateTaskPushNotificationConfigRequest(Model):
    """The config under `config`, or the config itself."""

    #: `tasks/{task}`
    parent: str = ""
    config_id: str | None = None
    config: TaskPushNotificationConfig | None = None
    name: str = ""
    push_notification_config: PushNotificationConfig | None = None
    #: From the path.
    task_id: str | None = None
