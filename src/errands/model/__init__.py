"""The data model: A2A 1.0 as typed structs, and the records of the log. No I/O, no other layer."""

from errands.model.base import Metadata, Model, encode
from errands.model.core import (
    PAUSED_STATES,
    SETTLED_STATES,
    TERMINAL_STATES,
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
    text_of,
)

__all__ = [
    "PAUSED_STATES",
    "SETTLED_STATES",
    "TERMINAL_STATES",
    "Artifact",
    "Message",
    "Metadata",
    "Model",
    "Part",
    "Role",
    "StreamResponse",
    "Task",
    "TaskArtifactUpdateEvent",
    "TaskState",
    "TaskStatus",
    "TaskStatusUpdateEvent",
    "encode",
    "text_of",
]
