"""The one thread that writes. It stores whatever is queued as one transaction: group commit.

The event loop queues jobs and is notified once they are durable; the thread does not touch objects of the loop.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count, groupby
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

import msgspec

from errands import lifecycle
from errands.engines.commit import (
    Accepted,
    CommitBatch,
    CommitCounts,
    CommitJob,
    CommitQueue,
    Outcome,
    TaskRow,
    failures,
    lease_signals,
)
from errands.engines.damage import readable_pushes
from errands.engines.sqlite import queries
from errands.engines.sqlite.connection import FileError, ReaderThreads, ServedFile, SQLiteOptions, explain
from errands.engines.sqlite.queries import QUERIES, VERSION_BITS, json_text
from errands.engines.sqlite.schema import open_writer
from errands.errors import ErrandsError, StorageError
from errands.lifecycle import Judged, Receipt, receipt_until
from errands.model.log import Change, Delivery, Head, Lease, LeaseSignal, OutboxEntry, Scope, StoredTask

_T = TypeVar("_T")

MAX_JOBS = 512
MAX_BYTES = 8_000_000
#: Seconds between checks that the files are still those that were opened. A check at every commit costs a twentieth of
#: a send's time, and what was acknowledged before the file was deleted is lost with it in any case.
CHECK_FILE_EVERY = 0.002
#: Rows per statement: beyond that a longer statement gains nothing and is prepared anew too often.
ROWS = 64
#: Tasks that are remembered.
MAX_KNOWN = 10_000
#: Bytes that are bound to a statement at most. Statements are cached with a copy of what was last bound to them.
MAX_BOUND = 16 * 1024
#: More than fits one page of the file.
PROBE_BYTES = 8192


class OutboxAction(NamedTuple):
    """A function that is called inside the transaction that writes, and that changes no task."""

    action: Callable[[sqlite3.Connection], Any]


class SQLiteStore:
    """The thread and its queue. `deliver` and `others_wrote` are called on the event loop."""

    #: The files as they were opened, and the threads that read them; set by `start`.
    file: ServedFile
    readers: ReaderThreads

    def __init__(
        self,
        options: SQLiteOptions,
        poll_interval: float,
        deliver: Callable[[list[Outcome]], None],
        others_wrote: Callable[[], None],
        counts: CommitCounts | None = None,
    ) -> None:
        self._counts = counts
        self._options = options
        self._poll_interval = poll_interval
        self._deliver = deliver
        self._others_wrote = others_wrote
        self._loop = asyncio.get_running_loop()
        #: Submitted in this turn of the event loop.
        self._pending: list[CommitJob] = []
        #: On their way to the thread; None ends it.
        self._flushed: SimpleQueue[list[CommitJob] | None] = SimpleQueue()
        #: The thread's own.
        self._queue = CommitQueue(MAX_JOBS, MAX_BYTES)
        self._thread = threading.Thread(target=self._run, name="errands-sqlite-writer", daemon=True)
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        #: Tasks that are run here, as they were last stored: what they are judged against without looking them up.
        #: Emptied by everything but changes, and when another process has written.
        self._known: dict[str, TaskRow] = {}
        #: The data versions for which `_known` is true, and at the last poll.
        self._known_version = self._data_version = 0
        self._polled_at = time.monotonic()
        #: Whether the files were not where they were opened when they were last looked for.
        self._is_gone = False
        self._checked_at = 0.0
        #: How many transactions were committed; this shows what group commit saves.
        self.transactions = 0

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    async def start(self) -> None:
        """Open the file. Raises `StorageError`; then no thread is left."""
        self._thread.start()
        try:
            await self._opened
        except BaseException:
            self._flushed.put(None)
            self._thread.join()
            raise
        self.readers = ReaderThreads(self._options, self.file)

    def commit(self, change: Change) -> asyncio.Future[Head]:
        return self._submit(change)

    def do(self, action: Callable[[sqlite3.Connection], _T]) -> asyncio.Future[_T]:
        """Call a function inside the transaction that writes."""
        return self._submit(action)

    def do_in_outbox(self, action: Callable[[sqlite3.Connection], _T]) -> asyncio.Future[_T]:
        """Do the same with a function that does not change tasks, so that cached tasks stay valid."""
        return self._submit(OutboxAction(action))

    def _submit(self, work: Any) -> asyncio.Future[Any]:
        """Queue work at the end of this turn of the event loop.

        Whatever else the turn submits goes with it, and the thread does not compete for the interpreter's lock with a
        loop that is about to give it more to do.
        """
        future = self._loop.create_future()
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append(CommitJob(work, future))
        return future

    def _flush(self) -> None:
        if self._pending:
            self._flushed.put(self._pending)
            self._pending = []

    async def stop(self) -> None:
        """End the threads that read, write what is queued, then end the thread that writes."""
        await self.readers.close()
        self._flush()
        self._flushed.put(None)
        await self._stopped
        self._thread.join()

    # In the thread

    def _run(self) -> None:
        try:
            connection = open_writer(self._options)
        except BaseException as error:
            self._tell(_settle, self._opened, error)
            return
        try:
            self.file = ServedFile(self._options.path)
            self._data_version = _data_version(connection)
            self._tell(_settle, self._opened)
            goes_on = True
            while (goes_on or self._queue) and not self._loop.is_closed():
                goes_on = self._collect() and goes_on
                if jobs := self._queue.take():
                    self._write(connection, jobs)
                if not jobs or time.monotonic() - self._polled_at >= self._poll_interval:
                    self._poll(connection)
        finally:
            with suppress(sqlite3.Error):
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            connection.close()
            self._tell(_settle, self._stopped)

    def _collect(self) -> bool:
        """Queue what was submitted, after waiting for it for one poll interval; false when nothing will follow."""
        with suppress(Empty):
            jobs = self._flushed.get_nowait() if self._queue else self._flushed.get(timeout=self._poll_interval)
            while jobs is not None:
                self._queue.extend(jobs)
                jobs = self._flushed.get_nowait()
            return False
        return True

    def _write(self, connection: sqlite3.Connection, jobs: list[CommitJob]) -> None:
        """Store a batch and deliver its results."""
        try:
            outcomes = self._transact(connection, jobs)
        except Exception as error:
            self._known.clear()
            with suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            failure = explain(error, self._options.path)
            if not isinstance(failure, FileError) and self._queue.retry_alone(jobs):
                return
            outcomes = failures(jobs, failure)
        self._tell(self._deliver, outcomes)

    def _transact(self, connection: sqlite3.Connection, jobs: list[CommitJob]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        began = time.monotonic()
        if self._is_gone:
            self._check_file()
        connection.execute("BEGIN IMMEDIATE")
        if (version := _data_version(connection)) != self._known_version:
            self._known_version = version
            self._known.clear()
        for are_changes, run in groupby(jobs, lambda job: type(job.work) is Change):
            if are_changes:
                group = list(run)
                changes = [job.work for job in group]
                outcomes += zip(group, write_changes(connection, changes, self._known), strict=True)
                continue
            for job in run:
                action = job.work
                if type(action) is OutboxAction:
                    action = action.action
                else:
                    self._known.clear()
                try:
                    outcomes.append((job, action(connection)))
                except ErrandsError as error:
                    outcomes.append((job, error))
        connection.execute("COMMIT")
        if self._counts is not None:
            self._counts.note_batch(len(jobs), time.monotonic() - began)
        # After the commit, so that nothing is acknowledged that went into a file that is gone.
        if time.monotonic() - self._checked_at >= CHECK_FILE_EVERY:
            self._check_file()
        self.transactions += 1
        return outcomes

    def _check_file(self) -> None:
        self._is_gone = True
        self.file.check()
        self._is_gone = False
        self._checked_at = time.monotonic()

    def _poll(self, connection: sqlite3.Connection) -> None:
        """Find out whether another process has written."""
        self._polled_at = time.monotonic()
        with suppress(FileError):
            self._check_file()
        with suppress(sqlite3.Error):
            version = _data_version(connection)
            if version != self._data_version:
                self._data_version = version
                self._tell(self._others_wrote)

    def _tell(self, function: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *arguments)


def _data_version(connection: sqlite3.Connection) -> int:
    """Return a number that changes only when another connection has written."""
    version: int = connection.execute("PRAGMA data_version").fetchone()[0]
    return version


def _settle(future: asyncio.Future[None], error: BaseException | None = None) -> None:
    if not future.done():
        future.set_result(None) if error is None else future.set_exception(error)


# Changes. The caller of these functions holds the transaction.


def write_changes(
    connection: sqlite3.Connection, changes: Sequence[Change], known: dict[str, TaskRow]
) -> list[Judged | ErrandsError]:
    """Write the changes that are accepted, and return the result of each. `known` is kept up to date."""
    rows: dict[str, TaskRow] = {}
    receipts: dict[tuple[Scope, bytes], Receipt] = {}
    last_no = 0
    ids = {change.task_id for change in changes}
    digests = [change.receipt for change in changes if change.receipt is not None]
    if digests or not known.keys() >= ids:
        for start in range(0, max(len(digests), 1), ROWS):
            chunk = digests[start : start + ROWS]
            look = connection.execute(queries.repeated("look", len(chunk)), (json_text(ids), *chunk))
            last_no, found, accepted = look.fetchone()
            rows = {row.id: row for row in queries.read_rows(found)}
            for digest, at, task_id, scope in _read_receipts(accepted):
                message = scope, bytes.fromhex(digest)
                if message not in receipts or receipts[message].at < at:
                    receipts[message] = Receipt(task_id, at)
    else:
        rows = {task_id: known[task_id] for task_id in ids}
    batch = CommitBatch(rows, receipts, count(last_no + 1).__next__, queries.MAX_VERSION)
    outcomes = batch.judge(changes)
    if batch.accepted:
        _store(connection, batch)
        for row in {accepted.row.no: accepted.row for accepted in batch.accepted}.values():
            known.pop(row.id, None)
            if row.head.worker and len(known) < MAX_KNOWN:
                known[row.id] = row
    return outcomes


def _store(connection: sqlite3.Connection, batch: CommitBatch) -> None:
    # Flat, as they are bound: row after row in one list.
    events: list[object] = []
    receipts: list[object] = []
    tasks: list[object] = []
    versions: list[object] = []
    #: Events and snapshots that are too large to be bound.
    large: list[tuple[int, str, bytes, int, str | None]] = []
    #: Rows of which more changes than the version and the time.
    touched: dict[int, TaskRow] = {}
    appended: dict[int, TaskRow] = {}
    #: Changes of tasks with push configs.
    outbox: list[Accepted] = []
    for accepted in batch.accepted:
        row, change = accepted.row, accepted.judged.change
        base = row.no << VERSION_BITS
        (appended if accepted.judged.only_appends else touched)[row.no] = row
        for event in accepted.judged.events:
            lease = None if event.lease is None else json_text(event.lease)
            if len(event.data) <= MAX_BOUND:
                events += (base + event.version, event.kind, event.data, event.at, lease)
            else:
                large.append((base + event.version, event.kind, event.data, event.at, lease))
        if change.receipt is not None:
            receipts += (change.receipt, row.id, change.at, receipt_until(change))
        if accepted.judged.head.pushes or accepted.judged.before.pushes:
            outbox.append(accepted)
    for no, snapshot in batch.snapshots.items():
        if len(snapshot) <= MAX_BOUND:
            events += (no << VERSION_BITS, "snapshot", snapshot, 0, None)
        else:
            large.append((no << VERSION_BITS, "snapshot", snapshot, 0, None))
    for row in touched.values():
        tasks += _columns(row)
    for row in appended.values():
        if row.no not in touched:
            versions += (row.no, row.head.version, row.head.updated_at)
    _write(connection, "insert_events", events, 5)
    for event_row in large:
        write_large(connection, *event_row)
    _write(connection, "upsert_tasks", tasks, 23)
    _write(connection, "append_to_tasks", versions, 3)
    _write(connection, "upsert_receipts", receipts, 4)
    if batch.contexts:
        contexts = [(*scope, context_id, *value) for (scope, context_id), value in batch.contexts.items()]
        connection.executemany(QUERIES["save_context"], contexts)
    for accepted in outbox:
        _fill_outbox(connection, accepted)


def _fill_outbox(connection: sqlite3.Connection, accepted: Accepted) -> None:
    row, judged, change = accepted.row, accepted.judged, accepted.judged.change
    if change.push is not None:
        config = {"id": change.push.id, "host": change.push.host, "config": json_text(change.push)}
        due_at = change.at if judged.fills_outbox else None
        entry = {"task": row.no, "agent": row.scope.agent, "delivered": judged.before.version, "due_at": due_at}
        connection.execute(QUERIES["upsert_push"], {**config, **entry, "at": change.at})
        if judged.head.pushes == (change.push.id,):
            return
    if change.drop_push is not None:
        connection.execute(QUERIES["drop_push"], (row.no, change.drop_push))
    if judged.fills_outbox:
        connection.execute(QUERIES["fill_outbox"], (change.at, row.no))


def _write(connection: sqlite3.Connection, query: str, values: list[object], width: int) -> None:
    step = ROWS * width
    for start in range(0, len(values), step):
        chunk = values if len(values) <= step else values[start : start + step]
        rows = len(chunk) // width
        if connection.execute(queries.repeated(query, rows), chunk).rowcount != rows:
            raise StorageError(f"{query}: a row has changed since it was looked up; nothing was written")


def write_large(
    connection: sqlite3.Connection, place: int, kind: str, data: bytes, at: int = 0, lease: str | None = None
) -> None:
    """Write one event or snapshot straight into its row, so that no cached statement keeps a copy of it."""
    if connection.execute(QUERIES["reserve_event"], (place, kind, len(data), at, lease)).rowcount != 1:
        raise StorageError("reserve_event: a row has changed since it was looked up; nothing was written")
    with connection.blobopen("events", "data", place) as blob:
        blob.write(data)


def _columns(row: TaskRow) -> tuple[object, ...]:
    head = row.head
    lease = head.attempt, head.attempt_base, head.given_back, head.worker, head.due_at, head.claimed, head.unread
    # Plain strings and numbers: SQLite's module is slow with subclasses of them.
    flags = int(head.cancel_requested), int(head.direct), head.asks
    times = head.created_at, head.updated_at, head.status_at
    names = row.no, row.id, *row.scope, row.context_id
    return (*names, head.version, head.state.value, *lease, *flags, *times, row.folded, row.trimmed)


_read_receipts = msgspec.json.Decoder(list[tuple[str, int, str, Scope]]).decode


# Everything else that is written, beside retention


def claim(
    connection: sqlite3.Connection, worker: str, agents: Sequence[str], limit: int, now: int, until: int
) -> list[StoredTask]:
    due = [row for agent in set(agents) for row in queries.fetch_rows(connection, "due", (agent, now, limit))]
    due.sort(key=lambda row: (row.head.due_at or 0, row.id))
    del due[limit:]
    if not due:
        return []
    connection.execute(QUERIES["lease"], (worker, until, json_text([row.no for row in due])))
    for row in due:
        row.head = lifecycle.claimed(row.head, worker, until)
    return queries.load_rows(connection, due)


# The last two are numbers, unless the row is damaged.
_read_held = msgspec.json.Decoder(list[tuple[int, str, Any, Any]]).decode


def extend(connection: sqlite3.Connection, worker: str, leases: Sequence[Lease], until: int) -> list[LeaseSignal]:
    task_ids = json_text([lease.task_id for lease in leases])
    held = _read_held(connection.execute(QUERIES["held"], (task_ids, worker)).fetchone()[0])
    wanted = set(leases)
    held = [row for row in held if Lease(row[1], row[2]) in wanted]
    if held:
        connection.execute(QUERIES["extend"], (until, json_text([row[0] for row in held])))
    return lease_signals(leases, {Lease(task_id, attempt): bool(cancel) for _, task_id, attempt, cancel in held})


def lease_deliveries(
    connection: sqlite3.Connection, agent: str, wanted: Mapping[str, int], now: int, until: int
) -> list[OutboxEntry]:
    leased: list[OutboxEntry] = []
    for host, limit in wanted.items():
        for task, config_id, text in connection.execute(QUERIES["due_entries"], (agent, host, now, limit)).fetchall():
            connection.execute(QUERIES["lease_entry"], (until, task, config_id))
            for entry in readable_pushes(queries.read_entry, [text]):
                entry.due_at, entry.claim = until, entry.claim + 1
                leased.append(entry)
    return leased


def settle_deliveries(connection: sqlite3.Connection, deliveries: Sequence[Delivery], now: int) -> list[bool]:
    settle = QUERIES["settle_entry"]
    rows = [{**msgspec.structs.asdict(delivery), "now": now} for delivery in deliveries]
    return [connection.execute(settle, row).rowcount == 1 for row in rows]


def retry_delivery(connection: sqlite3.Connection, task_id: str, config_id: str, now: int) -> bool:
    return connection.execute(QUERIES["retry_entry"], (now, task_id, config_id)).rowcount == 1


def probe(connection: sqlite3.Connection) -> None:
    """Write an event that belongs to no task and remove it: fails where a small message could not be stored."""
    connection.execute(QUERIES["reserve_event"], (-1, "probe", PROBE_BYTES, 0, None))
    connection.execute(QUERIES["delete_events"], (-1, 0))
