"""The engine port: everything the runtime asks of a store, and exactly what it may rely on.

An engine has four facets, `Storage`, `Broker`, `EventBus` and `Outbox`, over one set of logs. They are one object
because a change to a task, its place in the queue, what its subscribers see and which webhooks are due are one
transaction; keeping them in separate systems is how tasks get lost.

Engines look up, store and notify. What a change means is decided by `errands.lifecycle.judge`, which
`errands.engines.commit` calls; an engine adds no rule of its own.

`AccessLog` and `Processes` keep what belongs to no task beside them.

All times are milliseconds of the engine's injected clock. All errors leave everything unchanged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from errands.clock import Clock, system_clock
from errands.engines.subscriptions import Expectation, Subscription
from errands.errors import ErrandsError
from errands.model import log
from errands.model.core import TaskState

if TYPE_CHECKING:
    from errands.engines.commit import CommitCounts

# Inside engines, `list` is a method.
Ids = list[str]
Events = list[log.Event]
Running = list[log.RunningTask]
Tasks = list[log.StoredTask]
Abandoned = list[tuple[str, log.Scope]]
Entries = list[log.OutboxEntry]
Reports = list[log.ProcessReport]
Configs = list[log.PushConfig]
Flags = list[bool]


#: Entries of the outbox that `Outbox.outbox_backlog` looks at.
MOST_LOOKED_AT = 10_000


class LargeReadError(ErrandsError):
    """What was asked for has `size` bytes, which is more than the caller wants to read at once."""

    def __init__(self, size: int) -> None:
        super().__init__(f"{size} bytes")
        self.size = size


#: Seconds; a longer age means for ever.
_LONGEST_AGE = 1e12


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long ended tasks are kept. Live tasks are never deleted."""

    #: Seconds after its last change that an ended task is deleted with everything that belongs to it: its log,
    #: artifacts, records and receipts. None and infinity keep it for ever.
    ended_after: float | None = None
    #: The same for tasks that ended in one state; None means `ended_after`, infinity keeps them for ever.
    completed_after: float | None = None
    failed_after: float | None = None
    canceled_after: float | None = None
    rejected_after: float | None = None
    #: The number of ended tasks that are kept, the newest ones; None keeps all.
    ended_at_most: int | None = None
    #: Events kept for replay per task; older ones remain in the snapshot only. None keeps all. Records are always kept.
    events_per_task: int | None = None
    #: Seconds after its last change that what an agent remembers of a conversation is deleted, unless the conversation
    #: has a live task; None means `ended_after`.
    contexts_after: float | None = None
    #: Seconds that entries of the access log are kept; infinity keeps them for ever.
    accesses_after: float = 30 * 86_400.0

    def accesses_before(self, now: int) -> int | None:
        """Return the time since which entries of the access log are kept; None keeps all."""
        return _kept_since(self.accesses_after, now)

    def contexts_before(self, now: int) -> int | None:
        """Return the time since which contexts must have changed to be kept; None keeps them for ever."""
        return _kept_since(self.ended_after if self.contexts_after is None else self.contexts_after, now)

    def moments(self, now: int) -> dict[TaskState, int]:
        """Return, by state, the time since which ended tasks must have changed to be kept."""
        ages = {
            TaskState.COMPLETED: self.completed_after,
            TaskState.FAILED: self.failed_after,
            TaskState.CANCELED: self.canceled_after,
            TaskState.REJECTED: self.rejected_after,
        }
        moments = {state: _kept_since(self.ended_after if age is None else age, now) for state, age in ages.items()}
        return {state: moment for state, moment in moments.items() if moment is not None}


def _kept_since(age: float | None, now: int) -> int | None:
    """Return the time since which things of at most this age have changed; None keeps them for ever.

    An age of more than 30,000 years, which no store can count, does the same.
    """
    return None if age is None or age > _LONGEST_AGE else now - int(age * 1000)


#: What a durable engine keeps by default.
DURABLE_RETENTION = Retention(ended_after=30 * 86_400.0)


class Storage(ABC):
    """Tasks, their logs, and what agents remember about a conversation."""

    @abstractmethod
    async def commit(self, change: log.Change) -> log.Head:
        """Write one change and return the head after it: the only way in which anything about a task changes.

        Atomic: the events, the snapshot, the head, the queue entry and the outbox are written together or not at all.
        Durable first, visible second: when this returns the change is durable, and only then do subscribers see its
        events. Concurrent commits may share one transaction; each is accepted or refused on its own. Commits to one
        task take effect in the order in which they were called.

        The events get the versions after the current one, without a gap, and the time of the change. A change without
        events only moves the task in the queue and leaves the version as it is.

        Raises `ConcurrencyError` (version or state is not the expected one, or the task does not exist),
        `LeaseLostError` (the fence), `TaskTerminalStateError` (the terminal guard),
        `IllegalTransitionError`, `TooManyPushConfigsError`, `DuplicateMessageError` (the receipt is known in this
        scope; it is checked before everything else, so a repeated message is recognised whatever happened to its task),
        and `StorageError`.
        """

    @abstractmethod
    async def load(self, task_id: str, scope: log.Scope | None) -> log.StoredTask:
        """Return the task as of its newest version: the snapshot with the tail of the log folded in.

        A task whose stored data cannot be read has failed, here and in listings, and `StoredTask.damage` says why.
        Without a scope the task is found in any; only operators, who know nothing but an id, may ask like that.
        Raises `TaskNotFoundError` when there is no such task in this scope.
        """

    async def load_small(self, task_id: str, scope: log.Scope, most: int) -> log.StoredTask:
        """Return the same, but raise `LargeReadError`, and read nothing, if more than `most` bytes are stored of it.

        An engine that cannot tell loads the task.
        """
        return await self.load(task_id, scope)

    async def load_head(self, task_id: str, scope: log.Scope | None) -> log.StoredTask:
        """Return the task with its state alone, which its head has: without messages and artifacts.

        The cost does not depend on the size of the task, except in an engine that does not define this.
        Raises `TaskNotFoundError`.
        """
        return await self.load(task_id, scope)

    @abstractmethod
    async def list(self, query: log.ListQuery) -> log.ListPage:
        """Return one page of the tasks of the scope, or with `query.reach` of more owners, the newest status first.

        Ties are broken by id.

        It has `query.page_size` tasks at most, and fewer when their stored content exceeds `query.page_bytes`, but
        always one; what is left out is not read, and is on the next page. With `query.only_small`, `LargeReadError` is
        raised instead of leaving tasks out for their size.
        Every task that matched when the first page was read appears on some page, even when it changed in between:
        after the last page in order come those that changed since the first. A task may thus appear twice, the second
        time newer. A token stays valid when its task is deleted or changed. Tasks created after the first page do not
        appear. `total_size` counts all matches at the time of the call, or, with a filter by context or time or for
        several owners, at that of the first page.
        Raises `InvalidParamsError` for an invalid token.
        """

    @abstractmethod
    def every_task(self) -> AsyncIterator[log.StoredTask]:
        """Iterate over the tasks of all scopes, in no particular order: for operators.

        Tasks that are created or deleted during the iteration may be missing.
        """

    @abstractmethod
    async def asking(self, query: log.AskingQuery) -> Tasks:
        """Return the tasks that wait for one user's answer (`Head.asks`), in any scope, without their artifacts.

        The longest waiting first, ties broken by id, `query.limit` at most. Users are compared as they are written.
        The cost depends on how many tasks wait, not on how many there are. Damaged tasks are left out.
        """

    @abstractmethod
    async def abandoned(
        self, agent: str, paused_by: int, created_by: int, limit: int, unfinished_by: int = -1
    ) -> Abandoned:
        """Return ids and scopes of an agent's tasks that have waited too long, or have not ended in time.

        These are the paused tasks that no worker holds and that paused at `paused_by` or before, or were created at
        `created_by` or before; and the tasks in the queue, at work or paused that were created at `unfinished_by` or
        before and are not to be canceled already. A negative time matches nothing. At most `limit`, in no particular
        order.
        """

    @abstractmethod
    async def count_live(self, scope: log.Scope, reach: log.Reach = "scope") -> int:
        """Return how many tasks of the scope, or within the reach, have not ended.

        The cost does not depend on how many have, except in Redis with a reach.
        """

    @abstractmethod
    async def stored_bytes(self, scope: log.Scope, reach: log.Reach = "scope") -> int:
        """Return about how many bytes the content of the scope's tasks, or of those within the reach, takes.

        That is their logs and snapshots. The cost grows with what is stored: for callers that ask rarely. Other calls
        do not wait for it.
        """

    @abstractmethod
    async def delete(self, task_id: str, scope: log.Scope) -> None:
        """Delete an ended task with its log and receipts: from one moment to the next it can no longer be read.

        The rest of a very long log may be removed later, by `sweep`, and receipts when they expire.
        Raises `TaskNotFoundError`, and `ConcurrencyError` while the task is live.
        """

    @abstractmethod
    async def load_context(self, scope: log.Scope, context_id: str) -> bytes | None:
        """Return what was last kept for this conversation in this scope (`Change.context`), or None.

        Of several tasks in a conversation the last one to write wins.
        """

    @abstractmethod
    async def sweep(self, every: float = 0.0) -> int:
        """Apply the retention policy once, to tasks, events and contexts; return how many tasks were deleted.

        Receipts are deleted as well, once their window has passed: a receipt expires as long after its change as
        `Change.receipt_since` was before it.

        Nothing is done when this or another process began a sweep less than `every` seconds ago: replicas that all
        call it regularly do the work of one. Changes are never held up for long.
        """


class Broker(ABC):
    """The queue: which task is worked on next, and by which worker."""

    @abstractmethod
    async def claim(self, worker: str, agents: Sequence[str], limit: int, until: int) -> list[log.StoredTask]:
        """Lease up to `limit` due tasks of these agents to `worker` until `until`, the longest due first.

        A task is due when it is ready, and when its lease has expired without being extended: a missed heartbeat,
        never age, makes a running task due again. Claiming raises the attempt number, which is the fence: from then on
        the former holder's writes are refused. No task is ever given to two claimers. A task whose stored data cannot
        be read is not given out: it ends as failed, see `set_aside`.
        """

    @abstractmethod
    async def set_aside(self, stored: log.StoredTask, worker: str = "") -> None:
        """End a task whose stored data cannot be used: it fails, and leaves the queue.

        What is stored stays as it is; a status that says "failed" is added to the log. Nothing is done when the task
        has ended, when another worker than `worker` holds it, or when it was leased since it was loaded.
        """

    @abstractmethod
    async def extend(self, worker: str, leases: Sequence[log.Lease], until: int) -> list[log.LeaseSignal]:
        """Extend these leases in one statement: the heartbeat.

        Returns a signal for each lease that is lost (taken over, ended or deleted) or whose task is to be canceled; a
        lease without a signal was extended. A lease that expired but was not taken over is extended too.
        """

    @abstractmethod
    async def wanted_canceled(self, worker: str) -> list[str]:
        """Return the tasks that `worker` holds and that are to be canceled."""

    @abstractmethod
    async def running(self) -> list[log.RunningTask]:
        """Return the tasks of every agent that are leased at this moment, in all processes, the oldest task first.

        Expired leases are left out, even if the task has not been claimed again yet.
        """

    @abstractmethod
    async def queue_age(self, agents: Sequence[str]) -> int | None:
        """Return the milliseconds for which the longest due task of these agents has been due; None when none is due.

        The cost does not depend on the length of the queue.
        """

    @abstractmethod
    def on_work(self, wake: Callable[[], None]) -> None:
        """Have `wake` called on the event loop whenever a task may have become due or is to be canceled, through this
        process or another. It may be called too often, and is never missing for longer than the poll interval.
        """


class EventBus(ABC):
    """The logs as readers see them."""

    @abstractmethod
    async def read(self, task_id: str, scope: log.Scope, after: int, limit: int = 1000) -> log.LogSlice:
        """Return up to `limit` events after version `after`, in order; fewer when they exceed 256 KiB.

        Raises `TaskNotFoundError`.
        """

    @abstractmethod
    async def records(self, task_id: str, scope: log.Scope) -> list[log.Event]:
        """Return every event of kind `record`, in order. They are kept as long as the task, whatever is trimmed.

        Raises `TaskNotFoundError`.
        """

    @abstractmethod
    def subscribe(self, task_id: str, scope: log.Scope, after: int, *, caught_up: bool = False) -> Subscription:
        """Return every event after version `after`: those in the log, then each new one once it is durable.

        `caught_up` means that the caller has just written version `after` itself, so the log need not be read.

        A writer never waits for a subscriber; a subscriber that falls behind its bounded buffer reads the log again.
        The caller must have checked that the task is in this scope.
        """

    @abstractmethod
    def tell(self, task_id: str, data: bytes) -> None:
        """Show the task's subscribers in this process a status that is not stored, as an event of version 0.

        Of several, a slow subscriber sees only the last.
        """

    @abstractmethod
    def expect(self, task_id: str, scope: log.Scope, states: frozenset[TaskState]) -> Expectation:
        """Register a wait at once, so that no change between now and `Expectation.wait` is missed."""

    async def wait_for_state(
        self, task_id: str, scope: log.Scope, states: frozenset[TaskState], timeout: float | None
    ) -> log.StoredTask:
        """Return the task once it is in one of `states`, or as it is after `timeout` seconds.

        Raises `TaskNotFoundError`.
        """
        with self.expect(task_id, scope, states) as expectation:
            stored = await self.load(task_id, scope)
            if stored.state in states:
                return stored
            return await expectation.wait(stored.version, timeout) or await self.load(task_id, scope)

    @abstractmethod
    def count_subscribers(self) -> int:
        """Return how many subscriptions are open in this process."""

    @abstractmethod
    async def load(self, task_id: str, scope: log.Scope | None) -> log.StoredTask:
        """See `Storage.load`."""

    @abstractmethod
    def disconnect(self) -> None:
        """End every wait of this process, and every subscription once its reader has what was published, so that a
        server that stops still answers.
        """


class Outbox(ABC):
    """The push configs of tasks, and how far the log of its task was delivered to each.

    Configs are added and removed by `Storage.commit` (`Change.push`, `Change.drop_push`). A commit with events that
    subscribers are shown makes the entries of its task due, in the same transaction; a task without configs costs
    nothing. A new entry begins before the events of its own change, and one that replaces another continues where that
    was, even if it was dead. Entries are deleted with their task.
    """

    @abstractmethod
    async def push_configs(self, task_id: str, scope: log.Scope) -> list[log.PushConfig]:
        """Return the push configs of a task, by id. Raises `TaskNotFoundError`."""

    @abstractmethod
    async def claim_deliveries(
        self, agent: str, limit: int, room: Callable[[str], int], until: int
    ) -> list[log.OutboxEntry]:
        """Lease up to `limit` due entries of an agent's tasks until `until`.

        `room` is asked once for each host with due entries, and says how many of them may be leased, the longest due
        first. Hosts take turns, so that entries of one host never keep others waiting. An entry whose lease has expired
        is due again. Leasing raises `OutboxEntry.claim`, so that what the former holder settles is refused. No entry is
        given out twice.
        """

    @abstractmethod
    async def settle_deliveries(self, deliveries: Sequence[log.Delivery]) -> list[bool]:
        """Store the results of leased entries; false for one whose lease was taken over, or that is gone.

        With a time (`Delivery.due_at`) the entry is due then, which also extends the lease. Without one it is due at
        once if its log has more than was delivered, and otherwise when the next event is committed. A dead entry is
        never due. Nothing that is committed meanwhile is missed.
        """

    @abstractmethod
    def outbox(self, agent: str | None = None) -> AsyncIterator[log.OutboxEntry]:
        """Iterate over all entries, or those of one agent's tasks, in no particular order: for operators."""

    @abstractmethod
    async def outbox_backlog(self, agent: str) -> log.OutboxBacklog:
        """Return since when an agent's webhooks wait, and how many are dead letters.

        Each is found among `MOST_LOOKED_AT` entries at most, so the cost is bounded.
        """

    @abstractmethod
    async def retry_delivery(self, task_id: str, config_id: str) -> bool:
        """Make an entry due now, dead or not, and forget its failures; false if it does not exist. For operators."""

    @abstractmethod
    def on_delivery(self, wake: Callable[[], None]) -> None:
        """Have `wake` called on the event loop whenever a commit of this process has filled the outbox."""


class AccessLog(ABC):
    """Requests that the log of no task shows, for the audit trail."""

    @abstractmethod
    async def note_access(self, entry: log.AccessEntry) -> None:
        """Append an entry. It is durable when this returns. Raises `StorageError`."""

    @abstractmethod
    def accesses(self) -> AsyncIterator[log.AccessEntry]:
        """Iterate over all entries, the oldest first: for operators. Entries that are made meanwhile may be missing.

        An entry that cannot be read has the action `unreadable`.
        """


class Processes(ABC):
    """The processes that use the store, for operators."""

    @abstractmethod
    async def report(self, report: log.ProcessReport) -> None:
        """Store the report of a process instead of its last one. Raises `StorageError`.

        Reports of processes that have been silent for `SILENT_AFTER` seconds are deleted.
        """

    @abstractmethod
    async def processes(self) -> list[log.ProcessReport]:
        """Return the newest report of every process that is not silent, by id. One that cannot be read is left out."""

    @abstractmethod
    async def forget_process(self, process_id: str) -> None:
        """Delete the report of a process that stops."""


class Schema(ABC):
    """The tables of a store, for operators; used without opening the engine."""

    @abstractmethod
    async def upgrade(self) -> tuple[int, int]:
        """Make the tables, or upgrade them to this release; return the version before and after.

        Raises `StorageError`. Processes that use the tables keep working then, and another call continues the upgrade.
        """

    @abstractmethod
    async def check(self) -> int:
        """Return the version of the tables. Raises `StorageError` when this release cannot use them."""

    @abstractmethod
    async def sql(self) -> str:
        """Return the script that `upgrade` would run; "" when nothing is to be done."""


class Engine(Storage, Broker, EventBus, Outbox, AccessLog, Processes):
    """One store with all six facets. An async context manager: entering opens it, leaving closes it."""

    #: The name of the engine in messages and metrics.
    name: str = "engine"
    #: Whether tasks survive the process.
    durable: bool = True
    #: Whether several processes can use the same store at the same time.
    shared: bool = True
    #: Whether `commit` never waits: canceling its caller cannot come between a change and what follows from it.
    commits_at_once: bool = False
    #: Counts durable changes, if metrics are on. Set it before the engine is opened.
    counts: CommitCounts | None = None

    def __init__(self, *, clock: Clock = system_clock, retention: Retention | None = None) -> None:
        self.clock = clock
        self.retention = DURABLE_RETENTION if retention is None else retention

    @abstractmethod
    async def open(self) -> None:
        """Make the engine ready. Raises `StorageError`, which says what to do, when the store cannot be used."""

    @abstractmethod
    async def close(self) -> None:
        """End subscriptions and waits, write what is queued, and close all connections.

        In this order, so that subscribers are ended rather than refused by a closed store.
        """

    @abstractmethod
    async def check(self) -> None:
        """Raises `StorageError` when the store cannot be reached right now: what readiness asks."""

    @property
    def schema(self) -> Schema | None:
        """The store's tables, or None when it has none."""
        return None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
