"""`TaskUpdater`: the events of one task, made and published by name."""

from __future__ import annotations

from typing import Any

from errands.clock import system_clock, to_iso
from errands.model.core import (
    AUTH_REQUIRED,
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    REJECTED,
    SUBMITTED,
    WORKING,
    Artifact,
    Message,
    Part,
    Role,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from errands.runtime.executor.ids import IDGenerator, IDGeneratorContext, UUIDGenerator, generated
from errands.runtime.executor.queue import EventQueue


class TaskUpdater:
    """`updater = TaskUpdater(event_queue, context.task_id, context.context_id)`.

    A request that is executed has both identifiers. Raises ValueError for one that has not.
    """

    def __init__(
        self,
        event_queue: EventQueue,
        task_id: str | None,
        context_id: str | None,
        artifact_id_generator: IDGenerator | None = None,
        message_id_generator: IDGenerator | None = None,
    ) -> None:
        if not task_id or not context_id:
            raise ValueError("updates need the identifiers of a task and its context")
        self.event_queue = event_queue
        self.task_id = task_id
        self.context_id = context_id
        self._artifact_ids = artifact_id_generator or UUIDGenerator()
        self._message_ids = message_id_generator or UUIDGenerator()

    async def update_status(
        self,
        state: TaskState,
        message: Message | None = None,
        timestamp: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Publishes a change of state, or words about how it is going."""
        status = TaskStatus(state=state, message=message, timestamp=timestamp or to_iso(system_clock()))
        await self.event_queue.enqueue_event(
            TaskStatusUpdateEvent(task_id=self.task_id, context_id=self.context_id, status=status, metadata=metadata)
        )

    async def add_artifact(
        self,
        parts: list[Part],
        artifact_id: str | None = None,
        name: str | None = None,
        metadata: dict[str, Any] | None = None,
        append: bool | None = None,
        last_chunk: bool | None = None,
        extensions: list[str] | None = None,
    ) -> None:
        """Publishes an artifact or, with `append`, a further piece of one."""
        artifact = Artifact(
            artifact_id=artifact_id or generated(self._artifact_ids, self._ids),
            parts=parts,
            name=name,
            metadata=metadata,
            extensions=extensions,
        )
        await self.event_queue.enqueue_event(
            TaskArtifactUpdateEvent(
                task_id=self.task_id,
                context_id=self.context_id,
                artifact=artifact,
                append=bool(append),
                last_chunk=bool(last_chunk),
            )
        )

    async def submit(self, message: Message | None = None) -> None:
        """Says that the task is taken on and not begun."""
        await self.update_status(SUBMITTED, message)

    async def start_work(self, message: Message | None = None) -> None:
        """Says that the work begins."""
        await self.update_status(WORKING, message)

    async def complete(self, message: Message | None = None) -> None:
        """Ends the task well."""
        await self.update_status(COMPLETED, message)

    async def failed(self, message: Message | None = None) -> None:
        """Ends the task as failed; `fail` is another name for it."""
        await self.update_status(FAILED, message)

    fail = failed

    async def reject(self, message: Message | None = None) -> None:
        """Declines the task."""
        await self.update_status(REJECTED, message)

    async def cancel(self, message: Message | None = None) -> None:
        """Ends the task as canceled."""
        await self.update_status(CANCELED, message)

    async def requires_input(self, message: Message | None = None) -> None:
        """Asks the user; `execute` should return then."""
        await self.update_status(INPUT_REQUIRED, message)

    async def requires_auth(self, message: Message | None = None) -> None:
        """Asks for credentials; `execute` returns then, or waits until they have come another way."""
        await self.update_status(AUTH_REQUIRED, message)

    def new_agent_message(self, parts: list[Part], metadata: dict[str, Any] | None = None) -> Message:
        """A message of the agent about this task; it is not published by that."""
        return Message(
            message_id=generated(self._message_ids, self._ids),
            role=Role.AGENT,
            parts=parts,
            task_id=self.task_id,
            context_id=self.context_id,
            metadata=metadata,
        )

    @property
    def _ids(self) -> IDGeneratorContext:
        return IDGeneratorContext(task_id=self.task_id, context_id=self.context_id)
