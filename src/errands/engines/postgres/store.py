"""Writing: whatever is queued is stored as one transaction, while earlier ones wait for the disk (group commit).

A few lanes, each with a connection, take turns: one at a time holds the pen and writes, the others commit what they
have written. A task is in one lane at a time, so changes to it keep their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from errands.engines.commit import CommitBatch, CommitJob, CommitQueue, LocalEngine, TaskRow, failures, lease_signals
from errands.engines.damage import readable_pushes
from errands.engines.postgres import queries
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
from errands.engines.postgres.queries import QUERIES, read_row, readable, receipt_key, scope_key, storable
from errands.errors import ErrandsError, StorageError
from errands.lifecycle import Judged, Receipt, receipt_until
from errands.model.base import encode
from errands.model.core import UNSPECIFIED
from errands.model.log import Change, Delivery, Head, Lease, LeaseSignal, OutboxEntry, Scope, StoredTask

_T = TypeVar("_T")

MAX_JOBS = 512
#: PostgreSQL takes no message of more than a gigabyte.
MAX_BYTES = 8_000_000
#: How many numbers of new tasks are taken at a time.
NUMBERS = 256
#: Tasks with more events than this are in an index of their own.
LONG_LOG = 1000
#: The watcher of a task of which several processes have readers.
EVERYBODY = "*"
#: The number of processes that have tallies of their own and do not wait for each other; more share some.
SHARES = 32


class Prepared(NamedTuple):
    """What was written and waits to be committed."""

    results: Sequence[Any]
    #: Whether the batch's number was left behind with it, so that its fate can be learned.
    is_noted: bool
    #: Tasks with readers in this process, and their versions: their rows are marked.
    watched: Sequence[tuple[str, int]] = ()


class PostgresStore:
    """The lanes and their queue. `note_watched` is called with tasks whose rows are marked as read by this process."""

    def __init__(
        self, engine: LocalEngine, options: PostgresOptions, process: str, note_watched: Callable[[str, int], None]
    ) -> None:
        self._engine = engine
        self._options = options
        self._process = process
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
        lanes = [WriterLane(self._options, self._process, number) for number in range(self._options.lanes)]
        lanes[0].connection = connection
        self._lanes = [self._loop.create_task(self._run(lane), name="errands-postgres-writer") for lane in lanes]

    def commit(self, change: Change) -> asyncio.Future[Head]:
        return self._submit(change, change.task_id, alone=False)

    def do(self, action: Callable[[Connection], Awaitable[_T]], key: object = None) -> asyncio.Future[_T]:
        """Call a function in a transaction of its own."""
        return self._submit(action, key, alone=True)

    def _submit(self, work: Any, key: object, *, alone: bool) -> asyncio.Future[Any]:
        """Queue work. Everything that is submitted in this iteration of the event loop is written together."""
        future = self._loop.create_future()
        self._queue.append(CommitJob(work, future, key, self._loop.time(), alone))
        self._news.set()
        return future

    async def stop(self) -> None:
        """Write what is queued, then end."""
        self._stopping = True
        self._news.set()
        await asyncio.gather(*self._lanes)

    async def _run(self, lane: WriterLane) -> None:
        while await self._turn(lane):
            pass
        await lane.close()

    async def _turn(self, lane: WriterLane) -> bool:
        """Take, write, commit and deliver a batch; false when nothing will follow.

        This is not the body of a loop, so that a lane that waits keeps no batch in memory.
        """
        async with self._pen:
            while not (jobs := self._queue.take()):
                if self._stopping and not self._queue:
                    return False
                self._news.clear()
                await self._news.wait()
            began = self._loop.time()
            try:
                prepared: Prepared | Exception = await self._prepare(lane, jobs)
            except Exception as error:
                prepared = error
        try:
            if isinstance(prepared, Exception):
                raise prepared
            await lane.commit(is_noted=prepared.is_noted)
        except Exception as failure:
            await self._recover(lane, jobs, failure)
        else:
            self.transactions += 1
            if self._engine.counts is not None:
                self._engine.counts.note_batch(len(jobs), self._loop.time() - began)
            lane.pause = FIRST_PAUSE
            self._queue.release(jobs)
            for task_id, version in prepared.watched:
                self._note_watched(task_id, version)
            self._engine.deliver(zip(jobs, prepared.results, strict=True))
        self._news.set()
        return True

    async def _prepare(self, lane: WriterLane, jobs: list[CommitJob]) -> Prepared:
        """Do everything but the commit."""
        connection = await lane.begin()
        if type(jobs[0].work) is Change:
            return await self._write(connection, [job.work for job in jobs], lane)
        try:
            result = await jobs[0].work(connection)
        except ErrandsError as error:
            return Prepared([error], is_noted=False)
        return Prepared([result], is_noted=await lane.note(connection))

    async def _recover(self, lane: WriterLane, jobs: list[CommitJob], failure: Exception) -> None:
        """Undo a batch that failed, and put it back as long as another try may succeed."""
        if is_lost(failure) or is_read_only(failure):
            lane.drop()
            # A server that crashed may give out the same numbers again.
            self._numbers.clear()
        else:
            await lane.roll_back()
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
        self._engine.deliver(failures(jobs, explain(failure, self._options.name)))

    # A batch of changes: locked together, judged one by one, stored with one statement

    async def _write(self, connection: Connection, changes: list[Change], lane: WriterLane) -> Prepared:
        """Write the changes that are accepted.

        The first try assumes that new tasks are new and that no message came before, which is nearly always so; if not,
        the next one looks.
        """
        new = sum([change.expected == 0 for change in changes])
        for careful in (False, True, True, True):
            if len(self._numbers) < new:
                rows = await connection.fetch(QUERIES["numbers"], max(new, NUMBERS))
                self._numbers[:0] = [row[0] for row in reversed(rows)]
            cut = len(self._numbers) - new
            numbers, self._numbers = self._numbers[cut:], self._numbers[:cut]
            batch, deleted = await _look(connection, changes, numbers, careful=careful)
            outcomes = batch.judge(changes)
            # A message may have been refused for a reason that counts only if it did not come before.
            if not careful and any(
                change.receipt is not None and not isinstance(outcome, Judged)
                for change, outcome in zip(changes, outcomes, strict=True)
            ):
                continue
            if not batch.accepted:
                return Prepared(outcomes, is_noted=False)
            watched = await self._store(connection, batch, deleted, lane)
            if watched is not None:
                return Prepared(outcomes, is_noted=True, watched=watched)
            await connection.execute("ROLLBACK; BEGIN")
        raise StorageError("Other processes keep writing to the same tasks; nothing was written. Try again")

    async def _store(
        self, connection: Connection, batch: CommitBatch, deleted: list[str], lane: WriterLane
    ) -> list[tuple[str, int]] | None:
        """Write a batch, and return the tasks with readers here; None when another process was faster.

        `deleted` are tasks that no longer exist, and whose receipts may be replaced.
        """
        process = self._process
        tasks: dict[str, TaskRow] = {}
        changed: dict[str, ChangedTask] = {}
        watched: list[tuple[str, int]] = []
        events: list[tuple[Any, ...]] = []
        for accepted in batch.accepted:
            row, judged = accepted.row, accepted.judged
            tasks[row.id] = row
            if self._engine.subscribers.watches(row.id):
                row.watcher = process if row.watcher in ("", process) else EVERYBODY
                watched.append((row.id, judged.head.version))
            if judged.events and row.watcher not in ("", process):
                changed.setdefault(row.id, ChangedTask(row.id, judged.before.version))
            for event in judged.events:
                lease = event.lease and storable(encode(event.lease).decode())
                events.append((row.no, event.version, event.kind, event.data, event.at, lease))
            if judged.head.pushes or judged.before.pushes:
                await _fill_outbox(connection, row, judged)
        rows = [row for _, row in sorted(tasks.items())]
        wakes = any(accepted.judged.wakes_workers for accepted in batch.accepted)
        news = self._options.schema, payloads(process, wakes, list(changed.values()))
        number = process, lane.number, lane.batch
        if all(accepted.judged.only_appends for accepted in batch.accepted):
            heads = [(storable(row.id), row.head.version, row.head.updated_at, row.watcher) for row in rows]
            logged = [event[:5] for event in events]
            counts = await connection.fetchrow(
                QUERIES["append"], *_columns(heads, 4), *_columns(logged, 5), *news, *number
            )
            return watched if counts[:2] == (len(rows), len(events)) else None
        receipts: dict[bytes, tuple[str, int, int]] = {}
        tallies: dict[tuple[int, str], int] = {}
        for accepted in batch.accepted:
            row, judged, change = accepted.row, accepted.judged, accepted.judged.change
            if change.receipt is not None:
                key = receipt_key(change.scope, change.receipt)
                receipts[key] = storable(row.id), change.at, receipt_until(change)
            if judged.head.state is not judged.before.state:
                for state, difference in ((judged.before.state, -1), (judged.head.state, 1)):
                    tally = scope_key(row.scope), state.value
                    tallies[tally] = tallies.get(tally, 0) + difference
        events += [(no, 0, "snapshot", data, 0, None) for no, data in batch.snapshots.items()]
        shard = 1 + int(process, 16) % SHARES * self._options.lanes + lane.number
        moved = [
            (scope, state, shard, count)
            for (scope, state), count in sorted(tallies.items())
            if count and state != UNSPECIFIED
        ]
        contexts = [
            (*map(storable, (*scope, context_id)), *value)
            for (scope, context_id), value in sorted(batch.contexts.items())
        ]
        counts = await connection.fetchrow(
            QUERIES["store"],
            *_columns([_task_columns(row) for row in rows], 26),
            *_columns(events, 6),
            *_columns([(key, *receipt) for key, receipt in sorted(receipts.items())], 4),
            *_columns(contexts, 6),
            *_columns(moved, 4),
            *news,
            *number,
            deleted,
            [storable(encode(row.head.pushes).decode()) if row.head.pushes else "" for row in rows],
        )
        return watched if counts[:3] == (len(rows), len(events), len(receipts)) else None


async def _look(
    connection: Connection, changes: Sequence[Change], numbers: list[int], *, careful: bool
) -> tuple[CommitBatch, list[str]]:
    """Lock the tasks of a batch, and find those tasks that have accepted its messages before and no longer exist.

    Unless there is reason to be careful, a task that is created is assumed to be new, and so is every message.
    """
    first = {change.task_id: change for change in reversed(changes)}
    ids = [storable(task_id) for task_id, change in first.items() if careful or change.expected != 0]
    found = map(read_row, await connection.fetch(QUERIES["lock"], ids) if ids else ())
    receipts: dict[tuple[Scope, bytes], Receipt] = {}
    deleted: list[str] = []
    messages = [(change.scope, change.receipt) for change in changes if careful and change.receipt is not None]
    keys = {receipt_key(*message): message for message in messages}
    for key, task_id, at, exists in await connection.fetch(QUERIES["known_receipts"], list(keys)) if keys else ():
        if exists:
            receipts[keys[key]] = Receipt(readable(task_id), at)
        else:
            deleted.append(task_id)
    return CommitBatch({row.id: row for row in found}, receipts, numbers.pop, queries.MAX_VERSION), deleted


async def _fill_outbox(connection: Connection, row: TaskRow, judged: Judged) -> None:
    """Write what a change does to the outbox. Its task is locked, or new."""
    change, task_id = judged.change, storable(row.id)
    if (config := change.push) is not None:
        names = storable(config.id), storable(row.scope.agent), config.host, storable(encode(config).decode())
        position = judged.before.version, change.at, change.at if judged.fills_outbox else None
        await connection.execute(QUERIES["upsert_push"], task_id, *names, *position)
        if judged.head.pushes == (config.id,):
            return
    if change.drop_push is not None:
        await connection.execute(QUERIES["drop_push"], task_id, storable(change.drop_push))
    if judged.fills_outbox:
        await connection.execute(QUERIES["fill_outbox"], [task_id], [change.at])


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> Sequence[Sequence[Any]]:
    """Return rows as columns: how arrays are passed."""
    return list(zip(*rows, strict=True)) or [()] * width


def _task_columns(row: TaskRow) -> tuple[Any, ...]:
    head, scope = row.head, row.scope
    texts = storable(scope.tenant), storable(scope.owner), storable(scope.agent), storable(row.context_id)
    lease = head.attempt, head.attempt_base, head.given_back, storable(head.worker), head.due_at, head.claimed
    flags = head.unread, head.cancel_requested, head.direct, storable(head.asks)
    times = head.created_at, head.updated_at, head.status_at
    log = row.folded, row.trimmed, row.watcher, head.version - row.trimmed > LONG_LOG
    names = storable(row.id), row.no, scope_key(scope)
    return (*names, *texts, head.version, head.state.value, *lease, *flags, *times, *log)


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
    found = await queries.contents(connection, ids)
    return [found[key] for key in ids]


async def extend(connection: Connection, worker: str, leases: Sequence[Lease], until: int) -> list[LeaseSignal]:
    ids = [storable(lease.task_id) for lease in leases]
    attempts = [lease.attempt for lease in leases]
    rows = await connection.fetch(QUERIES["extend"], ids, attempts, storable(worker), until) if leases else []
    return lease_signals(leases, {Lease(readable(key), attempt): cancel for key, attempt, cancel in rows})


async def lease_deliveries(
    connection: Connection, agent: str, wanted: Mapping[str, int], now: int, until: int
) -> list[OutboxEntry]:
    leased: list[OutboxEntry] = []
    for host, limit in sorted(wanted.items()):
        rows = await connection.fetch(QUERIES["lease_entries"], storable(agent), host, now, limit, until)
        leased += readable_pushes(queries.read_entry, rows)
    return leased


async def settle_deliveries(connection: Connection, deliveries: Sequence[Delivery], now: int) -> list[bool]:
    ids = [storable(delivery.task_id) for delivery in deliveries]
    versions = dict(await connection.fetch(QUERIES["lock_versions"], ids))
    settled: list[bool] = []
    for task_id, delivery in zip(ids, deliveries, strict=True):
        due_at = delivery.due_at
        if due_at is None and versions.get(task_id, 0) > delivery.delivered:
            due_at = now
        position = delivery.delivered, None if delivery.dead else due_at
        failure = delivery.attempts, delivery.failed_at, storable(delivery.error), delivery.dead
        names = task_id, storable(delivery.config_id), delivery.claim
        settled.append(bool(await connection.fetchval(QUERIES["settle_entry"], *names, *position, *failure)))
    return settled


class WriterLane:
    """A connection that writes. It reconnects when it broke, and finds out whether a commit was done."""

    def __init__(self, options: PostgresOptions, process: str, number: int) -> None:
        self._options = options
        self._process = process
        self.number = number
        self.connection: Connection | None = None
        self._is_known = False
        #: The number of the batch that is written, or was last.
        self.batch = 0
        #: Seconds to wait after the next failure.
        self.pause = FIRST_PAUSE

    async def _connect(self) -> Connection:
        if self.connection is None or self.connection.is_closed():
            self.connection = await connect(self._options)
        if not self._is_known:
            await self.connection.execute(QUERIES["begin_writing"], self._process, self.number)
            self._is_known = True
        return self.connection

    async def begin(self) -> Connection:
        """Begin the transaction of the next batch."""
        connection = await self._connect()
        await connection.execute("BEGIN")
        self.batch += 1
        return connection

    async def note(self, connection: Connection) -> bool:
        """Leave the batch's number behind with what this transaction has written; false when it has written nothing."""
        noted = await connection.fetchval(QUERIES["note_batch"], self._process, self.number, self.batch)
        return noted is not None

    def drop(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.terminate()

    async def roll_back(self) -> None:
        try:
            if self.connection is not None and self.connection.is_in_transaction():
                await self.connection.execute("ROLLBACK")
        except Exception:
            self.drop()

    async def close(self) -> None:
        if self.connection is not None:
            try:
                await self.connection.execute(QUERIES["end_writing"], self._process, self.number, timeout=1.0)
                await self.connection.close(timeout=1.0)
            except Exception:
                self.drop()

    async def commit(self, *, is_noted: bool) -> None:
        """Commit. When the connection breaks during it, the batch's number shows whether it was done: this returns if
        it was, and raises the connection's error if it was not. Raises `StorageError` when that cannot be learned.

        PostgreSQL itself could be asked (`pg_xact_status`), but after a crash or a failover it may have given the
        transaction's number to another one.
        """
        assert self.connection is not None
        try:
            await self.connection.execute("COMMIT")
            return
        except Exception as error:
            if not is_noted or not is_lost(error):
                raise
            lost = error
        self.drop()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 3 * self._options.patience
        pause = FIRST_PAUSE
        while loop.time() < deadline:
            try:
                last = await (await self._connect()).fetchval(QUERIES["last_batch"], self._process, self.number)
            except Exception as trouble:
                if is_lost(trouble):
                    self.drop()
                elif not (is_in_the_way(trouble) or is_crowded(trouble)):
                    break
            else:
                if last == self.batch:
                    return
                raise lost
            # Not reachable, or the server itself has not noticed yet.
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        raise StorageError(
            f"The connection to the database {self._options.name} broke during a commit, and it could not be learned "
            "whether that was written. Look before sending it again"
        ) from lost
