"""A batch of changes: locked together, judged one by one, stored with one statement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from errands import lifecycle
from errands.engines.postgres.connection import Connection
from errands.engines.postgres.news import Told, payloads
from errands.engines.postgres.records import MAX_VERSION, Record, read_record, receipt_key, scope_key, storable
from errands.engines.postgres.sql import QUERIES
from errands.errors import ConcurrencyError, DuplicateMessageError, ErrandsError, StorageError
from errands.model.base import encode
from errands.model.core import UNSPECIFIED, TaskState
from errands.model.log import READY, Change, Event, Head, Scope, StoredTask

#: Numbers of new tasks are taken so many at a time.
NUMBERS = 256
#: Several processes have readers of a task.
EVERYBODY = "*"


class Written(NamedTuple):
    """An accepted change, as this process is to hear of it once it is durable."""

    task_id: str
    events: list[Event]
    version: int
    state: TaskState
    #: The whole task, when the change brought it along.
    stored: StoredTask | None
    wakes_workers: bool
    #: Whether the others know by now that this process has readers of the task.
    is_watched: bool


class Process(NamedTuple):
    """Who writes."""

    name: str
    #: The first of the tallies that are its own; each lane has one, so that none waits for another's commit.
    shard: int
    #: On which processes tell each other.
    channel: str
    #: Whether somebody here wants to hear about a task.
    watches: Callable[[str], bool]


#: What came of each change: it is written, or the error.
Outcomes = list[Written | ErrandsError]


class Changes:
    """Writes batches; keeps the numbers for new tasks."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._numbers: list[int] = []

    async def write(
        self, connection: Connection, changes: Sequence[Change], lane: int, number: int
    ) -> tuple[Outcomes, bool]:
        """Writes what is acceptable, as the batch of this number; says of each what became of it, and whether anything
        was written.

        The caller holds the transaction. The first try takes it that new tasks are new and that no message came
        before, which is nearly always so; when it is not, the next one looks.
        """
        new = sum(change.expected == 0 for change in changes)
        for careful in (False, True, True, True):
            batch = _Batch(self.process, lane, await self._take_numbers(connection, new))
            await batch.look(connection, changes, careful)
            outcomes = batch.judge(changes)
            if batch.is_doubtful and not careful:
                continue
            if batch.is_empty:
                return outcomes, False
            if await batch.store(connection, number):
                return outcomes, True
            await connection.execute("ROLLBACK; BEGIN")
        raise StorageError("Other processes keep writing to the same tasks; nothing was written. Try again")

    def forget_numbers(self) -> None:
        """After a lost connection: a server that crashed may give out the same numbers again."""
        self._numbers.clear()

    async def _take_numbers(self, connection: Connection, count: int) -> list[int]:
        """Numbers for so many new tasks, the lowest last."""
        if not count:
            return []
        if len(self._numbers) < count:
            rows = await connection.fetch(QUERIES["numbers"], max(count, NUMBERS))
            self._numbers[:0] = [row[0] for row in reversed(rows)]
        taken = self._numbers[-count:]
        del self._numbers[-count:]
        return taken


class _Batch:
    """The tasks of a batch as they stand after the changes so far, and the rows to be written for them."""

    def __init__(self, process: Process, lane: int, numbers: list[int]) -> None:
        self._process = process
        self._lane = lane
        self._numbers = numbers
        self._records: dict[str, Record] = {}
        #: By key: the task that accepted the message, when, and whether in this batch.
        self._known: dict[bytes, tuple[str, int]] = {}
        self._touched: dict[str, Record] = {}
        self._snapshots: dict[int, bytes] = {}
        self._events: list[tuple[int, int, str, bytes]] = []
        self._receipts: dict[bytes, tuple[str, int, int]] = {}
        self._contexts: dict[tuple[Scope, str], tuple[bytes, int]] = {}
        self._moved: dict[tuple[int, str], int] = {}
        self._told: dict[str, Told] = {}
        self._wakes = False
        #: A message was refused for a reason that counts only if it did not come before, and nobody has looked.
        self.is_doubtful = False

    async def look(self, connection: Connection, changes: Sequence[Change], careful: bool) -> None:
        """Locks the tasks. One that is to be created is taken to be new unless there is reason to be careful."""
        first = {change.task_id: change for change in reversed(changes)}
        ids = [storable(task_id) for task_id, change in first.items() if careful or change.expected != 0]
        if ids:
            for row in await connection.fetch(QUERIES["lock"], ids):
                record = read_record(row)
                self._records[record.id] = record
        if careful:
            keys = [receipt_key(change.scope, change.receipt) for change in changes if change.receipt is not None]
            for key, task_id, at in await connection.fetch(QUERIES["known_receipts"], keys) if keys else ():
                self._known[key] = task_id, at

    def judge(self, changes: Iterable[Change]) -> Outcomes:
        outcomes: Outcomes = []
        for change in changes:
            try:
                outcomes.append(self._add(change))
            except ErrandsError as error:
                outcomes.append(error)
                if change.receipt is not None:
                    self.is_doubtful = True
        return outcomes

    def _add(self, change: Change) -> Written:
        key = None
        if change.receipt is not None:
            key = receipt_key(change.scope, change.receipt)
            known = self._known.get(key)
            if known is not None and known[1] >= change.receipt_since:
                raise DuplicateMessageError(known[0])
        record = self._records.get(change.task_id)
        if record is not None and record.scope != change.scope:
            lifecycle.accept(None, change)
            raise ConcurrencyError(f"the id {change.task_id} is taken")
        lifecycle.accept(None if record is None else record.head, change)
        # Before anything is noted: what cannot be encoded must leave no trace.
        snapshot = None if change.fold is None else encode(change.fold)
        if record is None:
            record = Record(change.task_id, self._numbers.pop(), change.scope, change.context_id, 0, 0, "", Head())
            self._records[change.task_id] = record
        if record.head.version + len(change.events) > MAX_VERSION:
            raise StorageError(f"the log of task {change.task_id} is full: it holds {MAX_VERSION} events")
        if key is not None:
            self._known[key] = record.id, change.at
            self._receipts[key] = record.id, change.at, change.receipt_until
        return self._note(record, change, snapshot)

    def _note(self, record: Record, change: Change, snapshot: bytes | None) -> Written:
        before = version = record.head.version
        events: list[Event] = []
        for draft in change.events:
            version += 1
            events.append(Event(version, draft.kind, draft.data))
            self._events.append((record.no, version, draft.kind, draft.data))
        head = lifecycle.advance(record.head, change)
        if head.state is not record.head.state:
            self._count(record.scope, record.head.state, head.state)
        record.head = head
        self._touched[record.id] = record
        stored = None
        if change.fold is not None and snapshot is not None:
            self._snapshots[record.no] = snapshot
            record.folded = version
            stored = StoredTask(task=change.fold, head=head, scope=change.scope)
        if change.context is not None:
            self._contexts[record.scope, record.context_id] = change.context, change.at
        is_watched = self._process.watches(record.id)
        if is_watched:
            record.watcher = self._process.name if record.watcher in ("", self._process.name) else EVERYBODY
        if events and record.watcher not in ("", self._process.name):
            self._told.setdefault(record.id, Told(record.id, before))
        wakes = change.work is READY or bool(change.cancel_requested)
        self._wakes = self._wakes or wakes
        return Written(record.id, events, version, head.state, stored, wakes, is_watched)

    def _count(self, scope: Scope, before: TaskState, after: TaskState) -> None:
        key = scope_key(scope)
        if before is not UNSPECIFIED:
            self._moved[key, before.value] = self._moved.get((key, before.value), 0) - 1
        self._moved[key, after.value] = self._moved.get((key, after.value), 0) + 1

    @property
    def is_empty(self) -> bool:
        return not self._touched

    async def store(self, connection: Connection, number: int) -> bool:
        """Writes it all; false when somebody else was faster."""
        self._events += [(no, 0, "snapshot", data) for no, data in self._snapshots.items()]
        moved = sorted((scope, state, count) for (scope, state), count in self._moved.items() if count)
        scopes, states, counts = _columns(moved, 3)
        tasks, events, receipts, _ = await connection.fetchrow(
            QUERIES["store"],
            *_columns(map(_task_row, sorted(self._touched.values(), key=_id)), 24),
            *_columns(self._events, 4),
            *_columns(
                ((key, storable(task_id), at, until) for key, (task_id, at, until) in sorted(self._receipts.items())),
                4,
            ),
            *_columns(map(_context_row, sorted(self._contexts.items())), 6),
            scopes,
            states,
            self._process.shard + self._lane,
            counts,
            self._process.channel,
            payloads(self._process.name, self._wakes, list(self._told.values())),
            self._process.name,
            self._lane,
            number,
        )
        return bool((tasks, events, receipts) == (len(self._touched), len(self._events), len(self._receipts)))


def _id(record: Record) -> str:
    return record.id


def _columns(rows: Iterable[tuple[Any, ...]], width: int) -> Sequence[Sequence[Any]]:
    """Rows as columns: how arrays are passed."""
    return list(zip(*rows, strict=True)) or [()] * width


def _context_row(item: tuple[tuple[Scope, str], tuple[bytes, int]]) -> tuple[Any, ...]:
    (scope, context_id), (value, at) = item
    return (*map(storable, scope), storable(context_id), value, at)


def _task_row(record: Record) -> tuple[Any, ...]:
    head, scope = record.head, record.scope
    return (
        storable(record.id),
        record.no,
        scope_key(scope),
        storable(scope.tenant),
        storable(scope.owner),
        storable(scope.agent),
        storable(record.context_id),
        head.version,
        head.state.value,
        head.attempt,
        head.attempt_base,
        head.given_back,
        storable(head.worker),
        head.due_at,
        head.unread,
        head.cancel_requested,
        head.direct,
        head.created_at,
        head.updated_at,
        head.status_at,
        record.folded,
        record.trimmed,
        record.watcher,
        storable(head.asks),
    )
