"""The requests and responses of the eleven operations (A2A 1.0, section 3)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from errands.model.base import A2AObject, Metadata
from errands.model.core import Message, Task, TaskState

NonNegative = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Id = Annotated[str, Meta(min_length=1)]


class AuthenticationInfo(A2AObject):
    scheme: str
    credentials: str | None = None


class TaskPushNotificationConfig(A2AObject):
    url: Id
    tenant: str | None = None
    id: str | None = None
    task_id: str | None = None
    token: str | None = None
    authentication: AuthenticationInfo | None = None


class SendMessageConfiguration(A2AObject):
    accepted_output_modes: list[str] | None = None
    task_push_notification_config: TaskPushNotificationConfig | None = None
    history_length: NonNegative | None = None
    return_immediately: bool = False


class SendMessageRequest(A2AObject):
    message: Message
    tenant: str | None = None
    configuration: SendMessageConfiguration | None = None
    metadata: Metadata | None = None


class GetTaskRequest(A2AObject):
    id: Id
    tenant: str | None = None
    history_length: NonNegative | None = None


class ListTasksRequest(A2AObject):
    tenant: str | None = None
    context_id: str | None = None
    status: TaskState | None = None
    page_size: Annotated[int, Meta(ge=1, le=100)] | None = None
    page_token: str | None = None
    history_length: NonNegative | None = None
    status_timestamp_after: str | None = None
    include_artifacts: bool | None = None


class CancelTaskRequest(A2AObject):
    id: Id
    tenant: str | None = None
    metadata: Metadata | None = None


class SubscribeToTaskRequest(A2AObject):
    id: Id
    tenant: str | None = None


class GetTaskPushNotificationConfigRequest(A2AObject):
    task_id: Id
    id: Id
    tenant: str | None = None


class DeleteTaskPushNotificationConfigRequest(A2AObject):
    task_id: Id
    id: Id
    tenant: str | None = None


class ListTaskPushNotificationConfigsRequest(A2AObject):
    task_id: Id
    tenant: str | None = None
    page_size: NonNegative | None = None
    page_token: str | None = None


class GetExtendedAgentCardRequest(A2AObject):
    tenant: str | None = None


class SendMessageResponse(A2AObject):
    """Exactly one field is set."""

    task: Task | None = None
    message: Message | None = None


class ListTasksResponse(A2AObject):
    tasks: list[Task]
    next_page_token: str
    page_size: int
    total_size: int


class ListTaskPushNotificationConfigsResponse(A2AObject):
    configs: list[TaskPushNotificationConfig]
    next_page_token: str | None = None


class Empty(A2AObject):
    """The empty response."""
