"""Names of `praisonaiagents.ui.a2a` and of its `task_store`, for programs that move to errands by changing the import.

They are tasks in the form of PraisonAI's dialect. A server does not use them: its own tasks are `server.tasks`.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from errands.clock import system_clock, to_iso
from errands.model.core import TERMINAL_STATES
from errands.runtime.journal import new_id
from errands.wire.praisonai import STATES

__all__ = ["Artifact", "Message", "Role", "Task", "TaskState", "TaskStatus", "TaskStore", "TextPart"]


class TaskState(enum.StrEnum):
    """The states of PraisonAI's dialect."""

    SUBMITTED = "submitted"
    WORKING = "working"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INPUT_REQUIRED = "input_required"
    AUTH_REQUIRED = "auth_required"


_ENDED = frozenset(TaskState(STATES[state]) for state in TERMINAL_STATES)


class Role(enum.StrEnum):
    """The sender of a message."""

    USER = "user"
    AGENT = "agent"


class _Checked(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """Checks its fields and converts strings to states and roles. Raises ValueError."""

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(self):
            try:
                setattr(self, field.name, msgspec.convert(getattr(self, field.name), field.type))
            except msgspec.ValidationError as error:
                raise ValueError(f"{type(self).__name__}.{field.name}: {error}") from None


class TextPart(_Checked):
    """A piece of text."""

    text: str
    metadata: dict[str, Any] | None = None


class Message(_Checked):
    """A message of the user or the agent."""

    role: Role
    parts: list[TextPart]
    message_id: str = msgspec.field(default_factory=new_id)
    task_id: str | None = None
    context_id: str | None = None
    metadata: dict[str, Any] | None = None


class TaskStatus(_Checked):
    """The status of a task."""

    state: TaskState
    message: Message | None = None
    timestamp: str | None = None


class Artifact(_Checked):
    """An artifact of a task."""

    parts: list[TextPart]
    artifact_id: str = msgspec.field(default_factory=new_id)
    name: str | None = None
    description: str | None = None
    metadata: dict[str, Any] | None = None


class Task(_Checked):
    """A task with its messages and artifacts."""

    status: TaskStatus
    id: str = msgspec.field(default_factory=new_id)
    context_id: str | None = None
    history: list[Message] = []
    artifacts: list[Artifact] = []
    metadata: dict[str, Any] | None = None


class TaskStore:
    """Tasks in memory, in the order in which they were created. Methods return None for an unknown id."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    def create_task(self, message: Message, context_id: str | None = None) -> Task:
        """Add a submitted task with its first message, in a new context unless one is given."""
        task = Task(
            status=_status(TaskState.SUBMITTED),
            context_id=context_id or message.context_id or new_id(),
            history=[message],
        )
        self._tasks[task.id] = task
        return task

    def get_task(self, task_id: str) -> Task | None:
        """Return the task."""
        return self._tasks.get(task_id)

    def list_tasks(self, context_id: str | None = None) -> list[Task]:
        """Return all tasks, or those of one context."""
        return [task for task in self._tasks.values() if context_id in (None, task.context_id)]

    def update_status(self, task_id: str, state: TaskState, message: Message | None = None) -> Task | None:
        """Set the status of the task."""
        return self._replaced(task_id, status=_status(state, message))

    def add_to_history(self, task_id: str, message: Message) -> Task | None:
        """Add a message to the task's history."""
        task = self.get_task(task_id)
        return None if task is None else self._replaced(task_id, history=[*task.history, message])

    def add_artifact(self, task_id: str, artifact: Artifact) -> Task | None:
        """Add an artifact to the task."""
        task = self.get_task(task_id)
        return None if task is None else self._replaced(task_id, artifacts=[*task.artifacts, artifact])

    def cancel_task(self, task_id: str) -> Task | None:
        """Cancel the task, unless it has ended."""
        task = self.get_task(task_id)
        if task is None or task.status.state in _ENDED:
            return task
        return self.update_status(task_id, TaskState.CANCELLED)

    def clear(self) -> None:
        """Delete all tasks."""
        self._tasks.clear()

    def _replaced(self, task_id: str, **fields: Any) -> Task | None:
        if (task := self._tasks.get(task_id)) is not None:
            task = self._tasks[task_id] = msgspec.structs.replace(task, **fields)
        return task


def _status(state: TaskState, message: Message | None = None) -> TaskStatus:
    return TaskStatus(state=state, message=message, timestamp=to_iso(system_clock()))
