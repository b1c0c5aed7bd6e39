"""The life of a task as data and pure functions: no I/O, no clock.

`judge` decides whether a change may be written and what follows from it; `fold` computes a task from its log. Engines,
runtime, client and tests use these same functions, so a state can never mean two things.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from errands import errors
from errands.model.base import shallow_copy
from errands.model.core import (
    AUTH_REQUIRED,
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    REJECTED,
    SETTLED_STATES,
    SUBMITTED,
    TERMINAL_STATES,
    UNSPECIFIED,
    WORKING,
    Artifact,
    Part,
    StreamResponse,
    Task,
    TaskState,
)
from errands.model.log import (
    IDLE,
    KEEP,
    LEASE,
    NEW,
    READY,
    STREAMED_KINDS,
    UNFOLDED_KINDS,
    Change,
    Draft,
    Event,
    Head,
    LeaseRecord,
    Restored,
    Scope,
    StoredTask,
)

#: The states that can follow each state. A state that is missing on the left is terminal.
TRANSITIONS: dict[TaskState, frozenset[TaskState]] = {
    UNSPECIFIED: frozenset({SUBMITTED}),
    # A task fails in the queue when `task_timeout` has passed.
    SUBMITTED: frozenset({WORKING, CANCELED, FAILED}),
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
    # A paused task fails when it has become older than a policy allows.
    INPUT_REQUIRED: frozenset({SUBMITTED, CANCELED, FAILED}),
    AUTH_REQUIRED: frozenset({SUBMITTED, CANCELED, FAILED}),
}

#: The same for a change that also leases the task: created or resumed, it passes through `submitted`, as its first
#: events show.
CLAIMED: dict[TaskState, frozenset[TaskState]] = {
    state: reachable | {WORKING} if SUBMITTED in reachable else reachable for state, reachable in TRANSITIONS.items()
}

#: The same for a change by the holder of the lease. An executor reports the state of its task itself: it may end a task
#: that was never working, and continue while the task waits for an authentication that happens elsewhere. There is no
#: other writer, so the holder may go between live states as it likes. A task whose stored state cannot be read can only
#: fail.
HELD: dict[TaskState, frozenset[TaskState]] = {
    UNSPECIFIED: frozenset({FAILED}),
    **{state: TRANSITIONS[WORKING] | {SUBMITTED} for state in (SUBMITTED, WORKING, INPUT_REQUIRED, AUTH_REQUIRED)},
}

_decode = msgspec.json.Decoder(StreamResponse).decode


def accept(head: Head | None, change: Change) -> None:
    """Raise unless `change` may be written to a task with this head; None means that the task does not exist.

    Checked in this order: the version, the fence, the terminal guard, the expected states, the number of push configs,
    the transition.
    """
    expected, fence, work, state = change.expected, change.fence, change.work, change.state
    if head is None:
        if expected != 0:
            raise errors.ConcurrencyError(f"task {change.task_id} does not exist")
        head = NEW
    elif expected is not None and expected != head.version:
        raise errors.ConcurrencyError(
            f"task {change.task_id} is at version {head.version}, not at {expected}",
        )
    before = head.state
    # A change that takes the lease may name an attempt whose lease has ended: then no other was taken in between.
    if fence is not None and (fence != head.attempt or not (head.worker or work is LEASE)):
        if before in TERMINAL_STATES:
            raise errors.TaskTerminalStateError(f"Task {change.task_id} is already {before.short}")
        raise errors.LeaseLostError(
            f"attempt {fence} of task {change.task_id} was superseded by attempt {head.attempt}",
        )
    # An ended task keeps its state, and is not worked on again.
    if before in TERMINAL_STATES and (state is not None or work is LEASE or work is READY):
        raise errors.TaskTerminalStateError(f"Task {change.task_id} is already {before.short}", taskId=change.task_id)
    if change.expected_states is not None and before not in change.expected_states:
        raise errors.ConcurrencyError(f"task {change.task_id} is {before.short} now")
    if change.push is not None and change.push.id not in head.pushes and len(head.pushes) >= change.push_limit:
        raise errors.TooManyPushConfigsError(
            f"Task {change.task_id} has {len(head.pushes)} push notification configs already, which is the most "
            "allowed here; delete one first",
            taskId=change.task_id,
        )
    if state is not None:
        transitions = CLAIMED if work is LEASE else TRANSITIONS if fence is None else HELD
        if state not in transitions[before]:
            raise errors.IllegalTransitionError(f"a task cannot go from {before.short} to {state.short}")


def advance(head: Head, change: Change) -> Head:
    """Return the head after an accepted change."""
    after, work = shallow_copy(head), change.work
    if work is LEASE:
        after.claimed = "expired" if head.worker else "ready"
        after.attempt, after.worker, after.due_at = head.attempt + 1, change.worker, change.due_at
    elif work is not KEEP:
        after.worker, after.due_at = "", None if work is IDLE else change.due_at
    if change.unread < 0 or change.asks:
        # The next turn counts its attempts afresh, even under the same lease; so does one that waited for an answer.
        after.attempt_base, after.given_back = after.attempt - bool(after.worker), 0
    elif change.gives_back:
        after.given_back += 1
    after.unread += change.unread
    if change.events:
        after.version += len(change.events)
        after.claimed = ""  # the first event records how the lease was taken
    if change.state is not None:
        after.state, after.status_at, after.asks = change.state, change.at, change.asks or ""
    elif change.asks is not None:
        after.asks = change.asks
    if change.cancel_requested is not None:
        after.cancel_requested = change.cancel_requested
    if change.direct is not None:
        after.direct = change.direct
    if change.push is not None or change.drop_push is not None:
        ids = {*head.pushes, *([] if change.push is None else [change.push.id])} - {change.drop_push}
        after.pushes = tuple(sorted(ids))
    if not head.created_at:
        after.created_at = change.at
    after.updated_at = change.at
    return after


def claimed(head: Head, worker: str, until: int) -> Head:
    """Return the head after a due task was claimed: what `LEASE` does, without a change."""
    return msgspec.structs.replace(
        head, attempt=head.attempt + 1, worker=worker, due_at=until, claimed="expired" if head.worker else "ready"
    )


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """A message that was accepted before: by which task, and when."""

    task_id: str
    at: int
    #: When it expires, where the engine keeps that beside it.
    until: int = 0


def receipt_until(change: Change) -> int:
    """Return when the receipt of a change expires: after as long a window as the change itself looks back."""
    return 2 * change.at - change.receipt_since


class Judged(msgspec.Struct, gc=False):
    """An accepted change, and what follows from it."""

    change: Change
    #: Where the task stood before, and where it stands now.
    before: Head
    head: Head
    #: The events of the change, with their versions.
    events: list[Event]
    #: The whole task, if the change brought it along.
    stored: StoredTask | None
    #: Whether a worker may have something to do: the task has become due, or is to be canceled.
    wakes_workers: bool

    @property
    def fills_outbox(self) -> bool:
        """True when there is something to send to the webhooks of the task."""
        return self.head.pushes != () and any(event.kind in STREAMED_KINDS for event in self.events)

    @property
    def only_appends(self) -> bool:
        """True when only the version and `updated_at` of the head change, as for a streamed chunk."""
        change = self.change
        return (
            change.work is KEEP
            and change.state is None
            and change.fold is None
            and change.receipt is None
            and change.context is None
            and change.cancel_requested is None
            and change.direct is None
            and change.asks is None
            and change.push is None
            and change.drop_push is None
            and not (change.unread or change.gives_back or self.before.claimed or not self.before.version)
        )


def judge(scope: Scope | None, head: Head | None, receipt: Receipt | None, change: Change) -> Judged:
    """Return what `change` leads to, or raise the reason why it must not be written.

    `scope` and `head` are those of the stored task with this id, None if there is none; `receipt` is that of the same
    message in the change's scope, if it was accepted before. A repeated message is recognised first, also if its task
    is gone. A task of another scope looks like one that does not exist, except that its id cannot be used again.
    """
    if receipt is not None and receipt.at >= change.receipt_since:
        raise errors.DuplicateMessageError(receipt.task_id)
    if head is not None and scope != change.scope:
        accept(None, change)
        raise errors.ConcurrencyError(f"the id {change.task_id} is taken")
    accept(head, change)
    if change.restored is not None:
        return _judge_restored(head, change, change.restored)
    before = NEW if head is None else head
    after, at = advance(before, change), change.at
    # The first event records how the lease was taken.
    lease = _lease_record(before, after, change) if change.work is LEASE or before.claimed else None
    events: list[Event] = []
    version = before.version
    for draft in change.events:
        version += 1
        events.append(Event(version, draft.kind, draft.data, at, lease))
        lease = None
    stored = None if change.fold is None else StoredTask(task=change.fold, head=after, scope=change.scope)
    return Judged(change, before, after, events, stored, change.work is READY or change.cancel_requested is True)


def _judge_restored(head: Head | None, change: Change, restored: Restored) -> Judged:
    """Return what restoring a task leads to: its log and its head as they were in the other store."""
    if head is not None or change.fold is None:
        raise errors.ConcurrencyError(
            f"task {change.task_id} cannot be restored: it exists, or comes without its content"
        )
    stored = StoredTask(task=change.fold, head=restored.head, scope=change.scope)
    return Judged(change, NEW, restored.head, restored.events, stored, change.work is READY)


def _lease_record(before: Head, after: Head, change: Change) -> LeaseRecord:
    """Return what the first event of a change records about the lease that was taken by it or before it."""
    had_expired = bool(before.worker) if change.work is LEASE else before.claimed == "expired"
    is_first = after.attempt - before.attempt_base <= 1
    # The change may end the lease as well.
    holder = after if after.worker else before
    return LeaseRecord(
        after.attempt,
        holder.worker,
        holder.due_at or 0,
        "expired" if had_expired else "new" if is_first else "given back",
    )


def fold(task: Task | None, events: Iterable[Event | Draft]) -> Task:
    """Return the task after `events`. The given task is not changed; unchanged parts are shared with it."""
    updates = [_decode(event.data) for event in events if event.kind not in UNFOLDED_KINDS]
    if task is None:
        if not updates or updates[0].task is None:
            raise ValueError("a log begins with the task")
        task = updates.pop(0).task
        assert task is not None
    return fold_updates(task, updates)


def fold_updates(task: Task, updates: Iterable[StreamResponse]) -> Task:
    """Do the same as `fold` for events that are already decoded."""
    status, history, metadata = task.status, list(task.history or ()), task.metadata
    artifacts = {artifact.artifact_id: artifact for artifact in task.artifacts} if task.artifacts else {}
    #: Chunks by artifact: joined once, at the end, so that folding stays linear.
    appended: dict[str, list[Artifact]] = {}
    #: The ids of the first `counted` messages of the history, for published tasks.
    known: set[str] = set()
    counted = 0
    for update in updates:
        if update.artifact_update is not None:
            artifact = update.artifact_update.artifact
            if update.artifact_update.append and artifact.artifact_id in artifacts:
                appended.setdefault(artifact.artifact_id, []).append(artifact)
            else:
                artifacts[artifact.artifact_id] = artifact
                appended.pop(artifact.artifact_id, None)
        elif update.status_update is not None:
            new = update.status_update.status
            if new.message is None:
                # A bare "still working" keeps the last message.
                status = status if new.state is WORKING is status.state else new
                continue
            status = new
            # A message that ends a turn is part of the conversation; progress messages are not.
            if new.state in SETTLED_STATES:
                history.append(new.message)
        elif update.message is not None:
            history.append(update.message)
        elif update.task is not None:
            status = update.task.status
            metadata = {**(metadata or {}), **(update.task.metadata or {})} or None
            known.update(message.message_id for message in history[counted:])
            counted = len(history)
            # What a published task leaves out stays: a message may have come since.
            history += [message for message in update.task.history or () if message.message_id not in known]
            for artifact in update.task.artifacts or ():
                artifacts[artifact.artifact_id] = artifact
                appended.pop(artifact.artifact_id, None)
    for artifact_id, chunks in appended.items():
        artifacts[artifact_id] = _put_together([artifacts[artifact_id], *chunks])
    folded = shallow_copy(task)
    folded.status, folded.metadata = status, metadata
    folded.artifacts, folded.history = list(artifacts.values()) or None, history or None
    return folded


def _put_together(chunks: list[Artifact]) -> Artifact:
    """Return an artifact with the chunks that were appended to it; of its other fields the last value counts."""
    first = chunks[0]
    name, description, extensions = first.name, first.description, first.extensions
    metadata = dict(first.metadata or {})
    parts: list[Part] = []
    for chunk in chunks:
        parts += chunk.parts
        if chunk.name or chunk.description or chunk.metadata or chunk.extensions:
            name, description = chunk.name or name, chunk.description or description
            metadata.update(chunk.metadata or {})
            extensions = chunk.extensions or extensions
    return msgspec.structs.replace(
        first,
        name=name,
        description=description,
        parts=join_text(parts),
        metadata=metadata or None,
        extensions=extensions,
    )


def join_text(parts: list[Part]) -> list[Part]:
    """Join neighbouring plain text parts: a streamed text is one part, however it was cut.

    An empty text is left out unless there is nothing else: it only marks the end of the stream.
    """
    joined: list[Part] = []
    run: list[str] = []
    for part in parts:
        if part.text is not None and part.metadata is None and part.filename is None and part.media_type is None:
            run.append(part.text)
            continue
        if text := "".join(run):
            joined.append(Part(text=text))
        run = []
        joined.append(part)
    if (text := "".join(run)) or (run and not joined):
        joined.append(Part(text=text))
    return joined


def trim(task: Task, history_length: int | None) -> Task:
    """Return the task with at most `history_length` of its newest messages; 0 leaves the history out."""
    if history_length is None or task.history is None or len(task.history) <= history_length:
        return task
    history = task.history[-history_length:] if history_length else None
    return msgspec.structs.replace(task, history=history)
