"""The engine over one SQLite file: durable, shared by the processes of one machine, and nothing to set up.

One thread writes and a few read; this class passes work to them and publishes what was written.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from errands.clock import Clock, system_clock
from errands.engines.base import Entries, Flags, Retention, Schema, Tasks
from errands.engines.connection import StoreProbe
from errands.engines.retention import apply_retention
from errands.engines.sqlite import retention, store
from errands.engines.sqlite.connection import ReaderThreads, SQLiteOptions
from errands.engines.sqlite.queries import QUERIES, SQLiteQueries, json_text, reading
from errands.engines.sqlite.schema import SQLiteSchema, make_directory
from errands.engines.sqlite.store import SQLiteStore
from errands.engines.subscriptions import Subscription
from errands.errors import ConfigurationError, StorageError
from errands.model.base import encode
from errands.model.log import (
    AccessEntry,
    Change,
    Delivery,
    Head,
    Lease,
    LeaseSignal,
    ProcessReport,
    Scope,
    silent_since,
)

_read_versions = msgspec.json.Decoder(dict[str, int]).decode


class SQLiteEngine(SQLiteQueries):
    """Tasks in a SQLite file. It is bound to the event loop that opens it; a process that forks must open its own."""

    name = "sqlite"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock = system_clock,
        retention: Retention | None = None,
        synchronous: Literal["NORMAL", "FULL"] = "NORMAL",
        busy_timeout: float = 5.0,
        poll_interval: float = 0.1,
    ) -> None:
        super().__init__(clock=clock, retention=retention)
        name = os.fspath(path)
        if name in ("", ":memory:"):
            raise ConfigurationError(
                f'The path {name!r} is not a file: name one, or use storage="memory" for tasks that may be lost'
            )
        if synchronous not in ("NORMAL", "FULL"):
            raise ConfigurationError(f"synchronous is {synchronous!r}; it can be 'NORMAL' or 'FULL'")
        self._options = SQLiteOptions(name, synchronous, busy_timeout)
        self._poll_interval = poll_interval
        self._store: SQLiteStore | None = None
        self._probe = StoreProbe(f"The database {name}", self._look, lambda: self.store.do(store.probe))
        #: When another process was last seen to write, on the loop's clock.
        self._others_wrote_at = float("-inf")
        #: The versions of the watched tasks when another process had last written.
        self._versions: dict[str, int] = {}

    @property
    def path(self) -> str:
        """The database file."""
        return self._options.path

    @property
    def schema(self) -> Schema:
        return SQLiteSchema(self._options)

    @property
    def store(self) -> SQLiteStore:
        """The thread that writes. Raises `StorageError` when the engine is not open."""
        if self._store is None:
            raise StorageError(f"The database {self.path} is not open: the engine was closed or never opened")
        return self._store

    @property
    def readers(self) -> ReaderThreads:
        return self.store.readers

    async def open(self) -> None:
        if self._store is not None:
            raise StorageError(f"The database {self.path} is already open in this engine")
        # Readers connect later, when the process may have changed its directory.
        self._options = self._options.absolute()
        make_directory(Path(self.path).parent)
        store = SQLiteStore(self._options, self._poll_interval, self.deliver, self._others_wrote, self.counts)
        await store.start()
        self._store = store

    async def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            self.disconnect()
            await store.stop()
            await self._probe.stop()

    async def check(self) -> None:
        if not self.store.alive:
            raise StorageError(f"The writer of the database {self.path} has stopped. Restart the process")
        await self._probe()

    @reading
    def _look(self, connection: sqlite3.Connection) -> None:
        connection.execute(QUERIES["record"], ("",)).fetchone()

    # Writing

    async def commit(self, change: Change) -> Head:
        return await self.store.commit(change)

    async def delete(self, task_id: str, scope: Scope) -> None:
        await self.store.do(lambda connection: retention.delete(connection, task_id, scope))

    async def _lease_due(self, worker: str, agents: Sequence[str], limit: int, until: int) -> Tasks:
        now = self.clock()
        return await self.store.do(lambda connection: store.claim(connection, worker, agents, limit, now, until))

    async def extend(self, worker: str, leases: Sequence[Lease], until: int) -> list[LeaseSignal]:
        return await self.store.do(lambda connection: store.extend(connection, worker, leases, until))

    async def _lease_deliveries(self, agent: str, wanted: Mapping[str, int], now: int, until: int) -> Entries:
        return await self.store.do_in_outbox(
            lambda connection: store.lease_deliveries(connection, agent, wanted, now, until)
        )

    async def settle_deliveries(self, deliveries: Sequence[Delivery]) -> Flags:
        now = self.clock()
        return await self.store.do_in_outbox(lambda connection: store.settle_deliveries(connection, deliveries, now))

    async def retry_delivery(self, task_id: str, config_id: str) -> bool:
        now = self.clock()
        return await self.store.do_in_outbox(
            lambda connection: store.retry_delivery(connection, task_id, config_id, now)
        )

    async def note_access(self, entry: AccessEntry) -> None:
        values = entry.at, entry.id, encode(entry)
        await self.store.do_in_outbox(lambda connection: connection.execute(QUERIES["note_access"], values).rowcount)

    async def report(self, report: ProcessReport) -> None:
        values, silent = (report.id, report.at, encode(report)), (silent_since(self.clock()),)

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(QUERIES["delete_reports"], silent)
            connection.execute(QUERIES["report"], values)

        await self.store.do_in_outbox(write)

    async def forget_process(self, process_id: str) -> None:
        values = (process_id,)
        await self.store.do_in_outbox(lambda connection: connection.execute(QUERIES["delete_report"], values).rowcount)

    async def sweep(self, every: float = 0.0) -> int:
        now = self.clock()
        sweep = retention.SQLiteSweep(self.store)
        return await apply_retention(sweep, self.retention, now) if await sweep.begin(now, int(every * 1000)) else 0

    # Hearing of other processes

    def subscribe(self, task_id: str, scope: Scope, after: int, *, caught_up: bool = False) -> Subscription:
        # What another process wrote on top may have been announced before this subscription was there.
        alone = asyncio.get_running_loop().time() - self._others_wrote_at > 10 * self._poll_interval
        return super().subscribe(task_id, scope, after, caught_up=caught_up and alone)

    def _others_wrote(self) -> None:
        """Find out whether what another process wrote concerns this one. Called on the event loop."""
        self._others_wrote_at = asyncio.get_running_loop().time()
        watched, now = self.subscribers.watched(), self.clock()
        if self._store is not None and (watched or self._wakers):

            def look(connection: sqlite3.Connection) -> tuple[dict[str, int], bool]:
                """Return the versions of the watched tasks, and whether there is a task to claim or to cancel."""
                versions = connection.execute(QUERIES["versions"], (json_text(watched),)).fetchone()[0]
                return _read_versions(versions), bool(connection.execute(QUERIES["has_work"], (now,)).fetchone()[0])

            self._store.readers.submit(look).add_done_callback(lambda found: self._hear(watched, found))

    def _hear(self, watched: Sequence[str], found: asyncio.Future[tuple[dict[str, int], bool]]) -> None:
        """Pass on what concerns this process: processes that only extend their leases must not wake each other."""
        is_known = not found.cancelled() and found.exception() is None
        versions, has_work = found.result() if is_known else ({}, True)
        before, self._versions = self._versions, versions
        self.subscribers.nudge(task for task in watched if versions.get(task) != before.get(task, -1))
        if has_work:
            self.wake_workers()
