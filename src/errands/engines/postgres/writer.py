"""The one task that writes. It takes whatever is queued as one transaction: group commit.

When the connection breaks, what was not yet committed is written again on another one. When it breaks while a
commit is under way, PostgreSQL is asked what became of the transaction before anybody is told anything.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from errands.engines.postgres.changes import Changes, SavedContext
from errands.engines.postgres.connection import Connection, Options, connect
from errands.engines.postgres.failures import explain, is_in_the_way, is_lost
from errands.engines.postgres.sql import QUERIES
from errands.errors import ErrandsError, StorageError
from errands.model.log import Change

#: A transaction that has so many jobs takes no more of them, so that the first does not wait for ever.
MAX_BATCH = 512
#: Seconds before a broken connection is made again: at first, and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
#: How often two transactions that are in each other's way are tried again.
_TRIES = 5

#: A function of `jobs` with its arguments bound.
Task = Callable[[Connection], Awaitable[Any]]
Work = Change | SavedContext | Task


class Job(NamedTuple):
    work: Work
    future: asyncio.Future[Any]
    #: When it was submitted, on the loop's clock.
    at: float


#: A job and what came of it: `Written` for a change, the function's result, or the error.
Outcome = tuple[Job, Any]


class Writer:
    """The task, its queue and its connection. `deliver` hears of what is durable."""

    def __init__(self, options: Options, changes: Changes, deliver: Callable[[list[Outcome]], None]) -> None:
        self._options = options
        self._changes = changes
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Job] = deque()
        self._wake = asyncio.Event()
        self._stopping = False
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        #: How many transactions were committed; what group commit saves is seen here.
        self.transactions = 0

    def start(self, connection: Connection) -> None:
        self._connection = connection
        self._task = self._loop.create_task(self._run(), name="errands-postgres-writer")

    def submit(self, work: Work) -> asyncio.Future[Any]:
        """Queues work; whatever else this turn of the event loop submits comes along."""
        future = self._loop.create_future()
        self._queue.append(Job(work, future, self._loop.time()))
        self._wake.set()
        return future

    async def stop(self) -> None:
        """Writes what is queued, then ends."""
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await self._task
        connection, self._connection = self._connection, None
        if connection is not None:
            await _close(connection)

    async def _run(self) -> None:
        while self._queue or not self._stopping:
            if not self._queue:
                self._wake.clear()
                await self._wake.wait()
                continue
            self._deliver(await self._transact(self._take()))

    def _take(self) -> list[Job]:
        """What may share a transaction: a run of changes, or one other job."""
        jobs = [self._queue.popleft()]
        if _is_batched(jobs[0]):
            while self._queue and len(jobs) < MAX_BATCH and _is_batched(self._queue[0]):
                jobs.append(self._queue.popleft())
        return jobs

    async def _transact(self, jobs: list[Job]) -> list[Outcome]:
        """Does it, in spite of connections that break, for as long as there is patience."""
        pause, tries = _FIRST_PAUSE, 0
        while True:
            try:
                return await self._attempt(jobs)
            except Exception as error:
                if is_lost(error):
                    self._drop()
                    if self._loop.time() - jobs[0].at > self._options.patience:
                        return self._failed(jobs, error)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
                    continue
                await self._roll_back()
                tries += 1
                if is_in_the_way(error) and tries < _TRIES:
                    continue
                if len(jobs) > 1 and not isinstance(error, StorageError):
                    # One of the jobs cannot be stored at all: alone, it fails alone.
                    return [outcome for job in jobs for outcome in await self._transact([job])]
                return self._failed(jobs, error)

    async def _attempt(self, jobs: list[Job]) -> list[Outcome]:
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect(self._options)
        connection = self._connection
        await connection.execute("BEGIN")
        results, transaction = await self._do(connection, jobs)
        await self._commit(connection, transaction)
        self.transactions += 1
        return list(zip(jobs, results, strict=True))

    async def _do(self, connection: Connection, jobs: list[Job]) -> tuple[Sequence[Any], str | None]:
        works: list[Any] = [job.work for job in jobs]
        if _is_batched(jobs[0]):
            return await self._changes.write(connection, works)
        try:
            result = await works[0](connection)
        except ErrandsError as error:
            return [error], None
        return [result], await connection.fetchval(QUERIES["transaction"])

    async def _commit(self, connection: Connection, transaction: str | None) -> None:
        try:
            await connection.execute("COMMIT")
        except Exception as error:
            if transaction is None or not is_lost(error):
                raise
            self._drop()
            if not await self._was_committed(transaction, error):
                raise

    async def _was_committed(self, transaction: str, error: Exception) -> bool:
        """What became of a transaction whose end nobody has heard. Raises `StorageError` when it cannot be learned."""
        deadline = self._loop.time() + 3 * self._options.patience
        pause = _FIRST_PAUSE
        while self._loop.time() < deadline:
            try:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await connect(self._options)
                fate = await self._connection.fetchval(QUERIES["fate"], transaction)
            except Exception as trouble:
                if not is_lost(trouble):
                    break
                self._drop()
            else:
                if fate in ("committed", "aborted"):
                    return bool(fate == "committed")
            # Not reachable, or the server itself has not noticed yet.
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        raise StorageError(
            f"The connection to the database {self._options.name} broke during a commit, and it could not be learned "
            "whether that was written. Look before sending it again"
        ) from error

    def _failed(self, jobs: list[Job], error: Exception) -> list[Outcome]:
        # An error of its own for each: callers may add to it.
        return [(job, StorageError(*explain(error, self._options.name).args)) for job in jobs]

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def _roll_back(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            if connection.is_in_transaction():
                await connection.execute("ROLLBACK")
        except Exception:
            self._drop()


def _is_batched(job: Job) -> bool:
    return isinstance(job.work, Change | SavedContext)


async def _close(connection: Connection) -> None:
    """Says goodbye when the server still listens."""
    try:
        await connection.close(timeout=1.0)
    except Exception:
        connection.terminate()
