"""The queue of one turn: what an executor publishes, checked and written to the log."""

from __future__ import annotations

from typing import Any

import msgspec

from errands.clock import to_iso
from errands.errors import A2AError, InvalidAgentResponseError, TurnError
from errands.model.core import (
    COMPLETED,
    PAUSED_STATES,
    SETTLED_STATES,
    TERMINAL_STATES,
    UNSPECIFIED,
    Artifact,
    Message,
    Role,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from errands.model.log import EventKind
from errands.runtime.executor.queue import Event, EventQueue
from errands.runtime.journal import new_id, status_update
from errands.runtime.turn import Turn
from errands.runtime.validation import reread


class TurnQueue(EventQueue):
    """Writes to a turn. `task_known` says that the client has a task already, so that a `Message` comes too late."""

    def __init__(self, turn: Turn, *, task_known: bool) -> None:
        self._turn = turn
        self._now = turn.journal.now
        self._task_known = task_known
        self._answered = False
        self._closed = False
        #: The pause that was published last, while nothing has followed it.
        self.pause: TaskState | None = None
        #: Why the first event that could not be taken was not, or what else the executor refused the request with;
        #: after it the queue takes nothing more.
        self.violation: A2AError | None = None

    def is_closed(self) -> bool:
        return self._closed or self._turn.refusal is not None

    async def close(self) -> None:
        self._closed = True

    async def enqueue_event(self, event: Event) -> None:
        if (refusal := self._turn.refusal) is not None:
            raise refusal
        if self._closed:
            raise TurnError("The event queue is closed: nothing can be published once execute or cancel has returned")
        if self.violation is not None:
            raise self.violation
        try:
            self._check_order(event)
            if isinstance(event, Message):
                await self._answer(event)
            elif isinstance(event, TaskArtifactUpdateEvent):
                await self._artifact(event)
            elif isinstance(event, TaskStatusUpdateEvent):
                self._check_ids(event.task_id, event.context_id)
                await self._status(self._checked(event.status), event.metadata)
            elif isinstance(event, Task):
                await self._task(event)
            else:
                raise InvalidAgentResponseError(
                    "an executor publishes Task, Message, TaskStatusUpdateEvent and TaskArtifactUpdateEvent, "
                    f"not {type(event).__module__}.{type(event).__name__}"
                )
        except InvalidAgentResponseError as error:
            self.violation = error
            raise

    def _check_order(self, event: Event) -> None:
        name = type(event).__name__
        if self._answered:
            raise InvalidAgentResponseError(f"a {name} after a Message: a Message is the whole answer")
        if self._turn.ended:
            raise InvalidAgentResponseError(f"a {name} after a terminal state: the task has ended")
        if isinstance(event, Message) and self._task_known:
            raise InvalidAgentResponseError(
                "a Message after a Task: send words to a task's user in a TaskStatusUpdateEvent"
            )

    def _check_ids(self, task_id: str | None, context_id: str | None) -> None:
        if task_id and task_id != self._turn.task_id:
            raise InvalidAgentResponseError(f"an event for task {task_id} in the queue of task {self._turn.task_id}")
        if context_id and context_id != self._turn.context_id:
            raise InvalidAgentResponseError(
                f"an event for context {context_id} in the queue of context {self._turn.context_id}"
            )

    async def _answer(self, message: Message) -> None:
        message = reread(self._spoken(message))
        self._answered = True
        await self._turn.end(COMPLETED, message=message, direct=True)

    async def _artifact(self, event: TaskArtifactUpdateEvent) -> None:
        self._check_ids(event.task_id, event.context_id)
        _check_artifact(event.artifact)
        await self._emit("artifact", StreamResponse(artifact_update=self._ours(event)))

    async def _status(self, status: TaskStatus, metadata: dict[str, Any] | None = None) -> None:
        turn, state = self._turn, status.state
        update = status_update(turn.task_id, turn.context_id, state, self._now(), status.message, metadata)
        if state in TERMINAL_STATES:
            last = reread(update).status_update
            assert last is not None
            await self._after_pause()
            await turn.end(state, message=last.status.message, metadata=last.metadata)
            return
        await self._emit("status", update)
        self.pause = state if state in PAUSED_STATES else None

    async def _task(self, task: Task) -> None:
        """A task is what is new in it, and its status. Streams show it in this way to whoever has the task already."""
        self._check_ids(task.id, task.context_id)
        status = self._checked(task.status)
        current = self._turn.task
        said = [self._spoken(message) for message in _new_messages(task, current)]
        artifacts = _new_artifacts(task, current)
        for artifact in artifacts:
            _check_artifact(artifact)
        settles = status.state in SETTLED_STATES
        if said or task.metadata or not settles:
            known = msgspec.structs.replace(
                current,
                status=current.status if settles else status,
                history=[*(current.history or ()), *said] or None,
                metadata={**(current.metadata or {}), **(task.metadata or {})} or None,
            )
            await self._emit("task", StreamResponse(task=known))
        for artifact in artifacts:
            update = TaskArtifactUpdateEvent(self._turn.task_id, self._turn.context_id, artifact)
            await self._emit("artifact", StreamResponse(artifact_update=update))
        if settles:
            await self._status(status)

    async def _emit(self, kind: EventKind, update: StreamResponse) -> None:
        update = reread(update)
        await self._after_pause()
        self._task_known = True
        if self._turn.emit(kind, update):
            await self._turn.catch_up()

    async def _after_pause(self) -> None:
        """Whoever waits for an answer must have seen the pause before the task goes on."""
        if self.pause is not None:
            self.pause = None
            await self._turn.catch_up()

    def _spoken(self, message: Message) -> Message:
        """A message as it joins the task: the agent's, with the identifiers of the task and one of its own."""
        self._check_ids(message.task_id, message.context_id)
        if not message.parts:
            raise InvalidAgentResponseError("a Message without parts: it needs at least one")
        return msgspec.structs.replace(
            message,
            message_id=message.message_id or new_id(),
            role=Role.AGENT,
            task_id=self._turn.task_id,
            context_id=self._turn.context_id,
        )

    def _checked(self, status: TaskStatus) -> TaskStatus:
        """A status as it joins the task, at this server's time."""
        if status.state is UNSPECIFIED:
            raise InvalidAgentResponseError("a status needs a state")
        message = None if status.message is None else self._spoken(status.message)
        return TaskStatus(state=status.state, message=message, timestamp=to_iso(self._now()))

    def _ours(self, event: TaskArtifactUpdateEvent) -> TaskArtifactUpdateEvent:
        if event.task_id and event.context_id:
            return event
        return msgspec.structs.replace(event, task_id=self._turn.task_id, context_id=self._turn.context_id)


def _check_artifact(artifact: Artifact) -> None:
    if not artifact.artifact_id:
        raise InvalidAgentResponseError("an Artifact without artifact_id: its pieces could not be put together")


def _new_messages(task: Task, current: Task) -> list[Message]:
    """What the agent has said. The user's words come from the user and are in the log before the agent sees them."""
    known = {message.message_id for message in current.history or ()}
    return [message for message in task.history or () if message.role is Role.AGENT and message.message_id not in known]


def _new_artifacts(task: Task, current: Task) -> list[Artifact]:
    known = {artifact.artifact_id: artifact for artifact in current.artifacts or ()}
    return [artifact for artifact in task.artifacts or () if known.get(artifact.artifact_id) != artifact]
