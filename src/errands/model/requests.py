"""The requests and responses of the eleven operations (A2A 1.0, section 3)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from errands.model.base import Metadata, Model
from errands.model.core import Message, Task, TaskState

NonNegative = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Id = Annotated[str, Meta(min_length=1)]


class AuthenticationInfo(Model):
    scheme: str
    credentials: str | None = None


class TaskPushNotificationConfig(Model):
    url: Id
    tenant: str | None = None
    id: str | None = None
    task_id: str | None = None
    token: str | None = None
    authentication: AuthenticationInfo | None = None


class SendMessageConfiguration(Model):
    accepted_output_modes: list[str] | None = None
    task_push_notification_config: TaskPushNotificationConfig | None = None
    history_length: NonNegative | None = None
    return_immediately: bool = False


class SendMessageRequest(Model):
    message: Message
    tenant: str | None = None
    configuration: SendMessageConfiguration | None = None
    metadata: Metadata | None = None


class GetTaskRequest(Model):
    id: Id
    tenant: str | None = None
    history_length: NonNegative | None = None


class ListTasksRequest(Model):
    tenant: str | None = None
    context_id: str | None = None
    status: TaskState | None = None
    page_size: Annotated[int, Meta(ge=1, le=100)] | None = None
    page_token: str | None = None
    history_length: NonNegative | None = None
    status_timestamp_after: str | None = None
    include_artifacts: bool | None = None


class CancelTaskRequest(Model):
    id: Id
    tenant: str | None = None
    metadata: Metadata | None = None


class SubscribeToTaskRequest(Model):
    id: Id
    tenant: str | None = None


class GetTaskPushNotificationConfigRequest(Model):
    task_id: Id
    id: Id
    tenant: str | None = None


class DeleteTaskPushNotificationConfigRequest(Model):
    task_id: Id
    id: Id
    tenant: str | None = None


class ListTaskPushNotificationConfigsRequest(Model):
    task_id: Id
    tenant: str | None = None
    page_size: NonNegative | None = None
    page_token: str | None = None


class GetExtendedAgentCardRequest(Model):
    tenant: str | None = None


class SendMessageResponse(Model):
    """Exactly one field is set."""

    task: Task | None = None
    message: Message | None = None


class ListTasksResponse(Model):
    tasks: list[Task]
    next_page_token: str
    page_size: int
    total_size: int


class ListTaskPushNotificationConfigsResponse(Model):
    configs: list[TaskPushNotificationConfig]
    next_page_token: str | None = None


class Empty(Model):
    """The empty response."""
