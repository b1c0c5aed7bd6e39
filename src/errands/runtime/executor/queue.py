"""`EventQueue`: where an executor publishes."""

from __future__ import annotations

from abc import ABC, abstractmethod

from errands.model.core import Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent

#: What an executor may publish.
Event = Task | Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent


class EventQueue(ABC):
    """The way from an executor into its task's log. It is open while `execute` or `cancel` runs."""

    @abstractmethod
    async def enqueue_event(self, event: Event) -> None:
        """Publishes an event; the order of the calls is the order in the log.

        What ends the task is durable when this returns. Raises `InvalidAgentResponseError` for an event that
        cannot follow on what was published before or that belongs to another task; nothing of it is kept and the
        task fails. Raises `TurnError` when the queue is closed, `TaskTerminalStateError` when the task was canceled by
        force, and `LeaseLostError` when another process has taken it over.
        """

    @abstractmethod
    def is_closed(self) -> bool:
        """Whether `enqueue_event` would be refused."""

    @abstractmethod
    async def close(self) -> None:
        """Takes no more events. Done by itself when `execute` or `cancel` is over."""
