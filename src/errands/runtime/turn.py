"""The writing end of one leased turn.

Chunks are pipelined: `emit` puts them into a window and returns, one commit at a time carries off whatever stands
there. Ending the turn waits for all of it. So the order of the calls is the order of the log, a slow disk makes
batches larger instead of the worker slower, and at most one commit per task is under way, which is why the turn
always knows the version it writes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from errands import lifecycle
from errands.errors import (
    ConcurrencyError,
    DamagedTaskError,
    LeaseLostError,
    StorageError,
    TaskTerminalStateError,
    TurnError,
)
from errands.model.base import encode
from errands.model.core import (
    CANCELED,
    COMPLETED,
    PAUSED_STATES,
    SUBMITTED,
    TERMINAL_STATES,
    WORKING,
    Message,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
)
from errands.model.log import IDLE, KEEP, READY, Change, Draft, EventKind, StoredTask
from errands.runtime.expiry import Expired
from errands.runtime.journal import Batch, Journal, status_update, unwritable
from errands.runtime.oversight import Overseer

#: What may wait to become durable before the worker has to wait as well.
WINDOW_EVENTS = 1000
WINDOW_BYTES = 1024 * 1024
#: The tail of the log that is folded into the snapshot at the latest; from then on, when it has doubled.
FOLD_BYTES = 1024 * 1024

ALREADY_ENDED = (
    "The turn has already ended: exactly one of complete, complete_json, respond, reply_directly, fail, reject, "
    "request_input and request_auth may be called, and nothing can be written after it"
)


class _CancelWantedError(Exception):
    """A turn cannot rest: nobody would see the wish."""


class Ending(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """How a turn is to end."""

    state: TaskState
    message: Message | None = None
    artifacts: Sequence[TaskArtifactUpdateEvent] = ()
    metadata: dict[str, Any] | None = None
    direct: bool = False
    #: The state was emitted already.
    announced: bool = False
    #: The one user whose answer the turn, only suspended, waits for.
    asks: str = ""


class Turn:
    #: Without one everything is shown as it comes.
    overseer: Overseer | None = None
    #: How the task ends instead of canceled: nobody answered it in time, and its worker is only to let go of it.
    expired: Expired | None = None
    #: A lifecycle method was called.
    ended = False
    #: What it wrote is durable.
    settled = False
    #: The task goes on with the next message that was waiting.
    continues = False
    #: The task has ended with the turn.
    ends_task = False
    #: The task is canceled by force, whatever the handler still does.
    _is_forced = False
    #: Not only artifacts were emitted.
    _tells = False
    #: Stored since the snapshot, and in it.
    _tail_bytes = 0
    _folded_bytes = 0
    _flusher: asyncio.Task[None] | None = None
    #: Emitted, and not yet on its way.
    _pending: Batch | None = None
    #: Being written.
    _underway: Sequence[StreamResponse] = ()
    _writing = False
    _failure: Exception | None = None

    def __init__(self, journal: Journal, stored: StoredTask) -> None:
        self._journal = journal
        self.task_id = stored.task.id
        self.context_id = stored.task.context_id or ""
        self._scope = stored.scope
        self._fence = stored.head.attempt
        #: The artifacts that readers know.
        self._artifacts: set[str] = set()
        self._view(stored)

    def _view(self, stored: StoredTask) -> None:
        self._task = stored.task
        if stored.task.artifacts:
            self._artifacts.update(artifact.artifact_id for artifact in stored.task.artifacts)
        self._state = stored.head.state
        self._version = stored.head.version
        self._unread = stored.head.unread
        self._cancel_wanted = stored.head.cancel_requested
        #: Durable, and not yet in `_task`.
        self._updates: list[StreamResponse] = []
        #: Somebody else wrote in between: `_task` is not the whole truth.
        self._stale = False

    @property
    def task(self) -> Task:
        """The task as this turn knows it, with what was emitted and is not yet durable."""
        unwritten = [*self._underway, *([] if self._pending is None else self._pending.updates)]
        return lifecycle.fold_updates(self._task, [*self._updates, *unwritten])

    def emit(self, kind: EventKind, update: StreamResponse, *, approved: bool = False) -> bool:
        """Put an event into the window; return whether the window is full and the caller should `catch_up`.

        The overseer may hold the event back, unless it has `approved` it. Raises `TypeError` or `ValueError` for an
        event that cannot be encoded, and keeps nothing of it.
        """
        try:
            data = encode(update)
        except UnicodeEncodeError as error:
            raise unwritable(error) from None
        if self.overseer is not None and not approved:
            self._check_open()
            if self.overseer.hold_back(kind, update):
                return False
        piece = update.artifact_update
        begins = piece is not None and piece.artifact.artifact_id not in self._artifacts
        if begins and piece is not None and piece.append:
            # An artifact's first piece begins it, whatever its author says: clients drop what continues nothing.
            update = StreamResponse(artifact_update=msgspec.structs.replace(piece, append=False))
            data = encode(update)
        pending = self._pending
        if pending is None or self.ended or self._failure is not None:
            pending = self._window()
        if piece is None:
            self._tells = True
        elif begins:
            self._artifacts.add(piece.artifact.artifact_id)
        pending.drafts.append(Draft(kind, data))
        pending.updates.append(update)
        pending.size += len(data)
        return len(pending.drafts) >= WINDOW_EVENTS or pending.size >= WINDOW_BYTES

    def tell(self, update: StreamResponse) -> None:
        """Shows an event to those who follow the task in this process, and stores nothing."""
        self._check_open()
        self._journal.engine.tell(self.task_id, encode(update))

    def note(self, record: bytes) -> None:
        """Puts a record into the window; it becomes durable with what follows, or by `catch_up`."""
        self._window().note(record)

    @property
    def refusal(self) -> Exception | None:
        """Return why the handler has lost its task, such as by a cancel or another process; None while it has not."""
        if self._is_forced:
            return TaskTerminalStateError(f"Task {self.task_id} was canceled by force", taskId=self.task_id)
        return self._failure

    def _check_open(self) -> None:
        if (refusal := self.refusal) is not None:
            raise refusal
        if self.ended:
            raise TurnError(ALREADY_ENDED)

    async def remember(self, context: bytes) -> None:
        """Keeps a value for the task's conversation; durable when this returns."""
        self._check_open()
        await self._journal.commit(
            Change(
                task_id=self.task_id,
                scope=self._scope,
                fence=self._fence,
                at=self._journal.now(),
                context=context,
            )
        )

    def _window(self) -> Batch:
        self._check_open()
        if self._pending is None:
            self._pending = Batch()
        if self._flusher is None:
            self._flusher = asyncio.get_running_loop().create_task(self._flush())
        return self._pending

    async def catch_up(self) -> None:
        """Waits until everything emitted so far is durable."""
        if self._flusher is not None:
            await asyncio.wait([self._flusher])
        if self._failure is not None:
            raise self._failure

    async def _flush(self) -> None:
        try:
            while self._pending is not None:
                await self._write_pending(self._pending)
        except Exception as error:
            self._failure = error
        finally:
            self._flusher = None

    async def _write_pending(self, pending: Batch) -> None:
        self._pending = None
        self._tail_bytes += pending.size
        self._writing, self._underway = True, pending.updates
        try:
            await self._write(pending)
        finally:
            self._writing, self._underway = False, ()

    async def _write(self, pending: Batch) -> None:
        drafts, updates = pending.drafts, pending.updates
        state, moves = self._moves(updates) if self._tells else (None, [])
        fold = None
        if self._tail_bytes >= max(FOLD_BYTES, self._folded_bytes):
            if self._stale:
                await self._refresh()
            fold = lifecycle.fold_updates(self._task, [*self._updates, *updates])
        change = Change(
            task_id=self.task_id,
            scope=self._scope,
            events=drafts,
            expected=self._version if fold is not None else None,
            fence=self._fence,
            at=self._journal.now(),
            state=state,
            fold=fold,
        )
        try:
            version = await self._journal.commit(change, moves, previous=self._state)
        except ConcurrencyError:
            self._stale = True
            await self._write(pending)
            return
        if fold is not None:
            self._task, self._updates = fold, []
            self._folded_bytes += self._tail_bytes
            self._tail_bytes = 0
        else:
            self._updates += updates
        self._state = state or self._state
        self._stale = self._stale or version != self._version + len(drafts)
        self._version = version

    def _moves(self, updates: Sequence[StreamResponse]) -> tuple[TaskState | None, list[StreamResponse]]:
        """Return the state that these events tell, None for mere signs of life, and those that tell something."""
        state, told = self._state, None
        moves: list[StreamResponse] = []
        for update in updates:
            if update.artifact_update is not None or (changed := update.status_update or update.task) is None:
                continue
            status = changed.status
            if status.state is not state or status.message is not None:
                moves.append(update)
                state = told = status.state
        return told, moves

    async def _refresh(self) -> None:
        stored = await self._journal.engine.load(self.task_id, self._scope)
        if stored.damage:
            raise DamagedTaskError(stored.damage)
        self._view(stored)

    def end(
        self,
        state: TaskState,
        *,
        message: Message | None = None,
        artifacts: Sequence[TaskArtifactUpdateEvent] = (),
        metadata: dict[str, Any] | None = None,
        direct: bool = False,
        announced: bool = False,
        asks: str = "",
    ) -> Coroutine[Any, Any, None]:
        """Ends the turn in `state`; returns when everything is durable. The first call wins.

        `announced` says that the state was emitted already. `asks` names the one user whose answer a paused task
        waits for: the turn is then only suspended. It goes on with the same message when that answer has come, and
        messages that come meanwhile wait for their own turns.

        A call that fails has not ended the turn: what was emitted waits on, and another way may be tried.
        """
        ending = Ending(
            state=state,
            message=message,
            artifacts=artifacts,
            metadata=metadata,
            direct=direct,
            announced=announced,
            asks=asks,
        )
        if self.overseer is None or self.ended:
            return self.finish(ending)
        encode(ending)  # raises here for what could not be written later
        return self.overseer.end(ending)

    async def finish(self, ending: Ending) -> None:
        """`end`, whoever oversees the turn."""
        if self.ended:
            self._check_open()
        if ending.state is CANCELED and self.expired is not None:
            for record in self.expired.records:
                self.note(record)
            ending = Ending(state=self.expired.state, message=self.expired.message)
        state = ending.state
        self.ended = True
        try:
            if self._flusher is not None:
                await self._settle_flusher(self._flusher)
            if self._failure is not None:
                raise self._failure
            now, last = self._journal.now(), None
            if not ending.announced:
                last = status_update(self.task_id, self.context_id, state, now, ending.message, ending.metadata)
            while not await self._close(ending, last, now):
                await self._refresh()
        except Exception:
            self.ended = False
            raise
        self._pending = None
        self.settled = True
        self.ends_task = state in TERMINAL_STATES and not self.continues

    async def cancel_by_force(self) -> None:
        """Ends the task as canceled; what the handler writes from now on raises `TaskTerminalStateError`."""
        self._is_forced = True
        try:
            await self.end(CANCELED)
        except BaseException:
            self._is_forced = False
            raise

    async def rest(self, state: TaskState) -> bool:
        """Ends the turn in the pause that was emitted last: lets go of the task, or goes on with the next message.

        False when the task is wanted canceled: then the turn has not ended and is still to be.
        """
        try:
            await self.end(state, announced=True)
        except _CancelWantedError:
            return False
        return True

    async def _settle_flusher(self, flusher: asyncio.Task[None]) -> None:
        if self._writing:
            await asyncio.wait([flusher])
        else:
            # Not begun: what it would write goes into the last commit.
            flusher.cancel()
            self._flusher = None

    async def _close(self, ending: Ending, last: StreamResponse | None, now: int) -> bool:
        """Writes the last events of the turn; false when somebody else has written meanwhile.

        `last` is the status that ends the turn, None when it was emitted.
        """
        if self._stale:
            return False
        if last is None and self._cancel_wanted:
            raise _CancelWantedError
        state, asks = ending.state, ending.asks
        events = Batch() if self._pending is None else self._pending.copy()
        for artifact in ending.artifacts:
            events.add("artifact", StreamResponse(artifact_update=artifact))
        emitted = len(events.updates)
        self.continues = not asks and self._unread > 1 and (state is COMPLETED or state in PAUSED_STATES)
        if self.continues:
            self._carry_on(state, last, now, events)
            state = WORKING
        elif last is not None:
            events.add("status", last)
        updates = events.updates
        change = Change(
            task_id=self.task_id,
            scope=self._scope,
            events=events.drafts,
            expected=self._version,
            fence=self._fence,
            at=now,
            # Without events it is let go of and nothing else.
            state=state if updates else None,
            fold=lifecycle.fold_updates(self._task, self._updates + updates if self._updates else updates),
            work=KEEP if self.continues else IDLE,
            unread=0 if asks else -1,
            direct=ending.direct,
            asks=asks or None,
        )
        told = updates[emitted:]
        if self._tells:
            told = [*self._moves(updates[:emitted])[1], *told]
        try:
            await self._journal.commit(change, told, previous=self._state)
        except ConcurrencyError:
            return False
        return True

    def _carry_on(self, state: TaskState, last: StreamResponse | None, now: int, events: Batch) -> None:
        """Another message is waiting: what was said joins the history, and the task stays at work."""
        if state in PAUSED_STATES:
            if last is not None:
                events.add("status", last)
            events.add("status", status_update(self.task_id, self.context_id, SUBMITTED, now))
        elif last is not None and last.status_update is not None and last.status_update.status.message is not None:
            events.add("message", StreamResponse(message=last.status_update.status.message))
        events.add("status", status_update(self.task_id, self.context_id, WORKING, now))

    async def reopen(self) -> bool:
        """After an interrupted `end`: whether the turn still has to be ended, by looking at the log."""
        stored = await self._journal.engine.load(self.task_id, self._scope)
        if stored.damage or stored.head.attempt != self._fence or not stored.head.worker:
            return False
        self._artifacts.clear()
        self._view(stored)
        self._pending = None  # went with the interrupted commit
        self.ended = self._is_forced = False
        self._failure = None
        return True

    async def recover(self) -> None:
        """Drop a window that could not be written because of a bug, so that the turn can still be ended."""
        if self._failure is None or isinstance(self._failure, LeaseLostError | TaskTerminalStateError | StorageError):
            return
        await self.reopen()

    async def give_back(self) -> None:
        """Keeps what was emitted and puts the task back into the queue, for another process or another time."""
        self.ended = True
        if self._flusher is not None:
            await self._settle_flusher(self._flusher)
        pending, self._pending = self._pending or Batch(), None
        drafts = pending.drafts
        state, moves = self._moves(pending.updates)
        now = self._journal.now()
        await self._journal.commit(
            Change(
                task_id=self.task_id,
                scope=self._scope,
                events=drafts,
                fence=self._fence,
                at=now,
                state=state,
                work=READY,
                due_at=now,
                gives_back=True,
            ),
            moves,
            previous=self._state,
        )
