"""`Turn`: one run of a handler on one message, and the only way it writes to the log.

Chunks are pipelined: `emit` puts them into a window and returns, and one commit at a time writes whatever is in the
window. Ending the turn waits for all of it. So the order of the calls is the order of the log, a slow disk makes
batches larger instead of the worker slower, and at most one commit per task is under way, which is why the turn
always knows the version it writes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from errands import errors, lifecycle
from errands.model import core
from errands.model.base import encode
from errands.model.log import IDLE, KEEP, PLAIN, READY, Change, Draft, EventKind, RequestOptions, StoredTask
from errands.model.marks import is_review
from errands.runtime.blobs import Blobs
from errands.runtime.dependencies import DependencyContainer
from errands.runtime.expiry import Expired
from errands.runtime.journal import Batch, Journal, new_id, status_update, unwritable
from errands.runtime.oversight import Admitted, Overseer, Oversight

#: What may wait to become durable before the worker has to wait as well.
WINDOW_EVENTS = 1000
WINDOW_BYTES = 1024 * 1024
#: How long the tail of the log becomes before it is folded into the snapshot; from then on, when it has doubled.
FOLD_BYTES = 1024 * 1024

#: Why a running turn was stopped from outside: canceled by force, taken over by another worker, or the server stops.
Stop = Literal["force", "lost", "drain"]

T = TypeVar("T")

ALREADY_ENDED = (
    "The turn has already ended: exactly one of complete, complete_json, respond, reply_directly, fail, reject, "
    "request_input and request_auth may be called, and nothing can be written after it"
)


class _CancelRequestedError(Exception):
    """A turn cannot rest in a pause, because then nothing would act on the cancel."""


class Ending(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """How a turn is to end."""

    state: core.TaskState
    message: core.Message | None = None
    artifacts: Sequence[core.TaskArtifactUpdateEvent] = ()
    metadata: dict[str, Any] | None = None
    direct: bool = False
    #: The state was emitted already.
    announced: bool = False
    #: The one user whose answer the turn, only suspended, waits for.
    asks: str = ""


class Turn:
    """What a handler was given, whether it is to stop, and what it writes.

    The runtime works with this object; handlers see the `TaskContext` around it.
    """

    # There are too many attributes for a dictionary that shares its keys: without slots a turn would take 2 kB more.
    __slots__ = (
        *("_artifacts", "_cancel_requested", "_failure", "_fence", "_flusher", "_folded_bytes", "_has_statuses"),
        *("_is_forced", "_on_cancel", "_oversight", "_pending", "_scope", "_stale", "_state", "_tail_bytes", "_task"),
        *("_underway", "_unread", "_updates", "_version", "_writing", "context_id", "continues", "deps", "ended"),
        *("ends_task", "expired", "is_cancelled", "journal", "message", "options", "outcome", "overseer", "position"),
        *("problem", "request_context", "settled", "stopped", "stored", "task_id"),
    )

    def __init__(
        self,
        journal: Journal,
        stored: StoredTask,
        *,
        options: RequestOptions = PLAIN,
        request_context: dict[str, Any] | None = None,
        deps: DependencyContainer | None = None,
        oversight: Oversight | None = None,
    ) -> None:
        self.journal = journal
        self.task_id = stored.task.id
        self.context_id = stored.task.context_id or ""
        #: The task when the turn began, as the policy lets the agent see it.
        self.stored = stored
        #: What the sender asked for beside the message.
        self.options = options
        #: What middleware kept for this request: never stored, empty after a restart.
        self.request_context = request_context if request_context is not None else {}
        self.deps = deps
        #: Where in the history the message of this turn is.
        self.position = current_position(stored)
        self.message = (stored.task.history or [])[self.position]

        #: Whether the task is to be canceled.
        self.is_cancelled = False
        self._on_cancel: Callable[[], object] | None = None
        self.stopped: Stop | None = None
        #: How the task ends instead of canceled, if it was not answered in time and its worker only releases it.
        self.expired: Expired | None = None
        #: Whether a lifecycle method was called.
        self.ended = False
        #: Whether what it wrote is durable.
        self.settled = False
        #: The state in which the turn ended.
        self.outcome = core.UNSPECIFIED
        #: The kind of the unexpected error that ended it, if one did.
        self.problem = ""
        #: Whether the task goes on with the next message that was waiting.
        self.continues = False
        #: Whether the task has ended with the turn.
        self.ends_task = False
        #: Whether the task is canceled by force, whatever the handler still does.
        self._is_forced = False

        self._scope = stored.scope
        self._fence = stored.head.attempt
        #: Writes the window: a task, or a handle while the task is only to be made in the loop's next iteration. Most
        #: turns end before that, and then their last commit writes the window.
        self._flusher: asyncio.Task[None] | asyncio.Handle | None = None
        #: Emitted, and not yet on its way.
        self._pending: Batch | None = None
        #: Being written.
        self._underway: Sequence[core.StreamResponse] = ()
        self._writing = False
        self._failure: Exception | None = None
        #: Whether other events than artifacts were emitted.
        self._has_statuses = False
        #: Bytes stored since the snapshot, and in it.
        self._tail_bytes = 0
        self._folded_bytes = 0
        #: The ids of artifacts that were begun.
        self._artifacts: set[str] = set()
        self._view(stored)

        self._oversight = oversight
        #: Made by `overseen`. Without one, everything is shown as it is emitted.
        self.overseer: Overseer | None = None

    def _view(self, stored: StoredTask) -> None:
        """Take the task as it was read, with everything that was written so far."""
        self._task = stored.task
        if stored.task.artifacts:
            self._artifacts.update(artifact.artifact_id for artifact in stored.task.artifacts)
        self._state = stored.head.state
        self._version = stored.head.version
        self._unread = stored.head.unread
        self._cancel_requested = stored.head.cancel_requested
        #: Durable, and not yet in `_task`.
        self._updates: list[core.StreamResponse] = []
        #: Whether another writer wrote in between, so that `_task` is not complete.
        self._stale = False

    # What the handler was given

    @property
    def attempt(self) -> int:
        """Which try of this turn it is, from 1; more than 1 after a crash or a restart."""
        return self.stored.head.attempt - self.stored.head.attempt_base

    @property
    def tries(self) -> int:
        """The same without those that a stopping process gave back."""
        return self.attempt - self.stored.head.given_back

    def admit(self, admitted: Admitted) -> None:
        """Take the message and the options as the policy has left them."""
        self.options = admitted.options
        self.stored = msgspec.structs.replace(self.stored, task=admitted.task)
        self.message = (admitted.task.history or [])[self.position]

    async def fetch_files(self, blobs: Blobs) -> None:
        """Put the bytes of files that are blobs into the messages that the worker sees, as if they had come inline."""
        task = self.stored.task
        history = await blobs.fetch(task.history or [], self._scope, first=self.position)
        if history is task.history:
            return
        self.stored = msgspec.structs.replace(self.stored, task=msgspec.structs.replace(task, history=history))
        self.message = history[self.position]

    def overseen(self) -> Overseer:
        """Return the overseer of the turn. With a policy it is made when the turn begins, else for the first record."""
        if self.overseer is None:
            if self._oversight is None:
                raise errors.ConfigurationError(
                    "a context without a server keeps no records; test with errands.testing"
                )
            self.overseer = self._oversight.oversee(self)
        return self.overseer

    # Cancels

    def request_cancel(self) -> None:
        """Set `is_cancelled`, and interrupt what `until_cancelled` runs."""
        if not self.is_cancelled:
            self.is_cancelled = True
            if self._on_cancel is not None:
                self._on_cancel()

    async def until_cancelled(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Do the work in an asyncio task of its own, so that a cancel interrupts it and nothing else of the turn.

        Return its result, or None if it was interrupted.
        """
        working = asyncio.ensure_future(work)
        self._on_cancel = working.cancel
        try:
            return await working
        except asyncio.CancelledError:
            current = asyncio.current_task()
            is_stopped = current is not None and current.cancelling() > 0
            if not self.is_cancelled or is_stopped:
                raise
            return None
        finally:
            self._on_cancel = None

    # Writing

    @property
    def task(self) -> core.Task:
        """The task as this turn knows it, with what was emitted and is not yet durable."""
        unwritten = [*self._underway, *([] if self._pending is None else self._pending.updates)]
        return lifecycle.fold_updates(self._task, [*self._updates, *unwritten])

    def emit(self, kind: EventKind, update: core.StreamResponse, *, approved: bool = False) -> bool:
        """Put an event into the window, and return whether the window is full and the caller should `catch_up`.

        The overseer may hold the event back, unless it has `approved` it. Raises `TypeError` or `ValueError` for an
        event that cannot be encoded, and keeps nothing of it.
        """
        try:
            data = encode(update)
        except UnicodeEncodeError as error:
            raise unwritable(error) from None
        if self.overseer is not None and not approved:
            self.check_open()
            if self.overseer.hold_back(kind, update):
                return False
        piece = update.artifact_update
        begins = piece is not None and piece.artifact.artifact_id not in self._artifacts
        if begins and piece is not None and piece.append:
            # The first piece of an artifact begins it, whatever its author says: clients drop other pieces.
            update = core.StreamResponse(artifact_update=msgspec.structs.replace(piece, append=False))
            data = encode(update)
        pending = self._pending
        if pending is None or self.ended or self._failure is not None:
            pending = self._window()
        if piece is None:
            self._has_statuses = True
        elif begins:
            self._artifacts.add(piece.artifact.artifact_id)
        pending.drafts.append(Draft(kind, data))
        pending.updates.append(update)
        pending.size += len(data)
        return len(pending.drafts) >= WINDOW_EVENTS or pending.size >= WINDOW_BYTES

    def tell(self, update: core.StreamResponse) -> None:
        """Show an event to readers in this process, without storing it."""
        self.check_open()
        self.journal.engine.tell(self.task_id, encode(update))

    def note(self, record: bytes) -> None:
        """Put a record into the window; it becomes durable with what follows, or by `catch_up`."""
        self._window().note(record)

    @property
    def refusal(self) -> Exception | None:
        """The reason why the handler has lost its task, for example to another process; None while it has not."""
        if self._is_forced:
            return errors.TaskTerminalStateError(f"Task {self.task_id} was canceled by force", taskId=self.task_id)
        return self._failure

    def check_open(self) -> None:
        """Raise why nothing can be written any more, if that is so."""
        if (refusal := self.refusal) is not None:
            raise refusal
        if self.ended:
            raise errors.TurnError(ALREADY_ENDED)

    async def remember(self, context: bytes) -> None:
        """Keep a value for the task's conversation; durable when this returns."""
        self.check_open()
        await self.journal.commit(
            Change(
                task_id=self.task_id,
                scope=self._scope,
                fence=self._fence,
                at=self.journal.now(),
                context=context,
            )
        )

    def _window(self) -> Batch:
        self.check_open()
        if self._pending is None:
            self._pending = Batch()
        if self._flusher is None:
            self._flusher = asyncio.get_running_loop().call_soon(self._start_flusher)
        return self._pending

    def _start_flusher(self) -> asyncio.Task[None]:
        self._flusher = asyncio.get_running_loop().create_task(self._flush())
        return self._flusher

    async def catch_up(self) -> None:
        """Wait until everything emitted so far is durable."""
        flusher = self._flusher
        if flusher is not None:
            if not isinstance(flusher, asyncio.Task):
                flusher.cancel()
                flusher = self._start_flusher()
            await asyncio.wait([flusher])
        if self._failure is not None:
            raise self._failure

    async def _flush(self) -> None:
        try:
            while (pending := self._pending) is not None:
                self._pending = None
                self._writing, self._underway = True, pending.updates
                try:
                    if self.journal.blobs is not None:
                        await pending.stow(self.journal.blobs, self.task_id, self._scope)
                    self._tail_bytes += pending.size
                    await self._write(pending)
                finally:
                    self._writing, self._underway = False, ()
        except Exception as error:
            self._failure = error
        finally:
            self._flusher = None

    async def _write(self, pending: Batch) -> None:
        drafts, updates = pending.drafts, pending.updates
        state = self._state_after(updates) if self._has_statuses else None
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
            at=self.journal.now(),
            state=state,
            fold=fold,
        )
        try:
            head = await self.journal.commit(change, self._state)
        except errors.ConcurrencyError:
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
        self._stale = self._stale or head.version != self._version + len(drafts)
        self._version = head.version

    def _state_after(self, updates: Sequence[core.StreamResponse]) -> core.TaskState | None:
        """Return the state after these events, or None if they change neither the state nor its message."""
        state, new = self._state, None
        for update in updates:
            changed = update.status_update or update.task
            if changed is not None and (changed.status.state is not state or changed.status.message is not None):
                state = new = changed.status.state
        return new

    async def _refresh(self) -> None:
        stored = await self.journal.engine.load(self.task_id, self._scope)
        if stored.damage:
            raise errors.DamagedTaskError(stored.damage)
        self._view(stored)

    def end(
        self,
        state: core.TaskState,
        *,
        message: core.Message | None = None,
        artifacts: Sequence[core.TaskArtifactUpdateEvent] = (),
        metadata: dict[str, Any] | None = None,
        direct: bool = False,
        announced: bool = False,
        asks: str = "",
    ) -> Coroutine[Any, Any, None]:
        """End the turn in `state`; return when everything is durable. The first call wins.

        `announced` says that the state was emitted already. `asks` names the one user whose answer a paused task
        waits for: the turn is then only suspended. It goes on with the same message after that answer, and messages
        that come meanwhile wait for their own turns.

        A call that fails has not ended the turn: what was emitted is kept, and another ending may be tried.
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
        encode(ending)  # raises now for what could not be written later
        return self.overseer.end(ending)

    async def finish(self, ending: Ending) -> None:
        """End the turn without asking the overseer."""
        if self.ended:
            self.check_open()
        if ending.state is core.CANCELED and self.expired is not None:
            for record in self.expired.records:
                self.note(record)
            ending = Ending(state=self.expired.state, message=self.expired.message)
        state = ending.state
        self.ended = True
        try:
            if self._flusher is not None:
                await self._settle_flusher()
            if self._failure is not None:
                raise self._failure
            if self.journal.blobs is not None:
                ending = await self._stow(self.journal.blobs, ending)
            now, last = self.journal.now(), None
            if not ending.announced:
                last = status_update(self.task_id, self.context_id, state, now, ending.message, ending.metadata)
            while not await self._close(ending, last, now):
                await self._refresh()
        except Exception:
            self.ended = False
            raise
        self._pending = None
        self.settled, self.outcome = True, state
        self.ends_task = state in core.TERMINAL_STATES and not self.continues

    async def _stow(self, blobs: Blobs, ending: Ending) -> Ending:
        """Move large files of what is left to write to the blob store."""
        if self._pending is not None:
            await self._pending.stow(blobs, self.task_id, self._scope)
        message = ending.message and await blobs.stow(ending.message, self.task_id, self._scope)
        artifacts = [
            msgspec.structs.replace(one, artifact=await blobs.stow(one.artifact, self.task_id, self._scope))
            for one in ending.artifacts
        ]
        return msgspec.structs.replace(ending, message=message, artifacts=artifacts)

    async def cancel_by_force(self) -> None:
        """End the task as canceled; what the handler writes from now on raises `TaskTerminalStateError`."""
        self._is_forced = True
        try:
            await self.end(core.CANCELED)
        except BaseException:
            self._is_forced = False
            raise

    async def rest(self, state: core.TaskState) -> bool:
        """End the turn in the pause that was emitted last, or go on with the next message if one waits.

        Return False if the task is to be canceled: then the turn has not ended yet.
        """
        try:
            await self.end(state, announced=True)
        except _CancelRequestedError:
            return False
        return True

    async def _settle_flusher(self) -> None:
        flusher = self._flusher
        if self._writing and isinstance(flusher, asyncio.Task):
            await asyncio.wait([flusher])
        elif flusher is not None:
            # Not begun: what it would write goes into the last commit.
            flusher.cancel()
            self._flusher = None

    async def _close(self, ending: Ending, last: core.StreamResponse | None, now: int) -> bool:
        """Write the last events of the turn; return False if another writer has written meanwhile.

        `last` is the status that ends the turn, None if it was emitted.
        """
        if self._stale:
            return False
        if last is None and self._cancel_requested:
            raise _CancelRequestedError
        state, asks = ending.state, ending.asks
        events = Batch() if self._pending is None else self._pending.copy()
        for artifact in ending.artifacts:
            events.add("artifact", core.StreamResponse(artifact_update=artifact))
        self.continues = not asks and self._unread > 1 and (state is core.COMPLETED or state in core.PAUSED_STATES)
        if self.continues:
            self._carry_on(state, last, now, events)
            state = core.WORKING
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
            # Without events, only the lease is given up.
            state=state if updates else None,
            fold=lifecycle.fold_updates(self._task, self._updates + updates if self._updates else updates),
            work=KEEP if self.continues else IDLE,
            unread=0 if asks else -1,
            direct=ending.direct,
            asks=asks or None,
        )
        try:
            await self.journal.commit(change, self._state)
        except errors.ConcurrencyError:
            return False
        return True

    def _carry_on(self, state: core.TaskState, last: core.StreamResponse | None, now: int, events: Batch) -> None:
        """Add what keeps the task at work on the next message; what was said joins the history."""
        if state in core.PAUSED_STATES:
            if last is not None:
                events.add("status", last)
            events.add("status", status_update(self.task_id, self.context_id, core.SUBMITTED, now))
        elif last is not None and last.status_update is not None and last.status_update.status.message is not None:
            events.add("message", core.StreamResponse(message=last.status_update.status.message))
        events.add("status", status_update(self.task_id, self.context_id, core.WORKING, now))

    async def reopen(self) -> bool:
        """Read the log after an interrupted `end`, and return whether the turn still has to be ended."""
        stored = await self.journal.engine.load(self.task_id, self._scope)
        if stored.damage or stored.head.attempt != self._fence or not stored.head.worker:
            return False
        self._artifacts.clear()
        self._view(stored)
        self._pending = None  # went with the interrupted commit
        self.ended = self._is_forced = False
        self._failure = None
        return True

    async def give_up(self, reason: str) -> None:
        """End the task as failed in the runtime's own words; nothing that was held back is shown."""
        self.overseer = None
        await self.recover()
        message = self.agent_message([core.Part(text=reason)])
        await self.end(core.CANCELED if self.is_cancelled else core.FAILED, message=message)

    def artifact_update(
        self, artifact: core.Artifact, append: bool = False, last_chunk: bool = False
    ) -> core.TaskArtifactUpdateEvent:
        """Return the event that an artifact, or a piece of one, is there."""
        return core.TaskArtifactUpdateEvent(
            task_id=self.task_id,
            context_id=self.context_id,
            artifact=artifact,
            append=append,
            last_chunk=last_chunk,
        )

    def agent_message(self, parts: list[core.Part], metadata: dict[str, Any] | None = None) -> core.Message:
        """Return a new message of the agent in this task."""
        return core.Message(
            message_id=new_id(),
            role=core.Role.AGENT,
            parts=parts,
            task_id=self.task_id,
            context_id=self.context_id or None,
            metadata=metadata,
        )

    async def recover(self) -> None:
        """Drop a window that could not be written because of a bug, so that the turn can still be ended."""
        if self._failure is None or isinstance(
            self._failure, errors.LeaseLostError | errors.TaskTerminalStateError | errors.StorageError
        ):
            return
        await self.reopen()

    async def give_back(self) -> None:
        """Keep what was emitted, and put the task back into the queue for another process or the next start."""
        self.ended = True
        if self._flusher is not None:
            await self._settle_flusher()
        pending, self._pending = self._pending or Batch(), None
        if self.journal.blobs is not None:
            await pending.stow(self.journal.blobs, self.task_id, self._scope)
        drafts = pending.drafts
        state = self._state_after(pending.updates)
        now = self.journal.now()
        await self.journal.commit(
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
            self._state,
        )


def current_position(stored: StoredTask) -> int:
    """Return where in the history the message of this turn is: the oldest one that no turn has dealt with.

    Raise `DamagedTaskError` if there is none.
    """
    history = stored.task.history or []
    if len(history) == 1:
        return 0
    if stored.head.unread <= 1 and history and history[-1].role is core.Role.USER and not is_review(history[-1]):
        return len(history) - 1
    positions = [i for i, m in enumerate(history) if m.role is not core.Role.AGENT and not is_review(m)]
    unread = max(stored.head.unread, 1)
    if unread > len(positions):
        raise errors.DamagedTaskError(f"{unread} messages wait for a turn, and its history has {len(positions)}")
    return positions[-unread]
