"""Writing: whatever is queued is stored as one transaction, while earlier ones wait for the disk (group commit).

A few lanes, each with a connection, take turns: one at a time holds the pen and writes, the others commit what they
have written. A task is in one lane at a time, so changes to it keep their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple

from errands.engines.commit import Accepted, CommitBatch, CommitJob, CommitQueue, Outcome, TaskRow, lease_signals
from errands.engines.postgres.connection import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    Connection,
    PostgresOptions,
    connect,
    explain,
    is_crowded,
    is_in_the_way,
    is_lost,
    is_read_only,
)
from errands.engines.postgres.notifications import ChangedTask, payloads
from errands.engines.postgres.queries import (
    MAX_VERSION,
    QUERIES,
    contents,
    read_row,
    readable,
    receipt_key,
    scope_key,
    storable,
)
from errands.errors import ErrandsError, StorageError
from errands.lifecycle import Judged, Receipt, receipt_until
from errands.model.base import encode
from errands.model.core import UNSPECIFIED
from errands.model.log import Change, Lease, LeaseSignal, Scope, StoredTask

MAX_JOBS = 512
#: PostgreSQL takes no message of more than a gigabyte.
MAX_BYTES = 8_000_000
#: How many numbers of new tasks are taken at a time.
NUMBERS = 256
#: Tasks with more events than this are in an index of their own.
LONG_LOG = 1000
#: The watcher of a task of which several processes have readers.
EVERYBODY = "*"

#: What a lane does beside changes, in a transaction of its own.
Action = Callable[[Connection], Awaitable[Any]]


class Process(NamedTuple):
    """The process that writes."""

    name: str
    #: The first of its tallies; each lane has one, so that none waits for another's commit.
    shard: int
    #: The channel of notifications.
    channel: str
    #: Whether a task has readers in this process.
    watches: Callable[[str], bool]


class Prepared(NamedTuple):
    """What was written and waits to be committed."""

    results: Sequence[Any]
    #: Whether the batch's number was left behind with it, so that its fate can be learned.
    is_noted: bool
    #: Tasks with readers in this process, and their versions: their rows are marked.
    watched: Sequence[tuple[str, int]] = ()


class PostgresStore:
    """The lanes and their queue.

    `deliver` is called with what is durable, `note_watched` with tasks whose rows are marked as read by this process.
    """

    def __init__(
        self,
        options: PostgresOptions,
        process: Process,
        deliver: Callable[[Iterable[Outcome]], None],
        note_watched: Callable[[str, int], None],
    ) -> None:
        self._options = options
        self._process = process
        self._deliver = deliver
        self._note_watched = note_watched
        self._loop = asyncio.get_running_loop()
        self._queue = CommitQueue(MAX_JOBS, MAX_BYTES)
        #: Held by the lane that takes jobs and writes.
        self._pen = asyncio.Lock()
        self._news = asyncio.Event()
        self._stopping = False
        self._lanes: list[asyncio.Task[None]] = []
        #: Numbers for new tasks, the lowest last.
        self._numbers: list[int] = []
        #: How many transactions were committed; this shows what group commit saves.
        self.transactions = 0

    def start(self, connection: Connection) -> None:
        """Begin with this connection; the lanes make further ones when they need them."""
        lanes = [Lane(self._options, self._process.name, 0, connection)]
        lanes += [Lane(self._options, self._process.name, number) for number in range(1, self._options.lanes)]
        self._lanes = [self._loop.create_task(self._run(lane), name="errands-postgres-writer") for lane in lanes]

    def submit(self, work: Change | Action, key: object = None) -> asyncio.Future[Any]:
        """Queue work; whatever else this turn of the event loop submits goes with it."""
        future = self._loop.create_future()
        self._queue.append(CommitJob(work, future, key, self._loop.time(), alone=type(work) is not Change))
        self._news.set()
        return future

    async def stop(self) -> None:
        """Write what is queued, then end."""
        self._stopping = True
        self._news.set()
        await asyncio.gather(*self._lanes)

    async def _run(self, lane: Lane) -> None:
        while await self._turn(lane):
            pass
        await lane.close()

    async def _turn(self, lane: Lane) -> bool:
        """Take, write, commit and deliver a batch; false when nothing will follow.

        This is not the body of a loop, so that a lane that waits holds on to nothing.
        """
        async with self._pen:
            while not (jobs := self._queue.take()):
                if self._stopping and not self._queue:
                    return False
                self._news.clear()
                await self._news.wait()
            try:
                prepared: Prepared | Exception = await self._prepare(lane, jobs)
            except Exception as error:
                prepared = error
        failure = await self._commit(lane, prepared)
        if isinstance(prepared, Prepared) and failure is None:
            lane.pause = FIRST_PAUSE
            self._queue.release(jobs)
            for task_id, version in prepared.watched:
                self._note_watched(task_id, version)
            self._deliver(zip(jobs, prepared.results, strict=True))
        elif failure is not None:
            await self._recover(lane, jobs, failure)
        self._news.set()
        return True

    async def _prepare(self, lane: Lane, jobs: list[CommitJob]) -> Prepared:
        """Do everything but the commit."""
        connection = await lane.begin()
        if type(jobs[0].work) is Change:
            return await self._write(connection, [job.work for job in jobs], lane)
        try:
            result = await jobs[0].work(connection)
        except ErrandsError as error:
            return Prepared([error], is_noted=False)
        return Prepared([result], is_noted=await lane.note(connection))

    async def _commit(self, lane: Lane, prepared: Prepared | Exception) -> Exception | None:
        """Return None once the batch is durable, or why it is not; then nothing is left of it."""
        failure = prepared
        if isinstance(prepared, Prepared):
            try:
                await lane.commit(is_noted=prepared.is_noted)
                self.transactions += 1
                return None
            except Exception as error:
                failure = error
        assert isinstance(failure, Exception)
        if is_lost(failure) or is_read_only(failure):
            lane.drop()
            # A server that crashed may give out the same numbers again.
            self._numbers.clear()
        else:
            await lane.roll_back()
        return failure

    async def _recover(self, lane: Lane, jobs: list[CommitJob], failure: Exception) -> None:
        """Put a batch that failed back, as long as another try may succeed."""
        is_unconnected = is_lost(failure) or is_crowded(failure)
        concerns_all = is_unconnected or is_read_only(failure) or isinstance(failure, StorageError)
        if not concerns_all and self._queue.retry_alone(jobs):
            return
        is_patient = self._loop.time() - jobs[0].at <= self._options.patience
        if is_patient and (is_unconnected or is_in_the_way(failure)):
            self._queue.put_back(jobs)
            # Lanes that have a connection take over.
            self._news.set()
            await asyncio.sleep(LONGEST_PAUSE if is_crowded(failure) else lane.pause)
            lane.pause = min(2 * lane.pause, LONGEST_PAUSE)
            return
        self._queue.release(jobs)
        # A new error for each job: callers may add to it.
        text = explain(failure, self._options.name).args
        self._deliver([(job, StorageError(*text)) for job in jobs])

    # A batch of changes: locked together, judged one by one, stored with one statement

    async def _write(self, connection: Connection, changes: list[Change], lane: Lane) -> Prepared:
        """Write the changes that are accepted.

        The first try assumes that new tasks are new and that no message came before, which is nearly always so; if not,
        the next one looks.
        """
        new = sum([change.expected == 0 for change in changes])
        for careful in (False, True, True, True):
            numbers = await self._take_numbers(connection, new)
            batch, deleted = await _look(connection, changes, numbers, careful=careful)
            outcomes = batch.judge(changes)
            if not careful and any(map(_is_doubtful, changes, outcomes)):
                continue
            if not batch.accepted:
                return Prepared(outcomes, is_noted=False)
            watched = await self._store(connection, batch, deleted, lane)
            if watched is not None:
                return Prepared(outcomes, is_noted=True, watched=watched)
            await connection.execute("ROLLBACK; BEGIN")
        raise StorageError("Other processes keep writing to the same tasks; nothing was written. Try again")

    async def _take_numbers(self, connection: Connection, count: int) -> list[int]:
        """Return numbers for new tasks, the lowest last."""
        if not count:
            return []
        if len(self._numbers) < count:
            rows = await connection.fetch(QUERIES["numbers"], max(count, NUMBERS))
            self._numbers[:0] = [row[0] for row in reversed(rows)]
        taken = self._numbers[-count:]
        del self._numbers[-count:]
        return taken

    async def _store(
        self, connection: Connection, batch: CommitBatch, deleted: list[str], lane: Lane
    ) -> list[tuple[str, int]] | None:
        """Write a batch, and return the tasks with readers here; None when another process was faster.

        `deleted` are tasks that no longer exist, and whose receipts may be replaced.
        """
        name = self._process.name
        tasks: dict[str, TaskRow] = {}
        changed: dict[str, ChangedTask] = {}
        watched: list[tuple[str, int]] = []
        for accepted in batch.accepted:
            row, judged = accepted.row, accepted.judged
            tasks[row.id] = row
            if self._process.watches(row.id):
                row.watcher = name if row.watcher in ("", name) else EVERYBODY
                watched.append((row.id, judged.head.version))
            if judged.events and row.watcher not in ("", name):
                changed.setdefault(row.id, ChangedTask(row.id, judged.before.version))
        rows = [row for _, row in sorted(tasks.items())]
        wakes = any(accepted.judged.wakes_workers for accepted in batch.accepted)
        notifications = self._process.channel, payloads(name, wakes, list(changed.values()))
        number = name, lane.number, lane.batch
        if all(accepted.judged.only_appends for accepted in batch.accepted):
            is_stored = await _append(connection, batch.accepted, rows, *notifications, *number)
        else:
            shard = self._process.shard + lane.number
            is_stored = await _store(connection, batch.accepted, rows, deleted, shard, *notifications, *number)
        return watched if is_stored else None


async def _append(connection: Connection, accepted: list[Accepted], rows: list[TaskRow], *rest: Any) -> bool:
    """Write changes that only append events; false when another process was faster."""
    events = [row[:5] for one in accepted for row in _event_rows(one)]
    heads = [(storable(row.id), row.head.version, row.head.updated_at, row.watcher) for row in rows]
    stored_tasks, stored_events, _ = await connection.fetchrow(
        QUERIES["append"], *_columns(heads, 4), *_columns(events, 5), *rest
    )
    return bool((stored_tasks, stored_events) == (len(rows), len(events)))


async def _store(
    connection: Connection, accepted: list[Accepted], rows: list[TaskRow], deleted: list[str], shard: int, *rest: Any
) -> bool:
    """Write any changes; false when another process was faster."""
    events: list[tuple[Any, ...]] = []
    snapshots: dict[int, bytes] = {}
    receipts: dict[bytes, tuple[str, int, int]] = {}
    contexts: dict[tuple[Scope, str], tuple[bytes, int]] = {}
    tallies: dict[tuple[int, str], int] = {}
    for one in accepted:
        row, judged, change = one.row, one.judged, one.judged.change
        events += _event_rows(one)
        if one.snapshot is not None:
            snapshots[row.no] = one.snapshot
        if change.receipt is not None:
            key = receipt_key(change.scope, change.receipt)
            receipts[key] = storable(row.id), change.at, receipt_until(change)
        if change.context is not None:
            contexts[row.scope, row.context_id] = change.context, change.at
        if judged.head.state is not judged.before.state:
            for state, difference in ((judged.before.state, -1), (judged.head.state, 1)):
                tally = scope_key(row.scope), state.value
                tallies[tally] = tallies.get(tally, 0) + difference
    events += [(no, 0, "snapshot", data, 0, None) for no, data in snapshots.items()]
    moved = [(*tally, count) for tally, count in sorted(tallies.items()) if count and tally[1] != UNSPECIFIED]
    scopes, states, counts = _columns(moved, 3)
    stored_tasks, stored_events, stored_receipts, _ = await connection.fetchrow(
        QUERIES["store"],
        *_columns([_task_row(row) for row in rows], 26),
        *_columns(events, 6),
        *_columns([(key, *receipt) for key, receipt in sorted(receipts.items())], 4),
        *_columns([(*map(storable, (*scope, id_)), *value) for (scope, id_), value in sorted(contexts.items())], 6),
        scopes,
        states,
        shard,
        counts,
        *rest,
        deleted,
    )
    return bool((stored_tasks, stored_events, stored_receipts) == (len(rows), len(events), len(receipts)))


def _is_doubtful(change: Change, outcome: Judged | ErrandsError) -> bool:
    """Return whether a message was refused for a reason that counts only if it did not come before."""
    return change.receipt is not None and not isinstance(outcome, Judged)


async def _look(
    connection: Connection, changes: Sequence[Change], numbers: list[int], *, careful: bool
) -> tuple[CommitBatch, list[str]]:
    """Lock the tasks of a batch, and find those tasks that have accepted its messages before and no longer exist.

    Unless there is reason to be careful, a task that is created is assumed to be new, and so is every message.
    """
    first = {change.task_id: change for change in reversed(changes)}
    ids = [storable(task_id) for task_id, change in first.items() if careful or change.expected != 0]
    rows: dict[str, TaskRow] = {}
    for found in await connection.fetch(QUERIES["lock"], ids) if ids else ():
        row = read_row(found)
        rows[row.id] = row
    receipts: dict[tuple[Scope, bytes], Receipt] = {}
    deleted: list[str] = []
    if careful:
        messages = [(change.scope, change.receipt) for change in changes if change.receipt is not None]
        keys = {receipt_key(*message): message for message in messages}
        for key, task_id, at, exists in await connection.fetch(QUERIES["known_receipts"], list(keys)) if keys else ():
            if exists:
                receipts[keys[key]] = Receipt(readable(task_id), at)
            else:
                deleted.append(task_id)
    return CommitBatch(rows, receipts, numbers.pop, MAX_VERSION), deleted


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> Sequence[Sequence[Any]]:
    """Return rows as columns: how arrays are passed."""
    return list(zip(*rows, strict=True)) or [()] * width


def _event_rows(accepted: Accepted) -> list[tuple[Any, ...]]:
    no = accepted.row.no
    return [
        (no, event.version, event.kind, event.data, event.at, event.lease and storable(encode(event.lease).decode()))
        for event in accepted.judged.events
    ]


def _task_row(row: TaskRow) -> tuple[Any, ...]:
    head, scope = row.head, row.scope
    return (
        storable(row.id),
        row.no,
        scope_key(scope),
        storable(scope.tenant),
        storable(scope.owner),
        storable(scope.agent),
        storable(row.context_id),
        head.version,
        head.state.value,
        head.attempt,
        head.attempt_base,
        head.given_back,
        storable(head.worker),
        head.due_at,
        head.claimed,
        head.unread,
        head.cancel_requested,
        head.direct,
        storable(head.asks),
        head.created_at,
        head.updated_at,
        head.status_at,
        row.folded,
        row.trimmed,
        row.watcher,
        head.version - row.trimmed > LONG_LOG,
    )


# Everything else that is written, beside retention


async def claim(
    connection: Connection, worker: str, agents: Sequence[str], limit: int, now: int, until: int
) -> list[StoredTask]:
    due: list[tuple[int, str]] = []
    for agent in sorted(set(agents)):
        due += [(at, key) for key, at in await connection.fetch(QUERIES["due"], storable(agent), now, limit)]
    ids = [key for _, key in sorted(due)[:limit]]
    if not ids:
        return []
    await connection.execute(QUERIES["lease"], ids, storable(worker), until)
    found = await contents(connection, ids)
    return [found[key] for key in ids]


async def extend(connection: Connection, worker: str, leases: Sequence[Lease], until: int) -> list[LeaseSignal]:
    ids = [storable(lease.task_id) for lease in leases]
    attempts = [lease.attempt for lease in leases]
    rows = await connection.fetch(QUERIES["extend"], ids, attempts, storable(worker), until) if leases else []
    return lease_signals(leases, {Lease(readable(key), attempt): cancel for key, attempt, cancel in rows})


class Lane:
    """A connection that writes. It reconnects when it broke, and finds out what became of a commit."""

    def __init__(
        self, options: PostgresOptions, process: str, number: int, connection: Connection | None = None
    ) -> None:
        self._options = options
        self._process = process
        self.number = number
        self._connection = connection
        self._is_known = False
        #: The number of the batch that is written, or was last.
        self.batch = 0
        #: Seconds to wait after the next failure.
        self.pause = FIRST_PAUSE

    async def _get(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect(self._options)
        if not self._is_known:
            await self._connection.execute(QUERIES["begin_writing"], self._process, self.number)
            self._is_known = True
        return self._connection

    async def begin(self) -> Connection:
        """Begin the transaction of the next batch."""
        connection = await self._get()
        await connection.execute("BEGIN")
        self.batch += 1
        return connection

    async def note(self, connection: Connection) -> bool:
        """Leave the batch's number behind with what this transaction has written; false when it has written nothing."""
        noted = await connection.fetchval(QUERIES["note_batch"], self._process, self.number, self.batch)
        return noted is not None

    def drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def roll_back(self) -> None:
        try:
            if self._connection is not None and self._connection.is_in_transaction():
                await self._connection.execute("ROLLBACK")
        except Exception:
            self.drop()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.execute(QUERIES["end_writing"], self._process, self.number, timeout=1.0)
                await connection.close(timeout=1.0)
            except Exception:
                connection.terminate()

    async def commit(self, *, is_noted: bool) -> None:
        """Commit. When the connection breaks during it, the batch's number shows what became of it: this returns if it
        was committed and raises the connection's error if it was not.

        PostgreSQL itself could be asked (`pg_xact_status`), but after a crash or a failover it may have given the
        transaction's number to another one.
        """
        assert self._connection is not None
        try:
            await self._connection.execute("COMMIT")
        except Exception as error:
            if not is_noted or not is_lost(error):
                raise
            self.drop()
            if not await self._was_committed(error):
                raise

    async def _was_committed(self, error: Exception) -> bool:
        """Raises `StorageError` when it cannot be learned."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 3 * self._options.patience
        pause = FIRST_PAUSE
        while loop.time() < deadline:
            try:
                last = await (await self._get()).fetchval(QUERIES["last_batch"], self._process, self.number)
                return bool(last == self.batch)
            except Exception as trouble:
                if is_lost(trouble):
                    self.drop()
                elif not (is_in_the_way(trouble) or is_crowded(trouble)):
                    break
            # Not reachable, or the server itself has not noticed yet.
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        raise StorageError(
            f"The connection to the database {self._options.name} broke during a commit, and it could not be learned "
            "whether that was written. Look before sending it again"
        ) from error
