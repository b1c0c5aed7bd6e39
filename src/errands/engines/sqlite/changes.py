"""Writing a batch of changes: looked up together, judged one by one, stored with a handful of statements."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from errands import lifecycle
from errands.engines.sqlite.records import MAX_VERSION, VERSION_BITS, Record, read_records
from errands.engines.sqlite.sql import QUERIES, repeated
from errands.errors import ConcurrencyError, DuplicateMessageError, ErrandsError, StorageError
from errands.model.base import encode
from errands.model.core import TaskState
from errands.model.log import Change, Event, Head, Scope, StoredTask, Work

#: Rows per statement at most: beyond that a longer statement gains nothing and is prepared anew too often.
ROWS = 64
#: Bytes that are bound to a statement at most. Statements are cached with a copy of what was last bound to them.
MAX_BOUND = 16 * 1024


class Written(NamedTuple):
    """An accepted change, as this process is to hear of it once it is durable."""

    task_id: str
    events: list[Event]
    version: int
    state: TaskState
    #: The whole task, when the change brought it along.
    stored: StoredTask | None
    wakes_workers: bool


def write_changes(connection: sqlite3.Connection, changes: Sequence[Change]) -> list[Written | ErrandsError]:
    """Writes what is acceptable and says of each change what became of it. The caller holds the transaction."""
    batch = _Batch(connection, changes)
    outcomes: list[Written | ErrandsError] = []
    for change in changes:
        try:
            outcomes.append(batch.add(change))
        except ErrandsError as error:
            outcomes.append(error)
    batch.store()
    return outcomes


class _Batch:
    """The tasks of a batch as they stand after the changes so far, and the rows to be written for them."""

    def __init__(self, connection: sqlite3.Connection, changes: Sequence[Change]) -> None:
        self._connection = connection
        ids = encode({change.task_id for change in changes}).decode()
        records, self._last_no = connection.execute(QUERIES["look"], (ids,)).fetchone()
        self._records: dict[str, Record] = {record.id: record for record in read_records(records)}
        self._known = self._known_receipts([change.receipt for change in changes if change.receipt is not None])
        self._touched: dict[str, Record] = {}
        self._snapshots: dict[str, bytes] = {}
        # Flat, as they are bound: row after row in one list.
        self._events: list[object] = []
        self._receipts: list[object] = []
        #: Events and snapshots that are too large to be bound: place, kind and data.
        self._large: list[tuple[int, str, bytes]] = []
        self._contexts: list[tuple[object, ...]] = []

    def _known_receipts(self, digests: list[bytes]) -> dict[tuple[bytes, Scope], tuple[str, int]]:
        known: dict[tuple[bytes, Scope], tuple[str, int]] = {}
        for start in range(0, len(digests), ROWS):
            chunk = digests[start : start + ROWS]
            rows = self._connection.execute(repeated("known_receipts", len(chunk)), chunk).fetchall()
            for digest, at, task_id, *scope in rows:
                key = digest, Scope(*scope)
                if key not in known or known[key][1] < at:
                    known[key] = task_id, at
        return known

    def add(self, change: Change) -> Written:
        if change.receipt is not None:
            self._check_receipt(change.receipt, change)
        record = self._records.get(change.task_id)
        if record is not None and record.scope != change.scope:
            lifecycle.accept(None, change)
            raise ConcurrencyError(f"the id {change.task_id} is taken")
        lifecycle.accept(None if record is None else record.head, change)
        # Before anything is noted: what cannot be encoded must leave no trace.
        snapshot = None if change.fold is None else encode(change.fold)
        if record is None:
            record = self._new_record(change)
        if record.head.version + len(change.events) > MAX_VERSION:
            raise StorageError(f"the log of task {change.task_id} is full: it holds {MAX_VERSION} events")
        return self._note(record, change, snapshot)

    def _check_receipt(self, digest: bytes, change: Change) -> None:
        known = self._known.get((digest, change.scope))
        if known is not None and known[1] >= change.receipt_since:
            raise DuplicateMessageError(known[0])

    def _new_record(self, change: Change) -> Record:
        self._last_no = (self._last_no or 0) + 1
        record = Record(self._last_no, change.task_id, *change.scope, change.context_id, 0, 0, Head())
        self._records[change.task_id] = record
        return record

    def _note(self, record: Record, change: Change, snapshot: bytes | None) -> Written:
        events: list[Event] = []
        rows = self._events
        version = record.head.version
        base = record.no << VERSION_BITS
        for draft in change.events:
            version += 1
            events.append(Event(version, draft.kind, draft.data))
            if len(draft.data) <= MAX_BOUND:
                rows += (base + version, draft.kind, draft.data)
            else:
                self._large.append((base + version, draft.kind, draft.data))
        record.head = head = lifecycle.advance(record.head, change)
        self._touched[record.id] = record
        stored = None
        if change.fold is not None and snapshot is not None:
            self._snapshots[record.id] = snapshot
            record.folded = version
            stored = StoredTask(task=change.fold, head=head, scope=change.scope)
        if change.receipt is not None:
            self._known[change.receipt, change.scope] = record.id, change.at
            self._receipts += (change.receipt, record.id, change.at, change.receipt_until)
        if change.context is not None:
            self._contexts.append((*record.scope, record.context_id, change.context, change.at))
        wakes = change.work is Work.READY or bool(change.cancel_requested)
        return Written(record.id, events, version, head.state, stored, wakes)

    def store(self) -> None:
        for task_id, snapshot in self._snapshots.items():
            base = self._records[task_id].base
            if len(snapshot) <= MAX_BOUND:
                self._events += (base, "snapshot", snapshot)
            else:
                self._large.append((base, "snapshot", snapshot))
        tasks: list[object] = []
        for record in self._touched.values():
            tasks += _columns(record)
        self._write("insert_events", self._events, 3)
        for place, kind, data in self._large:
            write_large(self._connection, place, kind, data)
        self._write("upsert_tasks", tasks, 22)
        self._write("upsert_receipts", self._receipts, 4)
        if self._contexts:
            self._connection.executemany(QUERIES["save_context"], self._contexts)

    def _write(self, query: str, values: list[object], width: int) -> None:
        step = ROWS * width
        for start in range(0, len(values), step):
            chunk = values if len(values) <= step else values[start : start + step]
            rows = len(chunk) // width
            if self._connection.execute(repeated(query, rows), chunk).rowcount != rows:
                raise StorageError(f"{query}: a row is not as it was when it was looked at; nothing was written")


def write_large(connection: sqlite3.Connection, place: int, kind: str, data: bytes) -> None:
    """Writes one event or snapshot straight into its row, so that no cached statement keeps a copy of it."""
    if connection.execute(QUERIES["reserve_event"], (place, kind, len(data))).rowcount != 1:
        raise StorageError("reserve_event: a row is not as it was when it was looked at; nothing was written")
    with connection.blobopen("events", "data", place) as blob:
        blob.write(data)


def _columns(record: Record) -> tuple[object, ...]:
    head = record.head
    return (
        record.no,
        record.id,
        record.tenant,
        record.owner,
        record.agent,
        record.context_id,
        head.version,
        # Plain strings and numbers: SQLite's module is slow with subclasses of them.
        head.state.value,
        head.attempt,
        head.attempt_base,
        head.given_back,
        head.worker,
        head.due_at,
        head.unread,
        int(head.cancel_requested),
        int(head.direct),
        head.asks,
        head.created_at,
        head.updated_at,
        head.status_at,
        record.folded,
        record.trimmed,
    )
