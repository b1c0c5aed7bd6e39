"""The engine over one SQLite file: durable, shared by the processes of one machine, and nothing to set up.

One thread writes and a few read; this class hands work to them and tells this process what was written.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from errands.clock import Clock, system_clock
from errands.engines.base import Abandoned, Events, Ids, Retention, Running, Schema, Tasks
from errands.engines.commit import LocalEngine
from errands.engines.connection import StoreProbe
from errands.engines.retention import apply_retention
from errands.engines.sqlite import queries, retention, store
from errands.engines.sqlite.connection import ReaderThreads, SQLiteOptions
from errands.engines.sqlite.schema import SQLiteSchema, make_directory
from errands.engines.sqlite.store import SQLiteStore
from errands.engines.subscriptions import READ_SIZE, LocalSubscription
from errands.errors import ConfigurationError, StorageError
from errands.model.log import (
    AskingQuery,
    Change,
    Head,
    Lease,
    LeaseSignal,
    ListPage,
    ListQuery,
    LogSlice,
    Scope,
    StoredTask,
)

#: Tasks that are read at a time when all are.
_STEP = 100


class SQLiteEngine(LocalEngine):
    """Bound to the event loop that opens it. A process that forks must open its own."""

    name = "sqlite"
    durable = True

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
        self._readers: ReaderThreads | None = None
        self._probe = StoreProbe(f"The database {name}", self._look, self._try_to_write)
        #: When another process was last seen to write, on the loop's clock.
        self._others_wrote_at = float("-inf")
        #: The versions of the watched tasks when another process had last written.
        self._versions: dict[str, int] = {}

    @property
    def path(self) -> str:
        """The database file."""
        return self._options.path

    @property
    def transactions(self) -> int:
        """The number of transactions that this engine has committed since it was opened."""
        return self._open_store.transactions

    @property
    def schema(self) -> Schema:
        return SQLiteSchema(self._options)

    async def open(self) -> None:
        if self._store is not None:
            raise StorageError(f"The database {self.path} is already open in this engine")
        # Readers connect later, when the process may have changed its directory.
        self._options = self._options.absolute()
        make_directory(Path(self.path).parent)
        store = SQLiteStore(self._options, self._poll_interval, self.deliver, self._others_wrote)
        await store.start()
        self._store, self._readers = store, ReaderThreads(self._options, store.file)

    async def close(self) -> None:
        store, self._store = self._store, None
        readers, self._readers = self._readers, None
        if store is None or readers is None:
            return
        self.disconnect()
        await readers.close()
        await store.stop()
        await self._probe.stop()

    async def check(self) -> None:
        if not self._open_store.alive:
            raise StorageError(f"The writer of the database {self.path} has stopped. Restart the process")
        await self._probe()

    async def _look(self) -> None:
        await self._open_readers.submit(queries.check)

    async def _try_to_write(self) -> None:
        await self._open_store.submit(store.probe)

    @property
    def _open_store(self) -> SQLiteStore:
        if self._store is None:
            raise self._closed()
        return self._store

    @property
    def _open_readers(self) -> ReaderThreads:
        if self._readers is None:
            raise self._closed()
        return self._readers

    def _closed(self) -> StorageError:
        return StorageError(f"The database {self.path} is not open: the engine was closed or never opened")

    # Writing

    async def commit(self, change: Change) -> Head:
        head: Head = await self._open_store.submit(change)
        return head

    async def delete(self, task_id: str, scope: Scope) -> None:
        await self._open_store.submit(partial(retention.delete, task_id=task_id, scope=scope))

    async def _lease_due(self, worker: str, agents: Sequence[str], limit: int, until: int) -> Tasks:
        claimed: list[StoredTask] = await self._open_store.submit(
            partial(store.claim, worker=worker, agents=agents, limit=limit, now=self.clock(), until=until)
        )
        return claimed

    async def extend(self, worker: str, leases: Sequence[Lease], until: int) -> list[LeaseSignal]:
        signals: list[LeaseSignal] = await self._open_store.submit(
            partial(store.extend, worker=worker, leases=leases, until=until)
        )
        return signals

    async def sweep(self, every: float = 0.0) -> int:
        now = self.clock()
        sweep = retention.SQLiteSweep(self._open_store, self._open_readers)
        if not await sweep.begin(now, int(every * 1000)):
            return 0
        return await apply_retention(sweep, self.retention, now)

    # Reading

    async def load(self, task_id: str, scope: Scope | None) -> StoredTask:
        return await self._open_readers.submit(queries.load, task_id, scope)

    async def list(self, query: ListQuery) -> ListPage:
        return await self._open_readers.submit(queries.page, query, self.clock())

    async def every_task(self) -> AsyncIterator[StoredTask]:
        last: int | None = 0
        while last is not None:
            tasks, last = await self._open_readers.submit(queries.some_tasks, last, _STEP)
            for stored in tasks:
                yield stored

    async def asking(self, query: AskingQuery) -> Tasks:
        return await self._open_readers.submit(queries.asking, query)

    async def abandoned(self, agent: str, paused_by: int, created_by: int, limit: int) -> Abandoned:
        return await self._open_readers.submit(queries.abandoned, agent, paused_by, created_by, limit)

    async def load_context(self, scope: Scope, context_id: str) -> bytes | None:
        return await self._open_readers.submit(queries.load_context, scope, context_id)

    async def read(self, task_id: str, scope: Scope, after: int, limit: int = READ_SIZE) -> LogSlice:
        return await self._open_readers.submit(queries.read, task_id, scope, after, limit)

    async def records(self, task_id: str, scope: Scope) -> Events:
        return await self._open_readers.submit(queries.records, task_id, scope)

    async def wanted_canceled(self, worker: str) -> Ids:
        return await self._open_readers.submit(queries.wanted_canceled, worker)

    async def running(self) -> Running:
        return await self._open_readers.submit(queries.running, self.clock())

    async def queue_age(self, agents: Sequence[str]) -> int | None:
        return await self._open_readers.submit(queries.queue_age, agents, self.clock())

    # Hearing of other processes

    def subscribe(self, task_id: str, scope: Scope, after: int, *, caught_up: bool = False) -> LocalSubscription:
        # What another process wrote on top may have been announced before this subscription was there.
        alone = asyncio.get_running_loop().time() - self._others_wrote_at > 10 * self._poll_interval
        return super().subscribe(task_id, scope, after, caught_up=caught_up and alone)

    def _others_wrote(self) -> None:
        """Find out whether what another process wrote concerns this one. Called on the event loop."""
        self._others_wrote_at = asyncio.get_running_loop().time()
        watched = self.subscribers.watched()
        if self._readers is not None and (watched or self._wakers):
            look = self._readers.submit(queries.changed, watched, self.clock())
            look.add_done_callback(partial(self._hear, watched))

    def _hear(self, watched: Sequence[str], look: asyncio.Future[queries.Changed]) -> None:
        """Pass on what concerns this process: processes that only extend their leases must not wake each other."""
        if look.cancelled() or look.exception() is not None:
            self.subscribers.nudge(watched)
            self.wake_workers()
            return
        before, self._versions = self._versions, look.result().versions
        self.subscribers.nudge(task for task in watched if self._versions.get(task) != before.get(task, -1))
        if look.result().has_work:
            self.wake_workers()
