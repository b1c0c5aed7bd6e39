"""The one thread that writes. It takes whatever is queued as one transaction: group commit.

The event loop queues jobs and hears of them once they are durable; the thread touches nothing of the loop's.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import groupby
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from errands.engines.sqlite.changes import write_changes
from errands.engines.sqlite.connection import Options, ServedFile, open_writer
from errands.engines.sqlite.failures import FileGoneError, concerns_the_file, explain
from errands.errors import ErrandsError, StorageError
from errands.model.log import Change

#: A transaction that has so many jobs takes no more of them, so that the first does not wait for ever.
MAX_BATCH = 512
#: Seconds between looks at whether the files are still those that were opened. A look at every commit costs a
#: twentieth of a send's time, and what was acknowledged before the file was deleted is lost with it in any case.
CHECK_FILE_EVERY = 0.002

#: A change, or a function of `jobs` with its arguments bound.
Write = Change | Callable[[sqlite3.Connection], Any]


class Job(NamedTuple):
    work: Write
    future: asyncio.Future[Any]


#: A job and what came of it: `Written` for a change, the function's result, or the error.
Outcome = tuple[Job, Any]


class Writer:
    """The thread and its queue. `deliver` and `others_wrote` are called on the event loop."""

    def __init__(
        self,
        options: Options,
        poll_interval: float,
        deliver: Callable[[list[Outcome]], None],
        others_wrote: Callable[[], None],
    ) -> None:
        self._options = options
        self._poll_interval = poll_interval
        self._deliver = deliver
        self._others_wrote = others_wrote
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[list[Job] | None] = SimpleQueue()
        #: Submitted in this turn of the event loop.
        self._pending: list[Job] = []
        self._thread = threading.Thread(target=self._run, name="errands-sqlite-writer", daemon=True)
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._data_version = 0
        self._polled_at = time.monotonic()
        #: Whether the files were not where they were opened when they were last looked for.
        self._is_gone = False
        self._checked_at = 0.0
        #: How many transactions were committed; what group commit saves is seen here.
        self.transactions = 0

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    async def start(self) -> None:
        """Opens the file. Raises `StorageError`; then no thread is left."""
        self._thread.start()
        try:
            await self._opened
        except BaseException:
            self._queue.put(None)
            self._thread.join()
            raise

    def submit(self, work: Write) -> asyncio.Future[Any]:
        """Queues work at the end of this turn of the event loop.

        Whatever else the turn submits comes along, and the thread does not fight for the interpreter's lock with a
        loop that is about to give it more to do.
        """
        future = self._loop.create_future()
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append(Job(work, future))
        return future

    def _flush(self) -> None:
        for start in range(0, len(self._pending), MAX_BATCH):
            self._queue.put(self._pending[start : start + MAX_BATCH])
        self._pending = []

    async def stop(self) -> None:
        """Writes what is queued, then ends the thread."""
        self._flush()
        self._queue.put(None)
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
            self._tell(_settle, self._opened, None)
            self._serve(connection)
        finally:
            with suppress(sqlite3.Error):
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            connection.close()
            self._tell(_settle, self._stopped, None)

    def _serve(self, connection: sqlite3.Connection) -> None:
        going = True
        while going and not self._loop.is_closed():
            jobs, going = self._take()
            if jobs:
                self._tell(self._deliver, self._transact(connection, jobs))
            if not jobs or time.monotonic() - self._polled_at >= self._poll_interval:
                self._poll(connection)

    def _take(self) -> tuple[list[Job], bool]:
        """What is queued, after waiting for it for one poll interval; false when nothing will follow."""
        jobs: list[Job] = []
        with suppress(Empty):
            queued = self._queue.get(timeout=self._poll_interval)
            while queued is not None:
                jobs += queued
                if len(jobs) >= MAX_BATCH:
                    return jobs, True
                queued = self._queue.get_nowait()
            return jobs, False
        return jobs, True

    def _transact(self, connection: sqlite3.Connection, jobs: list[Job]) -> list[Outcome]:
        try:
            return self._attempt(connection, jobs)
        except Exception as error:
            with suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            if len(jobs) > 1 and not concerns_the_file(error):
                # One of the jobs cannot be stored at all: alone, it fails alone.
                return [outcome for job in jobs for outcome in self._transact(connection, [job])]
            return [(job, self._failure(error)) for job in jobs]

    def _attempt(self, connection: sqlite3.Connection, jobs: list[Job]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        if self._is_gone:
            self._check_file()
        connection.execute("BEGIN IMMEDIATE")
        for are_changes, run in groupby(jobs, _is_change):
            outcomes += (_write_changes if are_changes else _do)(connection, list(run))
        connection.execute("COMMIT")
        # After the commit: none is acknowledged that went into a file that is gone.
        if time.monotonic() - self._checked_at >= CHECK_FILE_EVERY:
            self._check_file()
        self.transactions += 1
        return outcomes

    def _check_file(self) -> None:
        self._is_gone = True
        self.file.check()
        self._is_gone = False
        self._checked_at = time.monotonic()

    def _failure(self, error: Exception) -> ErrandsError:
        if isinstance(error, StorageError):
            # One of its own for each: callers may add to it.
            return type(error)(*error.args)
        failure = explain(error, self._options.path)
        failure.__cause__ = error
        return failure

    def _poll(self, connection: sqlite3.Connection) -> None:
        """Finds out whether somebody else has written: this number changes for no other reason."""
        self._polled_at = time.monotonic()
        with suppress(FileGoneError):
            self._check_file()
        with suppress(sqlite3.Error):
            version = _data_version(connection)
            if version != self._data_version:
                self._data_version = version
                self._tell(self._others_wrote)

    def _tell(self, function: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to hear it
            self._loop.call_soon_threadsafe(function, *arguments)


def _is_change(job: Job) -> bool:
    return type(job.work) is Change


def _write_changes(connection: sqlite3.Connection, jobs: list[Job]) -> Iterable[Outcome]:
    changes: list[Any] = [job.work for job in jobs]
    return zip(jobs, write_changes(connection, changes), strict=True)


def _do(connection: sqlite3.Connection, jobs: list[Job]) -> Iterable[Outcome]:
    for job in jobs:
        assert not isinstance(job.work, Change)
        try:
            yield job, job.work(connection)
        except ErrandsError as error:
            yield job, error


def _data_version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA data_version").fetchone()[0]
    return version


def _settle(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
