"""The life of a task as data and pure functions: no I/O, no clock.

`accept` says whether a change may be written, `fold` what the log amounts to. Engines, runtime, client and
tests use these same two functions, so a state can never mean two things.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from errands.errors import (
    ConcurrencyError,
    IllegalTransitionError,
    LeaseLostError,
    TaskTerminalStateError,
)
from errands.model.core import (
    AUTH_REQUIRED,
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    PAUSED_STATES,
    REJECTED,
    SETTLED_STATES,
    SUBMITTED,
    TERMINAL_STATES,
    UNSPECIFIED,
    WORKING,
    Artifact,
    Message,
    Part,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
)
from errands.model.log import IDLE, KEEP, LEASE, UNFOLDED_KINDS, Change, Draft, Event, Head

#: From where to where. A state that is missing on the left is terminal.
TRANSITIONS: dict[TaskState, frozenset[TaskState]] = {
    UNSPECIFIED: frozenset({SUBMITTED}),
    SUBMITTED: frozenset({WORKING, CANCELED}),
    WORKING: frozenset(
        {
            WORKING,
            COMPLETED,
            FAILED,
            CANCELED,
            REJECTED,
            INPUT_REQUIRED,
            AUTH_REQUIRED,
        }
    ),
    INPUT_REQUIRED: frozenset({SUBMITTED, CANCELED}),
    AUTH_REQUIRED: frozenset({SUBMITTED, CANCELED}),
}

_decode = msgspec.json.Decoder(StreamResponse).decode


def accept(head: Head | None, change: Change) -> None:
    """Raises unless `change` may be written to a task that stands at `head` (None: there is no such task).

    In this order: the version, the fence, the terminal guard, the expected states, the way between states.
    """
    if head is None:
        if change.expected != 0:
            raise ConcurrencyError(f"task {change.task_id} does not exist")
        head = Head()
    elif change.expected is not None and change.expected != head.version:
        raise ConcurrencyError(
            f"task {change.task_id} is at version {head.version}, not at {change.expected}",
        )
    if change.fence is not None and (change.fence != head.attempt or not head.worker):
        _refuse_fence(head, change)
    if change.state is not None:
        if head.state in TERMINAL_STATES:
            raise TaskTerminalStateError(f"Task {change.task_id} is already {head.state.short}", taskId=change.task_id)
        _check_states(head, change)
        if change.state not in _reachable(head.state, change):
            raise IllegalTransitionError(f"a task cannot go from {head.state.short} to {change.state.short}")
    else:
        _check_states(head, change)


def _check_states(head: Head, change: Change) -> None:
    if change.expected_states is not None and head.state not in change.expected_states:
        raise ConcurrencyError(f"task {change.task_id} is {head.state.short} now")


def _refuse_fence(head: Head, change: Change) -> None:
    if head.state in TERMINAL_STATES:
        raise TaskTerminalStateError(f"Task {change.task_id} is already {head.state.short}")
    raise LeaseLostError(
        f"attempt {change.fence} of task {change.task_id} was superseded by attempt {head.attempt}",
    )


def _reachable(state: TaskState, change: Change) -> frozenset[TaskState]:
    # Created and claimed in one commit: the task passes through `submitted`, its first event says so.
    if state is UNSPECIFIED and change.work is LEASE:
        return frozenset({SUBMITTED, WORKING})
    # Resumed and claimed in one commit, likewise.
    if state in PAUSED_STATES and change.work is LEASE:
        return TRANSITIONS[state] | {WORKING}
    return TRANSITIONS[state]


def advance(head: Head, change: Change) -> Head:
    """The head after an accepted change."""
    attempt = head.attempt + (change.work is LEASE)
    worker, due_at = head.worker, head.due_at
    if change.work is not KEEP:
        worker = change.worker if change.work is LEASE else ""
        due_at = None if change.work is IDLE else change.due_at
    return Head(
        version=head.version + len(change.events),
        state=change.state or head.state,
        attempt=attempt,
        # A finished turn gives the next one a fresh count; one that follows under the same lease is a first try.
        # The next turn counts afresh, even when it goes on with the same lease.
        attempt_base=attempt - bool(worker) if change.unread < 0 else head.attempt_base,
        worker=worker,
        due_at=due_at,
        unread=head.unread + change.unread,
        cancel_requested=head.cancel_requested if change.cancel_requested is None else change.cancel_requested,
        direct=head.direct if change.direct is None else change.direct,
        created_at=head.created_at or change.at,
        updated_at=change.at,
        status_at=head.status_at if change.state is None else change.at,
    )


def fold(task: Task | None, events: Iterable[Event | Draft]) -> Task:
    """The task after `events`. The given task is not changed; untouched parts are shared with it."""
    folding = _Folding(task)
    for event in events:
        if event.kind in UNFOLDED_KINDS:
            continue
        response = _decode(event.data)
        if response.artifact_update is not None:
            folding.artifact(response.artifact_update)
        elif response.status_update is not None:
            folding.status(response.status_update.status)
        elif response.message is not None:
            folding.message(response.message)
        elif response.task is not None:
            folding = _Folding(response.task)
    return folding.task()


def apply(task: Task | None, response: StreamResponse) -> Task:
    """The task after one event, as a client sees it arrive."""
    if response.task is not None:
        return response.task
    if task is None:
        raise ValueError("a stream begins with a task")
    return fold_updates(task, [response])


def fold_updates(task: Task, updates: Iterable[StreamResponse]) -> Task:
    """`fold` for events that are already decoded."""
    folding = _Folding(task)
    for update in updates:
        if update.artifact_update is not None:
            folding.artifact(update.artifact_update)
        elif update.status_update is not None:
            folding.status(update.status_update.status)
        elif update.message is not None:
            folding.message(update.message)
    return folding.task()


class _Folding:
    """Collects events onto a task and joins streamed text once, at the end, so that folding stays linear."""

    def __init__(self, task: Task | None) -> None:
        self._task = task
        self._status = task.status if task else None
        self._history: list[Message] = list(task.history or ()) if task else []
        self._artifacts: dict[str, Artifact] = {a.artifact_id: a for a in (task.artifacts or ())} if task else {}
        self._appended: dict[str, list[Part]] = {}

    def message(self, message: Message) -> None:
        self._history.append(message)

    def status(self, status: TaskStatus) -> None:
        current = self._status
        if current is not None and status.message is None and status.state is WORKING is current.state:
            return  # a sign of life: what was said last still stands
        self._status = status
        # What ends a turn is part of the conversation; progress on the way is not.
        if status.message is not None and status.state in SETTLED_STATES:
            self._history.append(status.message)

    def artifact(self, update: TaskArtifactUpdateEvent) -> None:
        artifact = update.artifact
        known = self._artifacts.get(artifact.artifact_id)
        if not update.append or known is None:
            self._artifacts[artifact.artifact_id] = artifact
            self._appended.pop(artifact.artifact_id, None)
            return
        self._appended.setdefault(artifact.artifact_id, []).extend(artifact.parts)
        if artifact.name or artifact.description or artifact.metadata or artifact.extensions:
            self._artifacts[artifact.artifact_id] = msgspec.structs.replace(
                known,
                name=artifact.name or known.name,
                description=artifact.description or known.description,
                metadata={**(known.metadata or {}), **(artifact.metadata or {})} or None,
                extensions=artifact.extensions or known.extensions,
            )

    def task(self) -> Task:
        if self._task is None or self._status is None:
            raise ValueError("a log begins with the task")
        for artifact_id, parts in self._appended.items():
            artifact = self._artifacts[artifact_id]
            self._artifacts[artifact_id] = msgspec.structs.replace(artifact, parts=join_text([*artifact.parts, *parts]))
        self._appended = {}
        return msgspec.structs.replace(
            self._task,
            status=self._status,
            history=self._history or None,
            artifacts=list(self._artifacts.values()) or None,
        )


def join_text(parts: list[Part]) -> list[Part]:
    """Neighbouring plain text parts as one: a streamed text is whole, however it was cut.

    A text without a character is left out unless there is nothing else: it only says that the stream is over.
    """
    joined: list[Part] = []
    run: list[str] = []
    for part in parts:
        if _is_plain_text(part):
            run.append(part.text or "")
            continue
        if text := "".join(run):
            joined.append(Part(text=text))
        run = []
        joined.append(part)
    if (text := "".join(run)) or (run and not joined):
        joined.append(Part(text=text))
    return joined


def _is_plain_text(part: Part) -> bool:
    return part.text is not None and part.metadata is None and part.filename is None and part.media_type is None
