"""Names for executors that are written like those of the official SDK (`a2a-sdk`).

An executor written with the `a2a` package itself runs unmodified: pass it as `A2AServer(executor=...)`. With these
names it needs no `a2a` package.
"""

from __future__ import annotations

from errands.model.core import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from errands.runtime.executor import (
    AgentExecutor,
    EventQueue,
    IDGenerator,
    IDGeneratorContext,
    RequestContext,
    RequestContextBuilder,
    ServerCallContext,
    SimpleRequestContextBuilder,
    TaskUpdater,
    User,
    UUIDGenerator,
)
from errands.runtime.executor_worker import ExecutorWorker

__all__ = [
    "AgentExecutor",
    "Artifact",
    "EventQueue",
    "ExecutorWorker",
    "IDGenerator",
    "IDGeneratorContext",
    "Message",
    "Part",
    "RequestContext",
    "RequestContextBuilder",
    "Role",
    "ServerCallContext",
    "SimpleRequestContextBuilder",
    "Task",
    "TaskArtifactUpdateEvent",
    "TaskState",
    "TaskStatus",
    "TaskStatusUpdateEvent",
    "TaskUpdater",
    "UUIDGenerator",
    "User",
]
