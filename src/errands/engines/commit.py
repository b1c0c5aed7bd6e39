"""From a change to its subscribers: the part of writing that is the same in every engine.

`CommitQueue` holds what waits to be written and cuts it into batches; `CommitBatch` judges the changes of a batch, each
against what the ones before it leave; `LocalEngine` publishes what has become durable; `CommitCounts` counts it. An
engine looks tasks up, stores a judged batch, and notifies other processes.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from errands import errors
from errands.clock import Clock, system_clock
from errands.engines.base import Engine, Entries, Retention, Tasks
from errands.engines.damage import failed_draft
from errands.engines.subscriptions import Expectation, Subscribers, Subscription
from errands.lifecycle import Judged, Receipt, judge
from errands.model import log
from errands.model.base import encode
from errands.model.core import FAILED, SUBMITTED, TERMINAL_STATES, UNSPECIFIED, WORKING, TaskState

logger = logging.getLogger(__name__)

#: How many hosts one claim of deliveries looks at: there may be any number.
HOSTS = 100


class CommitJob(msgspec.Struct):
    """Something to write, and who waits for it."""

    #: A change, or whatever else the engine can do in a transaction.
    work: Any
    future: asyncio.Future[Any]
    #: No two batches with a job of the same key are under way at the same time; None goes with any.
    key: object = None
    #: When it was submitted, on the event loop's clock.
    at: float = 0.0
    #: Whether it must be a batch of its own.
    alone: bool = False


#: A job and its result: `Judged` for a change, another value, or the error.
Outcome = tuple[CommitJob, Any]


def failures(jobs: Iterable[CommitJob], failure: errors.StorageError) -> list[Outcome]:
    """Return this error for each of the jobs: a copy for each, because callers may add to it."""
    outcomes: list[Outcome] = []
    for job in jobs:
        copy = type(failure)(*failure.args)
        copy.__cause__ = failure.__cause__
        outcomes.append((job, copy))
    return outcomes


class CommitQueue:
    """Jobs that wait, in order, cut into batches by their number and bytes.

    A batch that has enough takes no more jobs, so that its first one does not wait for ever, and stores limit how much
    they take at once. When a batch fails because of one of its jobs, `retry_alone` puts them back one by one, so that
    each succeeds or fails on its own.
    """

    def __init__(self, max_jobs: int, max_bytes: int) -> None:
        self._max_jobs = max_jobs
        self._max_bytes = max_bytes
        self._jobs: deque[CommitJob] = deque()
        #: The keys of batches that are under way.
        self._busy: set[object] = set()

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def append(self, job: CommitJob) -> None:
        self._jobs.append(job)

    def extend(self, jobs: Iterable[CommitJob]) -> None:
        self._jobs.extend(jobs)

    def take(self) -> list[CommitJob]:
        """Return the next batch. Jobs whose keys are busy keep their place in the queue."""
        taken: list[CommitJob] = []
        left: list[CommitJob] = []
        size = 0
        while self._jobs and len(taken) < self._max_jobs and len(left) < self._max_jobs and size < self._max_bytes:
            job = self._jobs.popleft()
            if job.alone and taken:
                left.append(job)
                break
            if job.key in self._busy:
                left.append(job)
                continue
            taken.append(job)
            if job.alone:
                break
            if type(job.work) is log.Change:
                size += sum([len(draft.data) for draft in job.work.events]) + len(job.work.context or b"")
                if job.work.restored is not None:
                    size += sum([len(event.data) for event in job.work.restored.events])
        self._jobs.extendleft(reversed(left))
        self._busy.update([job.key for job in taken if job.key is not None])
        return taken

    def release(self, jobs: Sequence[CommitJob]) -> None:
        """Note that a batch is no longer under way."""
        self._busy.difference_update([job.key for job in jobs])

    def put_back(self, jobs: Sequence[CommitJob]) -> None:
        """Put a batch back in front of the others."""
        self._jobs.extendleft(reversed(jobs))
        self.release(jobs)

    def retry_alone(self, jobs: Sequence[CommitJob]) -> bool:
        """Put the jobs of a failed batch back, each to be tried on its own; false when there is only one."""
        if len(jobs) < 2:
            return False
        for job in jobs:
            job.alone = True
        self.put_back(jobs)
        return True


class TaskRow(msgspec.Struct, array_like=True, gc=False):
    """A task as the SQL engines keep it beside its log."""

    #: Names the task's log; counted up in the order of creation.
    no: int
    id: str
    scope: log.Scope
    context_id: str
    #: The snapshot holds the events up to this version; 0 without a snapshot.
    folded: int
    #: The events up to this version are no longer kept.
    trimmed: int
    head: log.Head
    #: PostgreSQL only: the process that has readers of the task.
    watcher: str = ""

    def running(self) -> log.RunningTask:
        return log.RunningTask(task_id=self.id, context_id=self.context_id, scope=self.scope, head=self.head)

    def check_ended(self, scope: log.Scope) -> None:
        """Raise unless the task may be deleted in this scope: `TaskNotFoundError` or `ConcurrencyError`."""
        if self.scope != scope:
            raise errors.TaskNotFoundError(taskId=self.id)
        if self.head.state not in TERMINAL_STATES | {UNSPECIFIED}:
            raise errors.ConcurrencyError(f"task {self.id} is {self.head.state.short}: only ended tasks can be deleted")


def lease_signals(leases: Iterable[log.Lease], held: dict[log.Lease, bool]) -> list[log.LeaseSignal]:
    """Return the signals of `Broker.extend`. `held` are the extended leases, true for tasks that are to be canceled."""
    return [
        log.LeaseSignal(lease.task_id, lost=lease not in held, cancel_requested=held.get(lease, False))
        for lease in leases
        if held.get(lease, True)
    ]


class Accepted(msgspec.Struct):
    """An accepted change with the row of its task, as it is after the change."""

    row: TaskRow
    judged: Judged


class CommitBatch:
    """Changes that share a transaction: judged in order, each against what the ones before it leave."""

    def __init__(
        self,
        rows: dict[str, TaskRow],
        receipts: dict[tuple[log.Scope, bytes], Receipt],
        next_number: Callable[[], int],
        max_version: int,
    ) -> None:
        """`rows` and `receipts` are what was found of the changes' tasks and messages."""
        self.rows = rows
        self._receipts = receipts
        self._next_number = next_number
        self._max_version = max_version
        #: What is to be stored: the accepted changes, and by tasks' numbers and by conversations the last of each kind
        #: that they brought along.
        self.accepted: list[Accepted] = []
        self.snapshots: dict[int, bytes] = {}
        self.contexts: dict[tuple[log.Scope, str], tuple[bytes, int]] = {}

    def judge(self, changes: Iterable[log.Change]) -> list[Judged | errors.ErrandsError]:
        """Return the result of each change; those that are accepted are added to `accepted`."""
        outcomes: list[Judged | errors.ErrandsError] = []
        for change in changes:
            try:
                outcomes.append(self._add(change))
            except errors.ErrandsError as error:
                outcomes.append(error)
        return outcomes

    def _add(self, change: log.Change) -> Judged:
        row = self.rows.get(change.task_id)
        message = None if change.receipt is None else (change.scope, change.receipt)
        receipt = None if message is None else self._receipts.get(message)
        scope, head = (None, None) if row is None else (row.scope, row.head)
        judged = judge(scope, head, receipt, change)
        if judged.head.version > self._max_version:
            raise errors.StorageError(f"the log of task {change.task_id} is full: it holds {self._max_version} events")
        # Before anything is changed: a task that cannot be encoded must leave no trace.
        snapshot = None if change.fold is None else encode(change.fold)
        if row is None:
            row = TaskRow(self._next_number(), change.task_id, change.scope, change.context_id, 0, 0, judged.head)
            self.rows[change.task_id] = row
            if change.restored is not None:
                row.trimmed = change.restored.trimmed
        row.head = judged.head
        if snapshot is not None:
            row.folded = judged.head.version
            self.snapshots[row.no] = snapshot
        if change.context is not None:
            self.contexts[row.scope, row.context_id] = change.context, change.at
        if message is not None:
            self._receipts[message] = Receipt(change.task_id, change.at)
        self.accepted.append(Accepted(row, judged))
        return judged


# Counts, for metrics

#: Upper bounds of the changes of one batch, and of seconds of work inside a process or a store.
BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
COMMIT_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram:
    """Counts values by the bounds between which they are, and adds them up."""

    __slots__ = ("_bounds", "_counts", "_fresh", "_sum", "observe")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        #: What was observed since the last look. A process looks every few seconds, see `ProcessReporter`.
        self._fresh: list[float] = []
        #: Count a value. Every request does it, and to append takes a fifth of the time.
        self.observe: Callable[[float], None] = self._fresh.append

    @property
    def counts(self) -> list[int]:
        """Values by the first bound that is not smaller; the last one counts larger values."""
        self._add_up()
        return self._counts

    @property
    def sum(self) -> float:
        self._add_up()
        return self._sum

    def _add_up(self) -> None:
        for value in self._fresh:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value
        self._fresh.clear()

    def add(self, other: Histogram) -> None:
        """Add the values of another histogram of the same bounds."""
        self._add_up()
        self._counts = [one + more for one, more in zip(self._counts, other.counts, strict=True)]
        self._sum += other.sum


class CommitCounts:
    """The changes that an engine has made durable in this process, and the batches that they were written in."""

    __slots__ = ("_noted", "changes", "seconds")

    def __init__(self) -> None:
        #: Durable changes by the state before and after, whether they lease the task, and the cause of a lease whose
        #: first event they have.
        self._noted: dict[tuple[TaskState, TaskState, bool, str], int] = {}
        #: Of each batch. An engine without batches leaves these two alone.
        self.changes = Histogram(BATCH_BOUNDS)
        self.seconds = Histogram(COMMIT_BOUNDS)

    def note(self, judged: Judged) -> None:
        """Count a durable change."""
        lease = judged.events[0].lease if judged.events else None
        cause = "" if lease is None else lease.cause
        change = judged.before.state, judged.head.state, judged.change.work is log.LEASE, cause
        noted = self._noted
        noted[change] = noted.get(change, 0) + 1

    @property
    def states(self) -> dict[TaskState, int]:
        """Return how often tasks have entered each state."""
        states = dict.fromkeys((state for state in TaskState if state is not UNSPECIFIED), 0)
        for (before, after, leases, _), count in self._noted.items():
            if after is not before:
                states[after] += count
                if after is WORKING and leases and before is not SUBMITTED:
                    # A task that is leased when it is created or resumed passes through `submitted`.
                    states[SUBMITTED] += count
        return states

    @property
    def attempts(self) -> dict[str, int]:
        """Leases by their cause, see `errands.model.log.LeaseRecord`: those whose first event is durable."""
        attempts = {"new": 0, "expired": 0, "given back": 0}
        for (*_, cause), count in self._noted.items():
            if cause:
                attempts[cause] += count
        return attempts

    def note_batch(self, changes: int, seconds: float) -> None:
        """Count a batch that was written in one transaction, which took `seconds`."""
        self.changes.observe(changes)
        self.seconds.observe(seconds)


class LocalEngine(Engine):
    """An engine that publishes to the subscribers, callers and workers of this process what has become durable."""

    def __init__(self, *, clock: Clock = system_clock, retention: Retention | None = None) -> None:
        super().__init__(clock=clock, retention=retention)
        self.subscribers = Subscribers()
        self._wakers: list[Callable[[], None]] = []
        self._delivery_wakers: list[Callable[[], None]] = []
        #: The host up to which due deliveries were looked for the last time.
        self._last_host = ""

    def on_work(self, wake: Callable[[], None]) -> None:
        self._wakers.append(wake)

    def wake_workers(self) -> None:
        for wake in self._wakers:
            wake()

    def on_delivery(self, wake: Callable[[], None]) -> None:
        self._delivery_wakers.append(wake)

    def wake_senders(self) -> None:
        for wake in self._delivery_wakers:
            wake()

    def deliver(self, outcomes: Iterable[Outcome]) -> None:
        """Publish what has become durable, answer those who wait for it, and wake workers."""
        wake = fills_outbox = False
        counts = self.counts
        for job, result in outcomes:
            if type(result) is Judged:
                if counts is not None:
                    counts.note(result)
                self.subscribers.publish(result.change.task_id, result.events, result.head.state, result.stored)
                wake = wake or result.wakes_workers
                fills_outbox = fills_outbox or result.head.pushes != ()
                result = result.head
            if job.future.done():
                continue  # the caller was canceled
            if isinstance(result, Exception):
                # The traceback leads to frames that refer to the error and to whole batches. Such a cycle would stay
                # in memory until the next garbage collection.
                job.future.set_exception(result.with_traceback(None))
            else:
                job.future.set_result(result)
        if wake:
            self.wake_workers()
        if fills_outbox:
            self.wake_senders()

    async def claim(self, worker: str, agents: Sequence[str], limit: int, until: int) -> Tasks:
        claimed: list[log.StoredTask] = []
        while len(claimed) < limit:
            leased = await self._lease_due(worker, agents, limit - len(claimed), until)
            damaged = [stored for stored in leased if stored.damage]
            claimed += [stored for stored in leased if not stored.damage]
            for stored in damaged:
                try:
                    await self.set_aside(stored, worker)
                except errors.ErrandsError:
                    # Tasks that can be run must not wait for it. Its lease keeps it away for a while.
                    logger.exception("task %s is damaged and could not be ended", stored.task.id)
                    return claimed
            if claimed or not damaged:
                break
        return claimed

    @abstractmethod
    async def _lease_due(self, worker: str, agents: Sequence[str], limit: int, until: int) -> Tasks:
        """Do what `claim` does, and return damaged tasks as well."""

    async def set_aside(self, stored: log.StoredTask, worker: str = "") -> None:
        now, head = self.clock(), stored.head
        if head.worker not in ("", worker) and head.due_at is not None and head.due_at > now:
            return
        # Only the holder of the lease may fail any task, so it is leased first.
        lease = log.Change(
            task_id=stored.task.id,
            scope=stored.scope,
            fence=head.attempt,
            at=now,
            work=log.LEASE,
            due_at=now,
            worker="set aside",
        )
        end = log.Change(
            task_id=stored.task.id,
            scope=stored.scope,
            events=(failed_draft(stored, now),),
            fence=head.attempt + 1,
            at=now,
            state=FAILED,
            work=log.IDLE,
            cancel_requested=False,
        )
        with suppress(errors.ConcurrencyError, errors.LeaseLostError, errors.TaskTerminalStateError):
            await self.commit(lease)
            try:
                await self.commit(end)
            except errors.StorageError:
                # Its log may be what is damaged.
                await self.commit(msgspec.structs.replace(end, events=()))

    async def claim_deliveries(self, agent: str, limit: int, room: Callable[[str], int], until: int) -> Entries:
        now = self.clock()
        hosts = await self._due_hosts(agent, now, self._last_host)
        if not hosts and self._last_host:
            hosts = await self._due_hosts(agent, now, "")
        wanted: dict[str, int] = {}
        for host in hosts:
            if limit <= 0:
                break
            if (count := min(room(host), limit)) > 0:
                wanted[host] = count
                limit -= count
            self._last_host = host
        else:
            if len(hosts) < HOSTS:
                self._last_host = ""
        return await self._lease_deliveries(agent, wanted, now, until) if wanted else []

    @abstractmethod
    async def _due_hosts(self, agent: str, now: int, after: str) -> list[str]:
        """Return the hosts of due entries, in alphabetical order, those after `after`; `HOSTS` at most."""

    @abstractmethod
    async def _lease_deliveries(self, agent: str, wanted: Mapping[str, int], now: int, until: int) -> Entries:
        """Lease as many due entries of each host as are wanted, the longest due first."""

    def subscribe(self, task_id: str, scope: log.Scope, after: int, *, caught_up: bool = False) -> Subscription:
        self._watch(task_id)
        return self.subscribers.subscribe(task_id, after, lambda cursor: self.read(task_id, scope, cursor), caught_up)

    def count_subscribers(self) -> int:
        return self.subscribers.count()

    def tell(self, task_id: str, data: bytes) -> None:
        self.subscribers.tell(task_id, log.Event(0, "status", data))

    def expect(self, task_id: str, scope: log.Scope, states: frozenset[TaskState]) -> Expectation:
        self._watch(task_id)
        return self.subscribers.expect(task_id, scope, states, self.load)

    def _watch(self, task_id: str) -> None:
        """Prepare for a reader of this task: an engine that hears of other processes listens to it from now on."""

    def disconnect(self) -> None:
        self.subscribers.close()
