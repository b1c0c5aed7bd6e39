"""PraisonAI's names: its methods, states, events and the codes of its errors."""

from __future__ import annotations

from errands.model.core import (
    AUTH_REQUIRED,
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    REJECTED,
    SUBMITTED,
    UNSPECIFIED,
    WORKING,
    TaskState,
)

#: The operation behind each method. There is no way to subscribe, and no push notifications.
METHODS = {
    "message/send": "SendMessage",
    "message/stream": "SendStreamingMessage",
    "tasks/get": "GetTask",
    "tasks/list": "ListTasks",
    "tasks/cancel": "CancelTask",
    "agent/getExtendedCard": "GetExtendedAgentCard",
}

#: PraisonAI has no word for a rejected task; its reason is in the status message.
STATES: dict[TaskState, str] = {
    UNSPECIFIED: "submitted",
    SUBMITTED: "submitted",
    WORKING: "working",
    COMPLETED: "completed",
    FAILED: "failed",
    CANCELED: "cancelled",
    REJECTED: "failed",
    INPUT_REQUIRED: "input_required",
    AUTH_REQUIRED: "auth_required",
}

#: Where its codes are not those of the specification.
CODES = {"TASK_NOT_FOUND": -32000, "PUSH_NOTIFICATION_NOT_SUPPORTED": -32601}

STATUS_EVENT = "task.status"
ARTIFACT_EVENT = "task.artifact"
DONE_EVENT = "done"
ERROR_EVENT = "error"
