"""The writing end of one leased turn.

Chunks are pipelined: `emit` puts them into a window and returns, one commit at a time carries off whatever stands
there. Ending the turn waits for all of it. So the order of the calls is the order of the log, a slow disk makes
batches larger instead of the worker slower, and at most one commit per task is under way, which is why the turn
always knows the version it writes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from errands import lifecycle
from errands.errors import ConcurrencyError, TurnError
from errands.model.base import encode
from errands.model.core import (
    COMPLETED,
    PAUSED_STATES,
    SUBMITTED,
    TERMINAL_STATES,
    WORKING,
    Message,
    StreamResponse,
    TaskArtifactUpdateEvent,
    TaskState,
)
from errands.model.log import IDLE, KEEP, READY, Change, Draft, EventKind, StoredTask
from errands.runtime.journal import Journal, status_draft, status_update

#: What may wait to become durable before the worker has to wait as well.
WINDOW_EVENTS = 1000
WINDOW_BYTES = 1024 * 1024
#: The tail of the log that is folded into the snapshot at the latest; from then on, when it has doubled.
FOLD_BYTES = 1024 * 1024


#: An event as it is stored, and as it is folded.
Emitted = tuple[Draft, StreamResponse]


class Turn:
    def __init__(self, journal: Journal, stored: StoredTask) -> None:
        self._journal = journal
        self.task_id = stored.task.id
        self.context_id = stored.task.context_id or ""
        self._scope = stored.scope
        self._fence = stored.head.attempt
        #: A lifecycle method was called.
        self.ended = False
        #: What it wrote is durable.
        self.settled = False
        #: The task goes on with the next message that was waiting.
        self.continues = False
        #: The task has ended with the turn.
        self.ends_task = False
        self._view(stored)
        self._pending: list[Emitted] = []
        self._pending_bytes = 0
        self._tail_bytes = 0
        self._folded_bytes = 0
        self._flusher: asyncio.Task[None] | None = None
        self._writing = False
        self._failure: Exception | None = None

    def _view(self, stored: StoredTask) -> None:
        self._task = stored.task
        self._version = stored.version
        self._unread = stored.head.unread
        #: Durable, and not yet in `_task`.
        self._updates: list[StreamResponse] = []
        #: Somebody else wrote in between: `_task` is not the whole truth.
        self._stale = False

    def emit(self, kind: EventKind, update: StreamResponse) -> bool:
        """Puts an event into the window; true when the window is full and the caller should `catch_up`."""
        if self.ended:
            raise TurnError("The turn has ended; nothing can be emitted any more")
        if self._failure is not None:
            raise self._failure
        draft = Draft(kind, encode(update))
        self._pending.append((draft, update))
        self._pending_bytes += len(draft.data)
        if self._flusher is None:
            self._flusher = asyncio.get_running_loop().create_task(self._flush())
        return len(self._pending) >= WINDOW_EVENTS or self._pending_bytes >= WINDOW_BYTES

    async def catch_up(self) -> None:
        """Waits until everything emitted so far is durable."""
        if self._flusher is not None:
            await asyncio.wait([self._flusher])
        if self._failure is not None:
            raise self._failure

    async def _flush(self) -> None:
        try:
            while self._pending:
                await self._write_pending()
        except Exception as error:
            self._failure = error
        finally:
            self._flusher = None

    async def _write_pending(self) -> None:
        pending, self._pending = self._pending, []
        self._tail_bytes += self._pending_bytes
        self._pending_bytes = 0
        self._writing = True
        try:
            await self._write(pending)
        finally:
            self._writing = False

    async def _write(self, pending: list[Emitted]) -> None:
        drafts = [draft for draft, _ in pending]
        updates = [update for _, update in pending]
        tells = any(u.status_update is not None and u.status_update.status.message is not None for u in updates)
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
            state=WORKING if tells else None,
            fold=fold,
        )
        try:
            version = await self._journal.commit(change)
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
        self._stale = self._stale or version != self._version + len(drafts)
        self._version = version

    async def _refresh(self) -> None:
        self._view(await self._journal.engine.load(self.task_id, self._scope))

    async def end(
        self,
        state: TaskState,
        *,
        message: Message | None = None,
        artifacts: Sequence[TaskArtifactUpdateEvent] = (),
        direct: bool = False,
    ) -> None:
        """Ends the turn in `state`; returns when everything is durable. The first call wins.

        A call that fails has not ended the turn: what was emitted waits on, and another way may be tried.
        """
        if self.ended:
            raise TurnError(
                "The turn has already ended: exactly one of complete, complete_json, respond, reply_directly, "
                "fail, reject, request_input and request_auth may be called"
            )
        self.ended = True
        try:
            if self._flusher is not None:
                await self._settle_flusher(self._flusher)
            if self._failure is not None:
                raise self._failure
            events = list(self._pending)
            for artifact in artifacts:
                update = StreamResponse(artifact_update=artifact)
                events.append((Draft("artifact", encode(update)), update))
            while not await self._close(state, message, events, direct):
                await self._refresh()
        except Exception:
            self.ended = False
            raise
        self._pending = []
        self.settled = True
        self.ends_task = state in TERMINAL_STATES and not self.continues

    async def _settle_flusher(self, flusher: asyncio.Task[None]) -> None:
        if self._writing:
            await asyncio.wait([flusher])
        else:
            # Not begun: what it would write goes into the last commit.
            flusher.cancel()
            self._flusher = None

    async def _close(self, state: TaskState, message: Message | None, events: list[Emitted], direct: bool) -> bool:
        """Writes the last events of the turn; false when somebody else has written meanwhile."""
        if self._stale:
            return False
        now = self._journal.now()
        self.continues = self._unread > 1 and (state is COMPLETED or state in PAUSED_STATES)
        if self.continues:
            closing = self._carry_on(state, message, now)
            state = WORKING
        else:
            update = status_update(self.task_id, self.context_id, state, now, message)
            closing = [(status_draft(update), update)]
        events = events + closing
        change = Change(
            task_id=self.task_id,
            scope=self._scope,
            events=[draft for draft, _ in events],
            expected=self._version,
            fence=self._fence,
            at=now,
            state=state,
            fold=lifecycle.fold_updates(self._task, self._updates + [update for _, update in events]),
            work=KEEP if self.continues else IDLE,
            unread=-1,
            direct=direct,
        )
        try:
            await self._journal.commit(change, [u.status_update.status for _, u in closing if u.status_update])
        except ConcurrencyError:
            return False
        return True

    def _carry_on(self, state: TaskState, message: Message | None, now: int) -> list[Emitted]:
        """Another message is waiting: what was said joins the history, and the task stays at work."""
        if state in PAUSED_STATES:
            steps = [
                status_update(self.task_id, self.context_id, state, now, message),
                status_update(self.task_id, self.context_id, SUBMITTED, now),
                status_update(self.task_id, self.context_id, WORKING, now),
            ]
            return [(status_draft(step), step) for step in steps]
        step = status_update(self.task_id, self.context_id, WORKING, now)
        closing = [(status_draft(step), step)]
        if message is not None:
            said = StreamResponse(message=message)
            closing.insert(0, (Draft("message", encode(said)), said))
        return closing

    async def reopen(self) -> bool:
        """After an interrupted `end`: whether the turn still has to be ended, by looking at the log."""
        stored = await self._journal.engine.load(self.task_id, self._scope)
        if stored.head.attempt != self._fence or not stored.head.worker:
            return False
        self._view(stored)
        self._pending = []  # went with the interrupted commit
        self.ended = False
        self._failure = None
        return True

    async def give_back(self) -> None:
        """Keeps what was emitted and puts the task back into the queue, for another process or another time."""
        self.ended = True
        if self._flusher is not None:
            await self._settle_flusher(self._flusher)
        drafts = [draft for draft, _ in self._pending]
        self._pending = []
        now = self._journal.now()
        await self._journal.commit(
            Change(
                task_id=self.task_id,
                scope=self._scope,
                events=drafts,
                fence=self._fence,
                at=now,
                work=READY,
                due_at=now,
            )
        )
