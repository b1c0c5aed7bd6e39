"""The eleven operations of the protocol, one row each. Bindings, client, command line and tests loop over them."""

from __future__ import annotations

from typing import Literal, NamedTuple

from errands.model.base import Model
from errands.model.card import AgentCard
from errands.model.core import StreamResponse, Task
from errands.model.requests import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    Empty,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    SendMessageRequest,
    SendMessageResponse,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)

Capability = Literal["streaming", "push_notifications", "extended_agent_card"]


class Operation(NamedTuple):
    """One operation. `path` is the HTTP+JSON path; `{name}` stands for a field of the request."""

    name: str
    #: The method of `TaskManager` that performs it.
    method: str
    http_method: Literal["GET", "POST", "DELETE"]
    path: str
    request: type[Model]
    response: type[Model]
    streams: bool = False
    capability: Capability | None = None
    #: Whether sending the same request again changes nothing.
    idempotent: bool = True


_CONFIGS = "/tasks/{task_id}/pushNotificationConfigs"

OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation(
            "SendMessage",
            "send_message",
            "POST",
            "/message:send",
            SendMessageRequest,
            SendMessageResponse,
            idempotent=False,
        ),
        Operation(
            "SendStreamingMessage",
            "send_streaming_message",
            "POST",
            "/message:stream",
            SendMessageRequest,
            StreamResponse,
            streams=True,
            capability="streaming",
            idempotent=False,
        ),
        Operation("GetTask", "get_task", "GET", "/tasks/{id}", GetTaskRequest, Task),
        Operation("ListTasks", "list_tasks", "GET", "/tasks", ListTasksRequest, ListTasksResponse),
        Operation("CancelTask", "cancel_task", "POST", "/tasks/{id}:cancel", CancelTaskRequest, Task),
        Operation(
            "SubscribeToTask",
            "subscribe_to_task",
            "POST",
            "/tasks/{id}:subscribe",
            SubscribeToTaskRequest,
            StreamResponse,
            streams=True,
            capability="streaming",
        ),
        Operation(
            "CreateTaskPushNotificationConfig",
            "create_push_config",
            "POST",
            _CONFIGS,
            TaskPushNotificationConfig,
            TaskPushNotificationConfig,
            capability="push_notifications",
            idempotent=False,
        ),
        Operation(
            "GetTaskPushNotificationConfig",
            "get_push_config",
            "GET",
            _CONFIGS + "/{id}",
            GetTaskPushNotificationConfigRequest,
            TaskPushNotificationConfig,
            capability="push_notifications",
        ),
        Operation(
            "ListTaskPushNotificationConfigs",
            "list_push_configs",
            "GET",
            _CONFIGS,
            ListTaskPushNotificationConfigsRequest,
            ListTaskPushNotificationConfigsResponse,
            capability="push_notifications",
        ),
        Operation(
            "DeleteTaskPushNotificationConfig",
            "delete_push_config",
            "DELETE",
            _CONFIGS + "/{id}",
            DeleteTaskPushNotificationConfigRequest,
            Empty,
            capability="push_notifications",
        ),
        Operation(
            "GetExtendedAgentCard",
            "get_extended_card",
            "GET",
            "/extendedAgentCard",
            GetExtendedAgentCardRequest,
            AgentCard,
            capability="extended_agent_card",
        ),
    )
}
