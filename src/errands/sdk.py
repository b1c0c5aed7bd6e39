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
from errands.runtime.executor.agent import AgentExecutor
from errands.runtime.executor.call import ServerCallContext, User
from errands.runtime.executor.ids import IDGenerator, IDGeneratorContext, UUIDGenerator
from errands.runtime.executor.queue import EventQueue
from errands.runtime.executor.request import RequestContext, RequestContextBuilder, SimpleRequestContextBuilder
from errands.runtime.executor.updater import TaskUpdater
from errands.runtime.executor.worker import ExecutorWorker

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
