"""The eleven operations of the protocol, one row each. Bindings, client and tests loop over them."""

from __future__ import annotations

from typing import Literal, NamedTuple

from errands.model import requests
from errands.model.base import A2AObject
from errands.model.card import AgentCard
from errands.model.core import StreamResponse, Task

Capability = Literal["streaming", "push_notifications", "extended_agent_card"]


class Operation(NamedTuple):
    """One operation. `path` is the HTTP+JSON path, in which `{name}` is a field of the request."""

    name: str
    #: The method of `TaskManager` that performs it.
    method: str
    http_method: Literal["GET", "POST", "DELETE"]
    path: str
    request: type[A2AObject]
    response: type[A2AObject]
    streams: bool = False
    capability: Capability | None = None
    #: Whether sending the same request again changes nothing.
    idempotent: bool = True

    @property
    def reads(self) -> bool:
        """Return whether it changes nothing."""
        return self.http_method == "GET" or self.name == "SubscribeToTask"


_CONFIGS = "/tasks/{task_id}/pushNotificationConfigs"
_CONFIG = "/tasks/{task_id}/pushNotificationConfigs/{id}"

# fmt: off
_OPERATIONS = (
    Operation("SendMessage", "send_message", "POST", "/message:send",
              requests.SendMessageRequest, requests.SendMessageResponse, idempotent=False),
    Operation("SendStreamingMessage", "send_streaming_message", "POST", "/message:stream",
              requests.SendMessageRequest, StreamResponse, streams=True, capability="streaming", idempotent=False),
    Operation("GetTask", "get_task", "GET", "/tasks/{id}", requests.GetTaskRequest, Task),
    Operation("ListTasks", "list_tasks", "GET", "/tasks", requests.ListTasksRequest, requests.ListTasksResponse),
    Operation("CancelTask", "cancel_task", "POST", "/tasks/{id}:cancel", requests.CancelTaskRequest, Task),
    Operation("SubscribeToTask", "subscribe_to_task", "POST", "/tasks/{id}:subscribe",
              requests.SubscribeToTaskRequest, StreamResponse, streams=True, capability="streaming"),
    Operation("CreateTaskPushNotificationConfig", "create_push_config", "POST", _CONFIGS,
              requests.TaskPushNotificationConfig, requests.TaskPushNotificationConfig,
              capability="push_notifications", idempotent=False),
    Operation("GetTaskPushNotificationConfig", "get_push_config", "GET", _CONFIG,
              requests.GetTaskPushNotificationConfigRequest, requests.TaskPushNotificationConfig,
              capability="push_notifications"),
    Operation("ListTaskPushNotificationConfigs", "list_push_configs", "GET", _CONFIGS,
              requests.ListTaskPushNotificationConfigsRequest, requests.ListTaskPushNotificationConfigsResponse,
              capability="push_notifications"),
    Operation("DeleteTaskPushNotificationConfig", "delete_push_config", "DELETE", _CONFIG,
              requests.DeleteTaskPushNotificationConfigRequest, requests.Empty, capability="push_notifications"),
    Operation("GetExtendedAgentCard", "get_extended_card", "GET", "/extendedAgentCard",
              requests.GetExtendedAgentCardRequest, AgentCard, capability="extended_agent_card"),
)
# fmt: on
OPERATIONS = {operation.name: operation for operation in _OPERATIONS}
