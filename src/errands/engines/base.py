"""The engine port: everything the runtime asks of a store, and exactly what it may rely on.

An engine has three facets, `Storage`, `Broker` and `EventBus`, over one set of logs. They are one object because
a change to a task, its place in the queue and what its subscribers see are one transaction; keeping them in
separate systems is how tasks get lost.

Engines filter, lock and write. What a change means is decided in `errands.lifecycle`: an engine calls `accept`
under its own lock and `advance` for the new head, and adds no rule of its own.

All times are milliseconds of the engine's injected clock. All errors leave everything unchanged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from errands.clock import Clock, system_clock
from errands.model.core import TaskState
from errands.model.log import (
    AskingQuery,
    Change,
    Event,
    Lease,
    LeaseSignal,
    ListPage,
    ListQuery,
    LogSlice,
    RunningTask,
    Scope,
    StoredTask,
)

# Inside engines, `list` is a method.
Ids = list[str]
Events = list[Event]
Running = list[RunningTask]
Tasks = list[StoredTask]
Abandoned = list[tuple[str, Scope]]


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long ended tasks are kept. Live tasks are never touched."""

    #: Seconds after its last change that an ended task is deleted with all that belongs to it: its log, artifacts,
    #: records and receipts. None keeps it for ever.
    ended_after: float | None = None
    #: The same for tasks that ended in one state; None: as `ended_after` says.
    completed_after: float | None = None
    failed_after: float | None = None
    canceled_after: float | None = None
    rejected_after: float | None = None
    #: Ended tasks kept at most, newest first; None is no bound.
    ended_at_most: int | None = None
    #: Events kept for replay per task; older ones live on in the snapshot only. None keeps all. Records are not cut.
    events_per_task: int | None = None
    #: Seconds after its last change that what an agent remembers of a conversation is deleted, unless the conversation
    #: has a live task; None: as `ended_after` says.
    contexts_after: float | None = None

    def contexts_before(self, now: int) -> int | None:
        """Return the time since which contexts must have changed to be kept; None keeps them for ever."""
        age = self.ended_after if self.contexts_after is None else self.contexts_after
        return None if age is None else now - int(age * 1000)

    def moments(self, now: int) -> dict[TaskState, int]:
        """For each state in which a task is not kept for ever: those that have not changed since then are deleted."""
        wishes = {
            TaskState.COMPLETED: self.completed_after,
            TaskState.FAILED: self.failed_after,
            TaskState.CANCELED: self.canceled_after,
            TaskState.REJECTED: self.rejected_after,
        }
        ages = {state: self.ended_after if wish is None else wish for state, wish in wishes.items()}
        return {state: now - int(age * 1000) for state, age in ages.items() if age is not None}


class Storage(ABC):
    """Tasks, their logs, and what agents remember about a conversation."""

    @abstractmethod
    async def commit(self, change: Change) -> int:
        """Writes one change and returns the task's new version: the only way anything about a task changes.

        Atomic: the events, the snapshot, the head and the queue entry are written together or not at all.
        Durable first, visible second: when this returns the change is durable, and only then do subscribers
        see its events. Concurrent commits may share one transaction; each is accepted or refused for itself.
        Commits to one task take effect in the order they were called.

        The events get the versions after the current one, without a gap. A change without events only moves
        the task in the queue and leaves the version as it is.

        Raises `ConcurrencyError` (version or state is not the expected one, or the task does not exist),
        `LeaseLostError` (the fence), `TaskTerminalStateError` (the terminal guard),
        `IllegalTransitionError`, `DuplicateMessageError` (the receipt is known in this scope; it is checked
        before everything else, so a repeated message is recognised whatever became of its task), and
        `StorageError`.
        """

    @abstractmethod
    async def load(self, task_id: str, scope: Scope) -> StoredTask:
        """The task as of its newest version: the snapshot with the tail of the log folded in.

        One whose stored data cannot be read has failed, here and in listings, and `StoredTask.damage` says why.
        Raises `TaskNotFoundError` when there is no such task in this scope.
        """

    @abstractmethod
    async def scope_of(self, task_id: str) -> Scope:
        """Whose task it is: for operators, who know only its id. Raises `TaskNotFoundError`."""

    @abstractmethod
    async def list(self, query: ListQuery) -> ListPage:
        """One page of the scope's tasks, the newest status first, ties broken by id.

        It has `query.page_size` tasks at most, and fewer when their stored content is more than `query.page_bytes`, but
        never none because of it; what is left out is not read, and is on the next page.
        Every task that matched when the first page was asked for appears on some page, even when it changed
        in between: after the last page in order come those that changed since the first. A task may thus
        appear twice, the second time newer. A token stays good when its task is deleted or changed. Tasks
        created after the first page do not appear. `total_size` counts all matches at the time of the call, or, with a
        filter by context or time, at that of the first page.
        Raises `InvalidParamsError` for a token that is not one of ours.
        """

    @abstractmethod
    def every_task(self) -> AsyncIterator[StoredTask]:
        """Iterates over all tasks of the store, whosever they are, in no particular order: for operators.

        Tasks that are created or deleted meanwhile may be missing.
        """

    @abstractmethod
    async def asking(self, query: AskingQuery) -> Tasks:
        """The tasks whose `Head.asks` names somebody, in every scope that the query allows, without their artifacts.

        The longest waiting first, ties broken by id, `query.limit` at most. Users are compared as they are written.
        What it costs follows from how many tasks wait, not from how many there are. Damaged tasks are left out.
        """

    @abstractmethod
    async def abandoned(self, agent: str, paused_by: int, created_by: int, limit: int) -> Abandoned:
        """Ids and scopes of an agent's paused tasks that no worker holds and that have waited too long.

        These are the tasks that paused at `paused_by` or before, and those that were created at `created_by` or
        before; a negative time matches none. At most `limit`, in no particular order.
        """

    @abstractmethod
    async def delete(self, task_id: str, scope: Scope) -> None:
        """Removes an ended task with its log and receipts: for everybody from one moment to the next.

        What is left of a very long log may be removed later, by `sweep`; nobody sees it any more.
        Raises `TaskNotFoundError`, and `ConcurrencyError` while the task is live.
        """

    @abstractmethod
    async def load_context(self, scope: Scope, context_id: str) -> bytes | None:
        """Return what was last kept for this conversation in this scope (`Change.context`), or None.

        Of several tasks in a conversation the last one to write wins.
        """

    @abstractmethod
    async def sweep(self, every: float = 0.0) -> int:
        """Applies the retention policy once, to tasks, events and contexts; returns how many tasks were deleted.

        Receipts are deleted as well, once their window has passed: a receipt expires as long after its change as
        `Change.receipt_since` was before it.

        Nothing is done when somebody, in this process or another, began to less than `every` seconds ago: replicas
        that all call it every so often do the work of one. A change that comes in between is never held up for long.
        """


class Broker(ABC):
    """Which task is to be worked on, and by whom."""

    @abstractmethod
    async def claim(self, worker: str, agents: Sequence[str], limit: int, until: int) -> list[StoredTask]:
        """Leases up to `limit` due tasks of these agents to `worker` until `until`, longest due first.

        Due is a task that is ready, and one whose lease has run out without being extended: a missed heartbeat,
        never age, is what makes a running task due again. Claiming raises the attempt number, which is the
        fence: from then on the former holder's writes are refused. No task is ever given to two claimers.
        A task whose stored data cannot be read is not given out: it ends as failed, see `set_aside`.
        """

    @abstractmethod
    async def set_aside(self, stored: StoredTask, worker: str = "") -> None:
        """Ends a task that cannot go on because of what is stored of it: it fails, and leaves the queue.

        What is stored stays as it is; a status that says "failed" is added to the log. Nothing is done when the task
        has ended, when another worker than `worker` holds it, or when it was leased since it was loaded.
        """

    @abstractmethod
    async def extend(self, worker: str, leases: Sequence[Lease], until: int) -> list[LeaseSignal]:
        """Extends these leases in one statement; the heartbeat.

        Returns a signal for each lease that is lost (taken over, ended or deleted) or whose task is wanted
        canceled; a lease without a signal is extended and fine. A lease that ran out but was not taken over
        is extended too.
        """

    @abstractmethod
    async def wanted_canceled(self, worker: str) -> list[str]:
        """The tasks that `worker` holds and that somebody wants canceled."""

    @abstractmethod
    async def running(self) -> list[RunningTask]:
        """The tasks of every agent that are leased at this moment, in all processes, the oldest task first.

        A lease that has run out is not among them, though its task may not have been claimed again yet.
        """

    @abstractmethod
    async def queue_age(self, agents: Sequence[str]) -> int | None:
        """Milliseconds for which the longest due task of these agents has been due; None when none is.

        It takes no longer when the queue is longer.
        """

    @abstractmethod
    def on_work(self, wake: Callable[[], None]) -> None:
        """Calls `wake` on the event loop whenever a task may have become due or a cancel may be wanted,
        through this process or another. It may be called too often, never too rarely for longer than the
        engine's poll interval."""


class Subscription(ABC):
    """A reader's place in one task's log. Iterate over it for batches of events; close it when done."""

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[list[Event]]: ...

    @abstractmethod
    async def next(self, timeout: float | None = None) -> list[Event] | None:
        """The next events in order, each exactly once; an empty list when `timeout` seconds passed without
        any; None after `close`."""

    @abstractmethod
    def close(self) -> None:
        """Ends the subscription; a pending `next` returns None."""

    @property
    @abstractmethod
    def gap(self) -> bool:
        """Whether events that were asked for are no longer kept, or cannot be read. The reader must start from a
        snapshot."""


class Expectation(ABC):
    """A wish to know when a task is in one of some states, registered before the change that leads there.

    A context manager; leaving it forgets the wish.
    """

    @abstractmethod
    def wait(self, after: int, timeout: float | None) -> Coroutine[Any, Any, StoredTask | None]:
        """The task once it is in one of the states at a version above `after`; None when `timeout` passed or
        `EventBus.disconnect` was called."""

    @abstractmethod
    def close(self) -> None:
        """Forgets the wish; leaving the block does it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EventBus(ABC):
    """The logs as readers see them."""

    @abstractmethod
    async def read(self, task_id: str, scope: Scope, after: int, limit: int = 1000) -> LogSlice:
        """Up to `limit` events after version `after`, in order, and none after those that make up 256 KiB.

        Raises `TaskNotFoundError`.
        """

    @abstractmethod
    async def records(self, task_id: str, scope: Scope) -> list[Event]:
        """Every event of kind `record`, in order. They are kept as long as the task, whatever else is trimmed.

        Raises `TaskNotFoundError`.
        """

    @abstractmethod
    def subscribe(self, task_id: str, scope: Scope, after: int, *, caught_up: bool = False) -> Subscription:
        """Every event after version `after`: those in the log, then each new one once it is durable.

        `caught_up` says that the caller has just written version `after` itself, so the log need not be read.

        A writer never waits for a subscriber. One that falls behind its bounded buffer reads the log again.
        The caller has made sure that the task is in this scope.
        """

    @abstractmethod
    def tell(self, task_id: str, data: bytes) -> None:
        """Shows those who follow the task in this process a status that is not stored, as an event of version 0.

        One that has not come to it yet is shown the last of several.
        """

    @abstractmethod
    def expect(self, task_id: str, scope: Scope, states: frozenset[TaskState]) -> Expectation:
        """Registers the wish at once, so that no change between now and the wait is missed."""

    async def wait_for_state(
        self, task_id: str, scope: Scope, states: frozenset[TaskState], timeout: float | None
    ) -> StoredTask:
        """The task once it is in one of `states`, or as it stands after `timeout` seconds.

        Raises `TaskNotFoundError`.
        """
        with self.expect(task_id, scope, states) as expectation:
            stored = await self.load(task_id, scope)
            if stored.state in states:
                return stored
            return await expectation.wait(stored.version, timeout) or await self.load(task_id, scope)

    @abstractmethod
    async def load(self, task_id: str, scope: Scope) -> StoredTask:
        """See `Storage.load`."""

    @abstractmethod
    def disconnect(self) -> None:
        """Ends every wait of this process, and every subscription once its reader has what was published: a server
        that stops answers what it has."""


class Schema(ABC):
    """The tables of a store, for whoever looks after them; used without opening the engine."""

    @abstractmethod
    async def upgrade(self) -> tuple[int, int]:
        """Brings the tables up to this release, makes them when there are none; the version before and after.

        Raises `StorageError`; then whoever uses the tables goes on, and another call goes on with the upgrade.
        """

    @abstractmethod
    async def check(self) -> int:
        """The version of the tables. Raises `StorageError` when this release cannot use them. Changes nothing."""

    @abstractmethod
    async def sql(self) -> str:
        """What `upgrade` would run, for somebody who runs it in another way; "" when nothing is to be done."""


class Engine(Storage, Broker, EventBus):
    """One store with all three facets. An async context manager: entering opens it, leaving closes it."""

    #: What the engine is called in messages and metrics.
    name: str = "engine"
    #: Whether tasks survive the process.
    durable: bool = True
    #: Whether several processes can use the same store at the same time.
    shared: bool = True

    def __init__(self, *, clock: Clock = system_clock, retention: Retention | None = None) -> None:
        self.clock = clock
        self.retention = retention or Retention()

    @abstractmethod
    async def open(self) -> None:
        """Makes the engine ready. Raises `StorageError` with what to do when the store cannot be used."""

    @abstractmethod
    async def close(self) -> None:
        """Ends subscriptions and waits, writes what is queued and lets go of everything.

        In this order: whoever still follows a task is ended, and not refused because there is nothing left to read.
        """

    @abstractmethod
    async def check(self) -> None:
        """Raises `StorageError` when the store cannot be reached right now: what readiness asks."""

    @property
    def schema(self) -> Schema | None:
        """What looks after the store's tables, or None when it has none."""
        return None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
