"""The engine over one PostgreSQL database: durable, and shared by any number of processes on any number of machines.

A few lanes write, a pool reads, one connection listens; this class hands work to them and tells this process what was
written.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from functools import partial

import asyncpg

from errands.clock import Clock, system_clock
from errands.engines.base import Abandoned, Events, Ids, Retention, Running, Schema, Tasks
from errands.engines.commit import LocalEngine
from errands.engines.connection import PROBE_TIMEOUT, StoreProbe, store_clock
from errands.engines.postgres import queries, retention, store
from errands.engines.postgres.connection import READ_ONLY, PostgresOptions, ReaderPool, connect, explain
from errands.engines.postgres.notifications import Notifications
from errands.engines.postgres.schema import PostgresSchema, check_session, ensure_schema
from errands.engines.postgres.store import PostgresStore, Process
from errands.engines.subscriptions import READ_SIZE
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

#: The number of processes that have tallies of their own and do not wait for each other; more share some.
_SHARES = 32
#: Tasks that are read at a time when all are.
_STEP = 100


class PostgresEngine(LocalEngine):
    """Bound to the event loop that opens it. A process that forks must open its own."""

    name = "postgresql"
    durable = True

    def __init__(
        self,
        url: str,
        *,
        clock: Clock = system_clock,
        retention: Retention | None = None,
        poll_interval: float = 1.0,
        patience: float = 10.0,
        command_timeout: float = 15.0,
    ) -> None:
        super().__init__(clock=store_clock(clock), retention=retention)
        self._options = PostgresOptions.parse(url, patience=patience, command_timeout=command_timeout)
        self._poll_interval = poll_interval
        self._store: PostgresStore | None = None
        self._readers: ReaderPool | None = None
        self._notifications: Notifications | None = None
        self._probe = StoreProbe(f"The database {self._options.name}", self._look, self._try_to_write)

    @property
    def transactions(self) -> int:
        """The number of transactions that this engine has committed since it was opened."""
        return self._open_store.transactions

    @property
    def schema(self) -> Schema:
        return PostgresSchema(self._options)

    async def open(self) -> None:
        if self._store is not None:
            raise StorageError(f"The database {self._options.name} is already open in this engine")
        try:
            connection = await connect(self._options)
            try:
                await check_session(connection, self._options)
                await ensure_schema(connection, self._options)
                await queries.compare_clock(connection, self.clock, f"the database {self._options.name}")
                readers = ReaderPool(self._options)
                await readers.start()
            except BaseException:
                connection.terminate()
                raise
        except asyncpg.exceptions.ClientConfigurationError as error:
            raise ConfigurationError(f"the storage URL of {self._options.name} is not valid: {error}") from error
        except Exception as error:
            raise explain(error, self._options.name) from error
        name = secrets.token_hex(6)
        first_shard = 1 + int(name, 16) % _SHARES * self._options.lanes
        process = Process(name, first_shard, self._options.schema, self.subscribers.watches)
        self._readers = readers
        self._notifications = Notifications(
            self._options, name, readers, self.subscribers, self.wake_workers, self.clock, self._poll_interval
        )
        self._notifications.start()
        self._store = PostgresStore(self._options, process, self.deliver, self._notifications.note)
        self._store.start(connection)

    async def close(self) -> None:
        store, self._store = self._store, None
        readers, self._readers = self._readers, None
        notifications, self._notifications = self._notifications, None
        if store is None or readers is None or notifications is None:
            return
        self.disconnect()
        await store.stop()
        await notifications.stop()
        await readers.close()
        await self._probe.stop()

    async def check(self) -> None:
        if self._readers is None:
            raise self._closed()
        await self._probe()

    async def _look(self) -> None:
        """Raises `StorageError` when the tables cannot be read right now, or not written to."""
        patience = min(PROBE_TIMEOUT, self._options.patience)
        if await self._open_readers.try_for(patience, queries.is_read_only):
            await self._open_readers.renew()
            if await self._open_readers.try_for(patience, queries.is_read_only):
                raise StorageError(f"The database {self._options.name} {READ_ONLY}")

    async def _try_to_write(self) -> None:
        await self._open_readers.try_for(min(PROBE_TIMEOUT, self._options.patience), queries.try_to_write)

    @property
    def _open_store(self) -> PostgresStore:
        if self._store is None:
            raise self._closed()
        return self._store

    @property
    def _open_readers(self) -> ReaderPool:
        if self._readers is None:
            raise self._closed()
        return self._readers

    def _closed(self) -> StorageError:
        return StorageError(f"The database {self._options.name} is not open: the engine was closed or never opened")

    # Writing

    async def commit(self, change: Change) -> Head:
        head: Head = await self._open_store.submit(change, change.task_id)
        return head

    async def delete(self, task_id: str, scope: Scope) -> None:
        await self._open_store.submit(partial(retention.delete, task_id=task_id, scope=scope), task_id)

    async def _lease_due(self, worker: str, agents: Sequence[str], limit: int, until: int) -> Tasks:
        work = partial(store.claim, worker=worker, agents=agents, limit=limit, now=self.clock(), until=until)
        claimed: list[StoredTask] = await self._open_store.submit(work)
        return claimed

    async def extend(self, worker: str, leases: Sequence[Lease], until: int) -> list[LeaseSignal]:
        work = partial(store.extend, worker=worker, leases=leases, until=until)
        signals: list[LeaseSignal] = await self._open_store.submit(work)
        return signals

    async def sweep(self, every: float = 0.0) -> int:
        async with self._open_readers.connection() as connection:
            return await retention.sweep(connection, self.retention, self.clock(), int(every * 1000))

    # Reading

    async def load(self, task_id: str, scope: Scope | None) -> StoredTask:
        return await self._open_readers.call(queries.load, task_id, scope)

    async def list(self, query: ListQuery) -> ListPage:
        return await self._open_readers.call(queries.page, query, self.clock())

    async def every_task(self) -> AsyncIterator[StoredTask]:
        last: str | None = ""
        while last is not None:
            tasks, last = await self._open_readers.call(queries.some_tasks, last, _STEP)
            for stored in tasks:
                yield stored

    async def asking(self, query: AskingQuery) -> Tasks:
        return await self._open_readers.call(queries.asking, query)

    async def abandoned(self, agent: str, paused_by: int, created_by: int, limit: int) -> Abandoned:
        return await self._open_readers.call(queries.abandoned, agent, paused_by, created_by, limit)

    async def load_context(self, scope: Scope, context_id: str) -> bytes | None:
        return await self._open_readers.call(queries.load_context, scope, context_id)

    async def read(self, task_id: str, scope: Scope, after: int, limit: int = READ_SIZE) -> LogSlice:
        return await self._open_readers.call(queries.read, task_id, scope, after, limit)

    async def records(self, task_id: str, scope: Scope) -> Events:
        return await self._open_readers.call(queries.records, task_id, scope)

    async def wanted_canceled(self, worker: str) -> Ids:
        return await self._open_readers.call(queries.wanted_canceled, worker)

    async def running(self) -> Running:
        return await self._open_readers.call(queries.running, self.clock())

    async def queue_age(self, agents: Sequence[str]) -> int | None:
        return await self._open_readers.call(queries.queue_age, agents, self.clock())

    def _watch(self, task_id: str) -> None:
        if self._notifications is not None:
            self._notifications.watch(task_id)
