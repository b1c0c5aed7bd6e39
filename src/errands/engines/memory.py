"""The engine in the process's own memory: for tests, demos and agents whose tasks may die with the process.

Single-threaded and never waiting, so every method is atomic by itself. Ended tasks are dropped by age and number
unless told otherwise, and by size in any case, because memory must not grow without bound.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter

import msgspec

from errands import lifecycle
from errands.clock import Clock, system_clock
from errands.engines.base import (
    MOST_LOOKED_AT,
    Abandoned,
    Configs,
    Entries,
    Events,
    Flags,
    Ids,
    LargeReadError,
    Reports,
    Retention,
    Running,
    Tasks,
)
from errands.engines.commit import HOSTS, LocalEngine
from errands.engines.damage import bare_task, damaged_task
from errands.engines.listing import Cursor, earliest, fitting, leave_out_artifacts, list_page
from errands.engines.retention import apply_retention
from errands.engines.subscriptions import READ_BYTES, READ_SIZE
from errands.errors import ConcurrencyError, TaskNotFoundError
from errands.lifecycle import Judged, Receipt, judge, receipt_until
from errands.model.base import UNREADABLE, encode, shallow_copy
from errands.model.core import PAUSED_STATES, TERMINAL_STATES, Task, TaskState
from errands.model.log import (
    KEEP,
    LEASE,
    READY,
    AccessEntry,
    AskingQuery,
    Change,
    Delivery,
    Event,
    Head,
    Lease,
    LeaseSignal,
    ListPage,
    ListQuery,
    LogSlice,
    OutboxBacklog,
    OutboxEntry,
    ProcessReport,
    Reach,
    RunningTask,
    Scope,
    StoredTask,
    is_reached,
    silent_since,
)

#: Bytes of content that ended tasks may hold together. Beyond that, those that ended first are dropped.
MAX_ENDED_BYTES = 128 * 1024 * 1024
#: Entries of the access log that are kept, the newest ones.
MAX_ACCESSES = 20_000
#: The log of an ended task is kept in one piece when it has no more events than this.
PACKED_EVENTS = 32

DEFAULT_RETENTION = Retention(ended_after=3600.0, ended_at_most=10_000, events_per_task=20_000, contexts_after=86_400.0)

# Inside the engine, `list` is the method.
Signals = list[LeaseSignal]

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[Event]).decode
_version = attrgetter("version")
_decode = msgspec.json.Decoder(Task).decode
#: The events of every task that is packed. It stays empty: `unpack` gives a task a list of its own.
_NO_EVENTS: list[Event] = []


class MemoryTask(msgspec.Struct, gc=False):
    """One task: its head, its log, and the snapshot up to `folded`.

    An ended task is kept as bytes: thousands of them as objects would push out of the processor's caches what the
    running ones need.
    """

    id: str
    scope: Scope
    context_id: str
    head: Head
    events: list[Event] = []
    snapshot: Task | bytes | None = None
    folded: int = 0
    #: Records among the events that were trimmed.
    records: tuple[Event, ...] = ()
    #: The whole log of an ended task, if it is short; `events` and `snapshot` are then empty.
    packed: bytes | None = None
    receipts: tuple[bytes, ...] = ()

    def pack(self, task: Task | None) -> None:
        """Keep an ended task as bytes; `task` is the whole of it, if the writer knows it."""
        if len(self.events) == self.head.version <= PACKED_EVENTS:
            self.packed, self.events = _pack(self.events), _NO_EVENTS
            if self.folded:
                self.snapshot, self.folded = None, 0
        elif task is not None:
            self.snapshot, self.folded = encode(task), self.head.version
        elif isinstance(self.snapshot, Task):
            self.snapshot = encode(self.snapshot)

    def unpack(self) -> None:
        """Keep the log as events again."""
        if self.packed is not None:
            self.events, self.packed = _unpack(self.packed), None

    @property
    def kept_bytes(self) -> int:
        """The bytes of content that an ended task holds."""
        if self.packed is not None:
            return len(self.packed)
        snapshot = len(self.snapshot) if isinstance(self.snapshot, bytes) else 0
        return snapshot + sum([len(event.data) for event in self.events]) + sum([len(one.data) for one in self.records])

    def log(self) -> list[Event]:
        """Return the events that are kept."""
        try:
            return self.events if self.packed is None else _unpack(self.packed)
        except UNREADABLE:
            return []

    def slice(self, after: int, limit: int) -> LogSlice:
        events = self.log()
        first = events[0].version if events else self.head.version + 1
        start = bisect_right(events, after, key=_version)
        taken, size = [], 0
        for event in islice(events, start, start + limit):
            if size >= READ_BYTES:
                break
            taken.append(event)
            size += len(event.data)
        return LogSlice(taken, gap=after + 1 < first)

    def stored(self, *, with_artifacts: bool = True) -> StoredTask:
        """Return the task as of its newest version."""
        try:
            task = self._fold()
        except UNREADABLE as error:
            return damaged_task(self.id, self.context_id, self.scope, self.head, error)
        stored = StoredTask(task=task, head=self.head, scope=self.scope)
        if not with_artifacts:
            leave_out_artifacts([stored])
        return stored

    def _fold(self) -> Task:
        if self.packed is not None:
            return lifecycle.fold(None, _unpack(self.packed))
        task = _decode(self.snapshot) if isinstance(self.snapshot, bytes) else self.snapshot
        if task is None or self.folded < self.head.version:
            tail = self.events[bisect_right(self.events, self.folded, key=_version) :]
            self.snapshot = task = lifecycle.fold(task, tail)
            self.folded = self.head.version
        return task

    def size(self, *, with_artifacts: bool) -> int:
        """Return how many bytes of content a listing would show."""
        if self.packed is not None:
            return len(self.packed)
        if isinstance(self.snapshot, bytes) and self.folded == self.head.version:
            return len(self.snapshot)
        return len(encode(self.stored(with_artifacts=with_artifacts).task))

    def trim(self, keep: int) -> None:
        """Remove the oldest events, all but their records."""
        # They must be in the snapshot before.
        self.stored()
        cut = len(self.events) - keep
        self.records += tuple(event for event in self.events[:cut] if event.kind == "record")
        del self.events[:cut]


class MemoryEngine(LocalEngine):
    """Tasks in the memory of this process, and gone with it."""

    name = "memory"
    durable = False
    shared = False
    commits_at_once = True

    def __init__(self, *, clock: Clock = system_clock, retention: Retention | None = None) -> None:
        super().__init__(clock=clock, retention=retention or DEFAULT_RETENTION)
        self._tasks: dict[str, MemoryTask] = {}
        #: (due_at, task_id), a heap: entries that no longer match their task are passed over.
        self._ready: list[tuple[int, str]] = []
        self._leased: set[str] = set()
        #: No lease ends before this time.
        self._next_expiry = 2**62
        #: By digest, in the order of their time.
        self._receipts: dict[Scope, dict[bytes, Receipt]] = {}
        #: What was saved, and when; the longest unchanged first.
        self._contexts: OrderedDict[tuple[Scope, str], tuple[bytes, int]] = OrderedDict()
        self._accesses: deque[AccessEntry] = deque(maxlen=MAX_ACCESSES)
        self._reports: dict[str, ProcessReport] = {}
        #: Live tasks that are to be canceled.
        self._canceling: set[str] = set()
        #: Tasks that wait for one user's answer.
        self._asking: set[str] = set()
        #: Paused tasks that no worker holds.
        self._paused: set[str] = set()
        #: Ended tasks and their sizes in bytes, the longest ended first.
        self._ended: OrderedDict[str, int] = OrderedDict()
        self._ended_bytes = 0
        #: The outbox: entries by task and config, and those of them that are due at some time.
        self._entries: dict[str, dict[str, OutboxEntry]] = {}
        self._scheduled: set[tuple[str, str]] = set()
        #: Events of a task before the oldest are trimmed: a tenth over the bound, so that it happens rarely.
        keep = self.retention.events_per_task
        self._max_events = float("inf") if keep is None else keep + keep // 10
        self._swept_at = 0

    async def open(self) -> None:
        return None

    async def close(self) -> None:
        self.disconnect()

    async def check(self) -> None:
        return None

    # Writing

    async def commit(self, change: Change) -> Head:
        task = self._tasks.get(change.task_id)
        receipt = None
        if change.receipt is not None and (receipts := self._receipts.get(change.scope)):
            receipt = receipts.get(change.receipt)
        if task is None:
            judged = judge(None, None, receipt, change)
            task = self._tasks[change.task_id] = MemoryTask(
                change.task_id, change.scope, change.context_id, judged.head, []
            )
        else:
            judged = judge(task.scope, task.head, receipt, change)
            task.unpack()
            task.head = judged.head
        self._store(task, judged)
        if self.counts is not None:
            self.counts.note(judged)
        self.subscribers.publish(change.task_id, judged.events, judged.head.state, judged.stored)
        if judged.wakes_workers:
            self.wake_workers()
        if judged.head.pushes:
            self.wake_senders()
        if len(task.events) > self._max_events:
            assert self.retention.events_per_task is not None
            task.trim(self.retention.events_per_task)
        return judged.head

    def _store(self, task: MemoryTask, judged: Judged) -> None:
        task_id, head, change = task.id, judged.head, judged.change
        if change.restored is not None and change.restored.trimmed:
            task.records = tuple(event for event in judged.events if event.version <= change.restored.trimmed)
            task.events.extend(judged.events[len(task.records) :])
        else:
            task.events.extend(judged.events)
        if change.receipt is not None:
            receipts = self._receipts.setdefault(change.scope, {})
            # An expired one that is replaced moves to the end.
            receipts.pop(change.receipt, None)
            receipts[change.receipt] = Receipt(task_id, change.at, receipt_until(change))
            task.receipts += (change.receipt,)
        if change.context is not None:
            self._contexts[task.scope, task.context_id] = change.context, change.at
            self._contexts.move_to_end((task.scope, task.context_id))
        if head.pushes or judged.before.pushes:
            self._fill_outbox(task, judged)
        if change.work is LEASE:
            self._lease(task_id, change.due_at)
        elif change.work is not KEEP:
            self._leased.discard(task_id)
            if change.work is READY:
                heapq.heappush(self._ready, (change.due_at, task_id))
        if head.state in PAUSED_STATES or self._paused or self._asking:
            self._note_pause(task_id, head)
        if head.state in TERMINAL_STATES:
            self._end(task, change.fold)
            return
        if change.fold is not None:
            task.snapshot, task.folded = change.fold, head.version
        if change.cancel_requested:
            self._canceling.add(task_id)

    def _note_pause(self, task_id: str, head: Head) -> None:
        """Note whether a task waits for the answer of one user, and whether it is paused without a worker."""
        for tasks, belongs in (
            (self._asking, head.asks != ""),
            (self._paused, head.due_at is None and head.state in PAUSED_STATES),
        ):
            if belongs:
                tasks.add(task_id)
            else:
                tasks.discard(task_id)

    def _fill_outbox(self, task: MemoryTask, judged: Judged) -> None:
        change = judged.change
        entries = self._entries.setdefault(task.id, {})
        if change.push is not None:
            before = entries.get(change.push.id)
            entries[change.push.id] = entry = OutboxEntry(
                task_id=task.id, scope=task.scope, config=change.push, delivered=judged.before.version
            )
            if before is not None:
                entry.delivered, entry.claim = before.delivered, before.claim + 1
                self._schedule(entry, change.at)
        if change.drop_push in entries:
            self._schedule(entries.pop(change.drop_push), None)
        if judged.fills_outbox:
            for entry in entries.values():
                if entry.due_at is None and not entry.dead:
                    self._schedule(entry, change.at)
        if not entries:
            del self._entries[task.id]

    def _schedule(self, entry: OutboxEntry, due_at: int | None) -> None:
        entry.due_at = due_at
        if due_at is None:
            self._scheduled.discard((entry.task_id, entry.config.id))
        else:
            self._scheduled.add((entry.task_id, entry.config.id))

    def _lease(self, task_id: str, until: int) -> None:
        self._leased.add(task_id)
        if until < self._next_expiry:
            self._next_expiry = until

    def _end(self, task: MemoryTask, whole: Task | None) -> None:
        task.pack(whole)
        if self._canceling:
            self._canceling.discard(task.id)
        size = task.kept_bytes
        self._ended_bytes += size - self._ended.get(task.id, 0)
        self._ended[task.id] = size
        if self.retention.ended_at_most is not None and len(self._ended) > self.retention.ended_at_most:
            self._drop(next(iter(self._ended)))
        while self._ended_bytes > MAX_ENDED_BYTES and len(self._ended) > 1:
            self._drop(next(iter(self._ended)))

    def _drop(self, task_id: str) -> None:
        task = self._tasks.pop(task_id)
        self._ended_bytes -= self._ended.pop(task_id, 0)
        self._leased.discard(task_id)
        if task_id in self._entries:
            for entry in self._entries.pop(task_id).values():
                self._schedule(entry, None)
        if task.receipts and (receipts := self._receipts.get(task.scope)) is not None:
            for digest in task.receipts:
                # One that had expired may belong to a newer task by now.
                if digest in receipts and receipts[digest].task_id == task_id:
                    del receipts[digest]
            if not receipts:
                del self._receipts[task.scope]

    async def delete(self, task_id: str, scope: Scope) -> None:
        state = self._task(task_id, scope).head.state
        if state not in TERMINAL_STATES:
            raise ConcurrencyError(f"task {task_id} is {state.short}: only ended tasks can be deleted")
        self._drop(task_id)

    # Reading

    def _task(self, task_id: str, scope: Scope | None) -> MemoryTask:
        task = self._tasks.get(task_id)
        if task is None or scope not in (None, task.scope):
            raise TaskNotFoundError(taskId=task_id)
        return task

    async def load(self, task_id: str, scope: Scope | None) -> StoredTask:
        return self._task(task_id, scope).stored()

    async def load_head(self, task_id: str, scope: Scope | None) -> StoredTask:
        task = self._task(task_id, scope)
        return bare_task(task.id, task.context_id, task.scope, task.head)

    async def load_small(self, task_id: str, scope: Scope, most: int) -> StoredTask:
        task = self._task(task_id, scope)
        if task.kept_bytes > most:
            raise LargeReadError(task.kept_bytes)
        return task.stored()

    async def read(self, task_id: str, scope: Scope, after: int, limit: int = READ_SIZE) -> LogSlice:
        return self._task(task_id, scope).slice(after, limit)

    async def records(self, task_id: str, scope: Scope) -> Events:
        task = self._task(task_id, scope)
        return [*task.records, *(event for event in task.log() if event.kind == "record")]

    async def load_context(self, scope: Scope, context_id: str) -> bytes | None:
        found = self._contexts.get((scope, context_id))
        return None if found is None else found[0]

    async def list(self, query: ListQuery) -> ListPage:
        return await list_page(_MemoryListing(self._tasks, query), query, self.clock())

    async def every_task(self) -> AsyncIterator[StoredTask]:
        for task in list(self._tasks.values()):
            yield task.stored()

    async def asking(self, query: AskingQuery) -> Tasks:
        task_ids = self._asking if query.task_id is None else self._asking & {query.task_id}
        tasks = [task for task_id in task_ids if query.matches((task := self._tasks[task_id]).scope, task.head)]
        tasks.sort(key=lambda task: (task.head.status_at, task.id))
        found = [task.stored(with_artifacts=False) for task in tasks[: query.limit]]
        return [stored for stored in found if not stored.damage]

    async def abandoned(
        self, agent: str, paused_by: int, created_by: int, limit: int, unfinished_by: int = -1
    ) -> Abandoned:
        paused = [self._tasks[task_id] for task_id in self._paused]
        found = {
            task.id: task.scope
            for task in paused
            if task.scope.agent == agent and (task.head.status_at <= paused_by or task.head.created_at <= created_by)
        }
        if unfinished_by >= 0:
            found |= {
                task.id: task.scope
                for task in self._live()
                if task.scope.agent == agent
                and task.head.created_at <= unfinished_by
                and not task.head.cancel_requested
            }
        return list(islice(found.items(), limit))

    def _live(self) -> Iterator[MemoryTask]:
        """Iterate over the tasks that have not ended, without looking at those that have."""
        task_ids = {*self._leased, *self._paused, *(task_id for _, task_id in self._ready)}
        return (self._tasks[task_id] for task_id in task_ids if task_id in self._tasks and task_id not in self._ended)

    async def count_live(self, scope: Scope, reach: Reach = "scope") -> int:
        return sum(is_reached(task.scope, scope, reach) for task in self._live())

    async def stored_bytes(self, scope: Scope, reach: Reach = "scope") -> int:
        return sum(task.kept_bytes for task in self._tasks.values() if is_reached(task.scope, scope, reach))

    # The queue

    async def _lease_due(self, worker: str, agents: Sequence[str], limit: int, until: int) -> Tasks:
        now = self.clock()
        claimed: list[StoredTask] = []
        others: list[tuple[int, str]] = []
        self._expire_leases(now)
        while self._ready and self._ready[0][0] <= now and len(claimed) < limit:
            due_at, task_id = entry = heapq.heappop(self._ready)
            if not self._is_ready(due_at, task_id):
                continue
            task = self._tasks[task_id]
            if task.scope.agent not in agents:
                others.append(entry)
                continue
            task.head = lifecycle.claimed(task.head, worker, until)
            self._lease(task_id, until)
            claimed.append(task.stored())
        for entry in others:
            heapq.heappush(self._ready, entry)
        return claimed

    def _expire_leases(self, now: int) -> None:
        """Make tasks due again whose lease has expired."""
        if now < self._next_expiry:
            return
        self._next_expiry = 2**62
        for task_id in list(self._leased):
            due_at = self._tasks[task_id].head.due_at
            assert due_at is not None
            if due_at <= now:
                self._leased.discard(task_id)
                heapq.heappush(self._ready, (due_at, task_id))
            elif due_at < self._next_expiry:
                self._next_expiry = due_at

    def _is_ready(self, due_at: int, task_id: str, agents: Sequence[str] | None = None) -> bool:
        """Return whether an entry of the queue is still true: not when its task was settled or claimed since."""
        task = self._tasks.get(task_id)
        if task is None or task_id in self._leased or task.head.due_at != due_at:
            return False
        return agents is None or task.scope.agent in agents

    async def extend(self, worker: str, leases: Sequence[Lease], until: int) -> Signals:
        signals: list[LeaseSignal] = []
        for task_id, attempt in leases:
            task = self._tasks.get(task_id)
            if task is None or task.head.worker != worker or task.head.attempt != attempt:
                signals.append(LeaseSignal(task_id, lost=True, cancel_requested=False))
                continue
            task.head = msgspec.structs.replace(task.head, due_at=until)
            self._lease(task_id, until)
            if task.head.cancel_requested:
                signals.append(LeaseSignal(task_id, lost=False, cancel_requested=True))
        return signals

    async def wanted_canceled(self, worker: str) -> Ids:
        return [task_id for task_id in self._canceling if self._tasks[task_id].head.worker == worker]

    async def running(self) -> Running:
        now = self.clock()
        held = [self._tasks[task_id] for task_id in self._leased]
        found = [
            RunningTask(task_id=task.id, context_id=task.context_id, scope=task.scope, head=task.head)
            for task in held
            if task.head.due_at is not None and task.head.due_at > now
        ]
        return sorted(found, key=lambda task: (task.head.created_at, task.task_id))

    async def queue_age(self, agents: Sequence[str]) -> int | None:
        now = self.clock()
        self._expire_leases(now)
        while self._ready and not self._is_ready(*self._ready[0]):
            heapq.heappop(self._ready)
        if not self._ready:
            return None
        oldest, task_id = self._ready[0]
        if self._tasks[task_id].scope.agent not in agents:
            # Rare: several agents in one process, and the longest due task is of another one.
            waiting = (due for due, other in self._ready if self._is_ready(due, other, agents))
            oldest = min(waiting, default=now + 1)
        return None if oldest > now else now - oldest

    # The outbox

    async def push_configs(self, task_id: str, scope: Scope) -> Configs:
        self._task(task_id, scope)
        return [entry.config for _, entry in sorted(self._entries.get(task_id, {}).items())]

    def _due_entries(self, agent: str, now: int) -> Entries:
        scheduled = [self._entries[task_id][config_id] for task_id, config_id in self._scheduled]
        due = [entry for entry in scheduled if entry.scope.agent == agent and entry.due_at is not None]
        return sorted([entry for entry in due if entry.due_at <= now], key=attrgetter("due_at"))  # type: ignore[operator]

    async def _due_hosts(self, agent: str, now: int, after: str) -> Ids:
        hosts = {entry.config.host for entry in self._due_entries(agent, now)}
        return sorted(host for host in hosts if host > after)[:HOSTS]

    async def _lease_deliveries(self, agent: str, wanted: Mapping[str, int], now: int, until: int) -> Entries:
        room = dict(wanted)
        leased: list[OutboxEntry] = []
        for entry in self._due_entries(agent, now):
            if room.get(entry.config.host, 0) > 0:
                room[entry.config.host] -= 1
                entry.due_at, entry.claim = until, entry.claim + 1
                leased.append(shallow_copy(entry))
        return leased

    async def settle_deliveries(self, deliveries: Sequence[Delivery]) -> Flags:
        return [self._settle(delivery) for delivery in deliveries]

    def _settle(self, delivery: Delivery) -> bool:
        entry = self._entries.get(delivery.task_id, {}).get(delivery.config_id)
        if entry is None or entry.claim != delivery.claim:
            return False
        for name in ("delivered", "attempts", "failed_at", "error", "dead"):
            setattr(entry, name, getattr(delivery, name))
        due_at = delivery.due_at
        if due_at is None and self._tasks[entry.task_id].head.version > entry.delivered:
            due_at = self.clock()
        self._schedule(entry, None if delivery.dead else due_at)
        return True

    async def outbox(self, agent: str | None = None) -> AsyncIterator[OutboxEntry]:
        for entry in [entry for entries in self._entries.values() for entry in entries.values()]:
            if agent in (None, entry.scope.agent):
                yield shallow_copy(entry)

    async def outbox_backlog(self, agent: str) -> OutboxBacklog:
        due = self._due_entries(agent, self.clock())
        dead = (one.dead and one.scope.agent == agent for entries in self._entries.values() for one in entries.values())
        return OutboxBacklog(due[0].due_at if due else None, min(sum(dead), MOST_LOOKED_AT))

    async def retry_delivery(self, task_id: str, config_id: str) -> bool:
        entry = self._entries.get(task_id, {}).get(config_id)
        if entry is None:
            return False
        entry.attempts, entry.failed_at, entry.error, entry.dead = 0, None, "", False
        entry.claim += 1
        self._schedule(entry, self.clock())
        self.wake_senders()
        return True

    # The access log

    async def note_access(self, entry: AccessEntry) -> None:
        self._accesses.append(entry)

    async def accesses(self) -> AsyncIterator[AccessEntry]:
        for entry in list(self._accesses):
            yield entry

    # Processes

    async def report(self, report: ProcessReport) -> None:
        self._reports = {one.id: one for one in await self.processes()} | {report.id: report}

    async def processes(self) -> Reports:
        silent = silent_since(self.clock())
        return sorted((one for one in self._reports.values() if one.at > silent), key=attrgetter("id"))

    async def forget_process(self, process_id: str) -> None:
        self._reports.pop(process_id, None)

    # Retention: the steps of `errands.engines.retention.Sweep`

    async def sweep(self, every: float = 0.0) -> int:
        now = self.clock()
        if now - self._swept_at < every * 1000:
            return 0
        self._swept_at = now
        return await apply_retention(self, self.retention, now)

    async def delete_ended(self, state: TaskState, before: int) -> int:
        old = []
        for task_id in self._ended:
            head = self._tasks[task_id].head
            if head.updated_at > before:
                break
            if head.state is state:
                old.append(task_id)
        for task_id in old:
            self._drop(task_id)
        return len(old)

    async def delete_excess(self, at_most: int) -> int:
        oldest = list(islice(self._ended, max(len(self._ended) - at_most, 0)))
        for task_id in oldest:
            self._drop(task_id)
        return len(oldest)

    async def clear_remains(self) -> int:
        return 0

    async def delete_receipts(self, now: int) -> int:
        for scope, receipts in list(self._receipts.items()):
            expired: dict[str, set[bytes]] = {}
            for digest, receipt in receipts.items():
                if receipt.until > now:
                    break
                expired.setdefault(receipt.task_id, set()).add(digest)
            for task_id, digests in expired.items():
                task = self._tasks[task_id]
                task.receipts = tuple(digest for digest in task.receipts if digest not in digests)
                for digest in digests:
                    del receipts[digest]
            if not receipts:
                del self._receipts[scope]
        return 0

    async def delete_contexts(self, before: int) -> int:
        if not self._contexts or next(iter(self._contexts.values()))[1] > before:
            return 0
        live = {(task.scope, task.context_id) for task in self._tasks.values() if task.id not in self._ended}
        for key, (_, changed_at) in list(self._contexts.items()):
            if changed_at > before:
                break
            if key not in live:
                del self._contexts[key]
        return 0

    async def delete_accesses(self, before: int) -> int:
        while self._accesses and self._accesses[0].at <= before:
            self._accesses.popleft()
        return 0

    async def overgrown(self, events: int) -> AsyncIterator[str]:
        # Logs are trimmed as they grow.
        return
        yield

    async def trim(self, task_id: str, keep: int) -> int:
        return 0


class _MemoryListing:
    """The tasks that match a query; all are looked at for each page."""

    def __init__(self, tasks: dict[str, MemoryTask], query: ListQuery) -> None:
        self._query = query
        since = earliest(query)
        self._matches = {
            task.id: task
            for task in tasks.values()
            if is_reached(task.scope, query.scope, query.reach)
            and (query.context_id is None or task.context_id == query.context_id)
            and (query.state is None or task.head.state == query.state)
            and task.head.status_at >= since
        }

    async def count(self) -> int:
        return len(self._matches)

    async def in_order(self, cursor: Cursor, limit: int) -> list[tuple[int, str]]:
        last = -cursor.status_at, cursor.task_id
        places = sorted(
            (-task.head.status_at, task.id)
            for task in self._matches.values()
            if task.head.status_at <= cursor.as_of and (-task.head.status_at, task.id) > last
        )
        return [(-time, task_id) for time, task_id in places[:limit]]

    async def since_changed(self, cursor: Cursor, limit: int) -> list[str]:
        return sorted(
            task.id
            for task in self._matches.values()
            if task.head.status_at > cursor.as_of >= task.head.created_at and task.id > cursor.task_id
        )[:limit]

    async def load(self, task_ids: list[str]) -> list[StoredTask]:
        with_artifacts = self._query.with_artifacts
        tasks = [self._matches[task_id] for task_id in task_ids]
        count = fitting((task.size(with_artifacts=with_artifacts) for task in tasks), self._query)
        return [task.stored(with_artifacts=with_artifacts) for task in tasks[:count]]
