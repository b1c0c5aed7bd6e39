"""The engine in the process's own memory: for tests, demos and agents whose tasks may die with the process.

Single-threaded and never waiting, so every method is atomic by itself. Ended tasks are dropped by age and number
unless told otherwise, and by size in any case, because memory is the one store that must not only ever grow.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import islice

import msgspec

from errands import lifecycle
from errands.clock import Clock, system_clock
from errands.engines.base import Abandoned, Events, Ids, Retention, Running, Tasks
from errands.engines.fanout import READ_SIZE
from errands.engines.listing import still_matching, whole
from errands.engines.local import LocalEngine
from errands.engines.memory.rows import Row
from errands.engines.paging import Cursor, Found, fitting, read_token
from errands.errors import ConcurrencyError, DuplicateMessageError, TaskNotFoundError
from errands.model.core import PAUSED_STATES, TERMINAL_STATES, Task, TaskState
from errands.model.log import (
    KEEP,
    LEASE,
    NEW,
    READY,
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

#: Bytes of content that ended tasks may hold together. Beyond that, those that ended first are dropped.
MAX_ENDED_BYTES = 128 * 1024 * 1024

DEFAULT_RETENTION = Retention(ended_after=3600.0, ended_at_most=10_000, events_per_task=20_000, contexts_after=86_400.0)

# Inside the class, `list` is the method.
Signals = list[LeaseSignal]


class MemoryEngine(LocalEngine):
    """Everything in this process, and gone with it."""

    name = "memory"
    durable = False
    shared = False

    def __init__(self, *, clock: Clock = system_clock, retention: Retention | None = None) -> None:
        super().__init__(clock=clock, retention=retention or DEFAULT_RETENTION)
        self._rows: dict[str, Row] = {}
        #: (due_at, task_id), a heap: entries that no longer match their row are passed over.
        self._ready: list[tuple[int, str]] = []
        self._leased: set[str] = set()
        #: No lease runs out before.
        self._next_expiry = 2**62
        #: By digest: the task, when it was accepted, and when that no longer counts.
        self._receipts: dict[Scope, dict[bytes, tuple[str, int, int]]] = {}
        #: What was saved, and when; the longest unchanged first.
        self._contexts: OrderedDict[tuple[Scope, str], tuple[bytes, int]] = OrderedDict()
        #: Live tasks that are wanted canceled.
        self._canceling: set[str] = set()
        #: Tasks that wait for one user's answer.
        self._asking: set[str] = set()
        #: Paused tasks that no worker holds.
        self._paused: set[str] = set()
        #: Ended tasks and their sizes in bytes, the longest ended first.
        self._ended: OrderedDict[str, int] = OrderedDict()
        self._ended_bytes = 0
        #: Events of a task before the oldest are cut off: a tenth over the bound, so that it happens rarely.
        keep = self.retention.events_per_task
        self._most_events = float("inf") if keep is None else keep + keep // 10
        self._swept_at = 0

    async def open(self) -> None:
        return None

    async def close(self) -> None:
        self.disconnect()

    async def check(self) -> None:
        return None

    async def commit(self, change: Change) -> int:
        task_id = change.task_id
        if change.receipt is not None:
            self._check_receipt(change.receipt, change)
        row = self._rows.get(task_id)
        if row is None:
            lifecycle.accept(None, change)
            row = self._rows[task_id] = Row(
                task_id, change.scope, change.context_id, lifecycle.advance(NEW, change), []
            )
        elif row.scope == change.scope:
            lifecycle.accept(row.head, change)
            row.unpack()
            row.head = lifecycle.advance(row.head, change)
        else:
            lifecycle.accept(None, change)
            raise ConcurrencyError(f"the id {task_id} is taken")
        head = row.head
        events: list[Event] = []
        version = head.version - len(change.events)
        for draft in change.events:
            version += 1
            events.append(Event(version, draft.kind, draft.data))
        row.events.extend(events)
        if change.receipt is not None:
            receipts = self._receipts.setdefault(change.scope, {})
            # An expired one that is replaced moves to the end: they are in the order of their time.
            receipts.pop(change.receipt, None)
            receipts[change.receipt] = (task_id, change.at, change.receipt_until)
            row.receipts += (change.receipt,)
        if change.context is not None:
            self._contexts[row.scope, row.context_id] = change.context, change.at
            self._contexts.move_to_end((row.scope, row.context_id))
        stored = None if change.fold is None else StoredTask(task=change.fold, head=head, scope=row.scope)
        if change.work is not KEEP:
            self._place(task_id, change)
        if head.asks:
            self._asking.add(task_id)
        elif self._asking:
            self._asking.discard(task_id)
        if head.due_at is None and head.state in PAUSED_STATES:
            self._paused.add(task_id)
        elif self._paused:
            self._paused.discard(task_id)
        if head.state in TERMINAL_STATES:
            self._end(task_id, row, change.fold)
        else:
            if change.fold is not None:
                row.snapshot, row.folded = change.fold, head.version
            if change.cancel_requested:
                self._canceling.add(task_id)
        self._fanout.publish(task_id, events, head.state, stored)
        if change.work is READY or change.cancel_requested:
            self._wake_workers()
        if len(row.events) > self._most_events:
            assert self.retention.events_per_task is not None
            row.trim(self.retention.events_per_task)
        return head.version

    def _check_receipt(self, receipt: bytes, change: Change) -> None:
        receipts = self._receipts.get(change.scope)
        known = receipts and receipts.get(receipt)
        if known and known[1] >= change.receipt_since:
            raise DuplicateMessageError(known[0])

    def _place(self, task_id: str, change: Change) -> None:
        """Moves a task in the queue."""
        if change.work is LEASE:
            self._lease(task_id, change.due_at)
            return
        self._leased.discard(task_id)
        if change.work is READY:
            heapq.heappush(self._ready, (change.due_at, task_id))

    def _lease(self, task_id: str, until: int) -> None:
        self._leased.add(task_id)
        if until < self._next_expiry:
            self._next_expiry = until

    def _end(self, task_id: str, row: Row, task: Task | None) -> None:
        row.pack(task)
        if self._canceling:
            self._canceling.discard(task_id)
        size = row.kept_bytes
        self._ended_bytes += size - self._ended.get(task_id, 0)
        self._ended[task_id] = size
        if self.retention.ended_at_most is not None and len(self._ended) > self.retention.ended_at_most:
            self._drop(next(iter(self._ended)))
        while self._ended_bytes > MAX_ENDED_BYTES and len(self._ended) > 1:
            self._drop(next(iter(self._ended)))

    def _row(self, task_id: str, scope: Scope) -> Row:
        row = self._rows.get(task_id)
        if row is None or row.scope != scope:
            raise TaskNotFoundError(taskId=task_id)
        return row

    async def load(self, task_id: str, scope: Scope) -> StoredTask:
        return self._row(task_id, scope).stored()

    async def scope_of(self, task_id: str) -> Scope:
        row = self._rows.get(task_id)
        if row is None:
            raise TaskNotFoundError(taskId=task_id)
        return row.scope

    async def list(self, query: ListQuery) -> ListPage:
        cursor = read_token(query.page_token) if query.page_token else Cursor(self.clock(), 2**62, "")
        matches = {task_id: row for task_id, row in self._rows.items() if row.matches(query)}
        found = _find(matches, cursor, query.page_size)
        rows = [matches[task_id] for task_id in found.ids]
        count = fitting((row.size(with_artifacts=query.with_artifacts) for row in rows), query.page_bytes)
        shown = [row.stored() if query.with_artifacts else row.without_artifacts() for row in rows[:count]]
        return ListPage(
            tasks=shown if query.state is None else still_matching(shown, query),
            next_page_token=found.token(count),
            total_size=len(matches),
        )

    async def every_task(self) -> AsyncIterator[StoredTask]:
        for row in list(self._rows.values()):
            yield row.stored()

    async def asking(self, query: AskingQuery) -> Tasks:
        task_ids = self._asking if query.task_id is None else self._asking & {query.task_id}
        rows = [(task_id, self._rows[task_id]) for task_id in task_ids]
        found = [(row.head.status_at, task_id, row) for task_id, row in rows if row.is_asked(query)]
        found.sort(key=lambda item: item[:2])
        return whole(row.without_artifacts() for _, _, row in found[: query.limit])

    async def abandoned(self, agent: str, paused_by: int, created_by: int, limit: int) -> Abandoned:
        paused = ((task_id, self._rows[task_id]) for task_id in self._paused)
        found = (
            (task_id, row.scope)
            for task_id, row in paused
            if row.scope.agent == agent and (row.head.status_at <= paused_by or row.head.created_at <= created_by)
        )
        return list(islice(found, limit))

    async def delete(self, task_id: str, scope: Scope) -> None:
        row = self._row(task_id, scope)
        if row.head.state not in TERMINAL_STATES:
            raise ConcurrencyError(f"task {task_id} is {row.head.state.short}: only ended tasks can be deleted")
        self._drop(task_id)

    async def load_context(self, scope: Scope, context_id: str) -> bytes | None:
        found = self._contexts.get((scope, context_id))
        return None if found is None else found[0]

    async def _lease_due(self, worker: str, agents: Sequence[str], limit: int, until: int) -> Tasks:
        now = self.clock()
        claimed: list[StoredTask] = []
        others: list[tuple[int, str]] = []
        self._expire_leases(now)
        while self._ready and self._ready[0][0] <= now and len(claimed) < limit:
            due_at, task_id = entry = heapq.heappop(self._ready)
            if not self._is_ready(due_at, task_id):
                continue
            row = self._rows[task_id]
            if row.scope.agent not in agents:
                others.append(entry)
                continue
            row.head = msgspec.structs.replace(row.head, attempt=row.head.attempt + 1, worker=worker, due_at=until)
            self._lease(task_id, until)
            claimed.append(row.stored())
        for entry in others:
            heapq.heappush(self._ready, entry)
        return claimed

    def _expire_leases(self, now: int) -> None:
        """Tasks whose lease has run out are due again."""
        if now < self._next_expiry:
            return
        self._next_expiry = 2**62
        for task_id in list(self._leased):
            due_at = self._rows[task_id].head.due_at
            assert due_at is not None
            if due_at <= now:
                self._leased.discard(task_id)
                heapq.heappush(self._ready, (due_at, task_id))
            elif due_at < self._next_expiry:
                self._next_expiry = due_at

    async def extend(self, worker: str, leases: Sequence[Lease], until: int) -> Signals:
        signals: list[LeaseSignal] = []
        for task_id, attempt in leases:
            row = self._rows.get(task_id)
            if row is None or row.head.worker != worker or row.head.attempt != attempt:
                signals.append(LeaseSignal(task_id, lost=True, cancel_requested=False))
                continue
            row.head = msgspec.structs.replace(row.head, due_at=until)
            self._lease(task_id, until)
            if row.head.cancel_requested:
                signals.append(LeaseSignal(task_id, lost=False, cancel_requested=True))
        return signals

    async def wanted_canceled(self, worker: str) -> Ids:
        return [task_id for task_id in self._canceling if self._rows[task_id].head.worker == worker]

    async def running(self) -> Running:
        now = self.clock()
        held = [(task_id, self._rows[task_id]) for task_id in self._leased]
        found = [
            RunningTask(task_id=task_id, context_id=row.context_id, scope=row.scope, head=row.head)
            for task_id, row in held
            if row.head.due_at is not None and row.head.due_at > now
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
        if self._rows[task_id].scope.agent not in agents:
            # Seldom: agents that share a process's memory have to be told apart.
            waiting = (due for due, other in self._ready if self._is_ready(due, other, agents))
            oldest = min(waiting, default=now + 1)
        return None if oldest > now else now - oldest

    def _is_ready(self, due_at: int, task_id: str, agents: Sequence[str] | None = None) -> bool:
        """Whether an entry of the queue still says what is true: not when it was settled or claimed since."""
        row = self._rows.get(task_id)
        if row is None or task_id in self._leased or row.head.due_at != due_at:
            return False
        return agents is None or row.scope.agent in agents

    async def read(self, task_id: str, scope: Scope, after: int, limit: int = READ_SIZE) -> LogSlice:
        return self._row(task_id, scope).slice(after, limit)

    async def records(self, task_id: str, scope: Scope) -> Events:
        row = self._row(task_id, scope)
        return row.records + [event for event in row.log() if event.kind == "record"]

    async def sweep(self, every: float = 0.0) -> int:
        now = self.clock()
        if now - self._swept_at < every * 1000:
            return 0
        self._swept_at = now
        before = len(self._ended)
        self._drop_ended(self.retention.moments(now))
        self._drop_contexts(now)
        self._drop_receipts(now)
        while self.retention.ended_at_most is not None and len(self._ended) > self.retention.ended_at_most:
            self._drop(next(iter(self._ended)))
        return before - len(self._ended)

    def _drop_ended(self, moments: dict[TaskState, int]) -> None:
        youngest = max(moments.values(), default=0)
        for task_id in list(self._ended):
            head = self._rows[task_id].head
            if head.updated_at > youngest:
                break
            if head.updated_at <= moments.get(head.state, 0):
                self._drop(task_id)

    def _drop_contexts(self, now: int) -> None:
        before = self.retention.contexts_before(now)
        if before is None or not self._contexts or next(iter(self._contexts.values()))[1] > before:
            return
        live = {(row.scope, row.context_id) for task_id, row in self._rows.items() if task_id not in self._ended}
        for key, (_, changed_at) in list(self._contexts.items()):
            if changed_at > before:
                break
            if key not in live:
                del self._contexts[key]

    def _drop_receipts(self, now: int) -> None:
        for scope, receipts in list(self._receipts.items()):
            expired: dict[str, set[bytes]] = {}
            for digest, (task_id, _, until) in receipts.items():
                if until > now:
                    break
                expired.setdefault(task_id, set()).add(digest)
            for task_id, digests in expired.items():
                row = self._rows[task_id]
                row.receipts = tuple(digest for digest in row.receipts if digest not in digests)
                for digest in digests:
                    del receipts[digest]
            if not receipts:
                del self._receipts[scope]

    def _drop(self, task_id: str) -> None:
        row = self._rows.pop(task_id)
        self._ended_bytes -= self._ended.pop(task_id, 0)
        self._leased.discard(task_id)
        receipts = self._receipts.get(row.scope, {})
        for receipt in row.receipts:
            # One that had expired may belong to a newer task by now.
            if receipts.get(receipt, ("",))[0] == task_id:
                del receipts[receipt]
        if row.receipts and not receipts:
            self._receipts.pop(row.scope, None)


def _find(matches: Mapping[str, Row], cursor: Cursor, size: int) -> Found:
    """The two phases of a listing, as `errands.engines.paging` explains them."""
    heads = [(task_id, row.head) for task_id, row in matches.items()]
    walked: list[tuple[int, str]] = []
    if not cursor.changed:
        last = -cursor.status_at, cursor.task_id
        times = sorted((-head.status_at, task_id) for task_id, head in heads if head.status_at <= cursor.as_of)
        walked = [(-time, task_id) for time, task_id in times[bisect_right(times, last) :]]
    changed: list[str] = []
    if len(walked) <= size:
        after = cursor.second_phase().task_id
        changed = sorted(
            task_id
            for task_id, head in heads
            if head.status_at > cursor.as_of and head.created_at <= cursor.as_of and task_id > after
        )
    return Found.of(cursor, size, walked, changed)
