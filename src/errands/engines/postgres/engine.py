"""The engine over one PostgreSQL database: durable, and shared by any number of processes on any number of machines.

A few lanes write, a pool reads, one connection listens; this class passes work to them and publishes what was written.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import asyncpg

from errands.clock import Clock, system_clock
from errands.engines.base import Entries, Flags, Retention, Schema, Tasks
from errands.engines.connection import PROBE_TIMEOUT, StoreProbe, store_clock
from errands.engines.postgres import retention, store
from errands.engines.postgres.connection import READ_ONLY, Connection, PostgresOptions, ReaderPool, connect, explain
from errands.engines.postgres.notifications import Notifications
from errands.engines.postgres.queries import QUERIES, PostgresQueries, are_texts, storable
from errands.engines.postgres.schema import PostgresSchema, check_session, ensure_schema
from errands.engines.postgres.store import PostgresStore
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


class PostgresParts(NamedTuple):
    """The parts of an open engine."""

    store: PostgresStore
    readers: ReaderPool
    notifications: Notifications


class PostgresEngine(PostgresQueries):
    """Tasks in PostgreSQL. It is bound to the event loop that opens it; a process that forks must open its own."""

    name = "postgresql"

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
        self._parts: PostgresParts | None = None
        self._probe = StoreProbe(f"The database {self._options.name}", self._look, self._try_to_write)
        self._probe_patience = min(PROBE_TIMEOUT, patience)

    @property
    def schema(self) -> Schema:
        return PostgresSchema(self._options)

    @property
    def parts(self) -> PostgresParts:
        """The parts of the open engine. Raises `StorageError` when it is not open."""
        if self._parts is None:
            raise StorageError(f"The database {self._options.name} is not open: the engine was closed or never opened")
        return self._parts

    @property
    def readers(self) -> ReaderPool:
        return self.parts.readers

    async def open(self) -> None:
        options = self._options
        if self._parts is not None:
            raise StorageError(f"The database {options.name} is already open in this engine")
        try:
            connection = await connect(options)
            try:
                await check_session(connection, options)
                await ensure_schema(connection, options)
                await self.compare_clock(connection, options.name)
                readers = ReaderPool(options)
                await readers.start()
            except BaseException:
                connection.terminate()
                raise
        except asyncpg.exceptions.ClientConfigurationError as error:
            raise ConfigurationError(f"the storage URL of {options.name} is not valid: {error}") from error
        except Exception as error:
            raise explain(error, options.name) from error
        process = secrets.token_hex(6)
        notifications = Notifications(self, options, process, self._poll_interval)
        store = PostgresStore(self, options, process, notifications.note)
        self._parts = PostgresParts(store, readers, notifications)
        notifications.start()
        store.start(connection)

    async def close(self) -> None:
        parts, self._parts = self._parts, None
        if parts is not None:
            self.disconnect()
            await parts.store.stop()
            await parts.notifications.stop()
            await parts.readers.close()
            await self._probe.stop()

    async def check(self) -> None:
        _ = self.parts
        await self._probe()

    async def _look(self) -> None:
        """Raises `StorageError` when the tables cannot be read right now, or not written to."""

        async def is_read_only(connection: Connection) -> bool:
            return bool(await connection.fetchval(QUERIES["check"]))

        if await self.readers.call(is_read_only, self._probe_patience):
            await self.readers.renew()
            if await self.readers.call(is_read_only, self._probe_patience):
                raise StorageError(f"The database {self._options.name} {READ_ONLY}")

    async def _try_to_write(self) -> None:
        """Insert an event that belongs to no task and roll it back. Fails when a message could not be stored."""

        async def write(connection: Connection) -> None:
            transaction = connection.transaction()
            await transaction.start()
            try:
                await connection.execute(QUERIES["probe"])
            finally:
                await transaction.rollback()

        await self.readers.call(write, self._probe_patience)

    # Writing

    async def commit(self, change: Change) -> Head:
        return await self.parts.store.commit(change)

    async def delete(self, task_id: str, scope: Scope) -> None:
        await self.parts.store.do(lambda connection: retention.delete(connection, task_id, scope), task_id)

    async def _lease_due(self, worker: str, agents: Sequence[str], limit: int, until: int) -> Tasks:
        now = self.clock()
        return await self.parts.store.do(lambda connection: store.claim(connection, worker, agents, limit, now, until))

    async def extend(self, worker: str, leases: Sequence[Lease], until: int) -> list[LeaseSignal]:
        return await self.parts.store.do(lambda connection: store.extend(connection, worker, leases, until))

    async def _lease_deliveries(self, agent: str, wanted: Mapping[str, int], now: int, until: int) -> Entries:
        return await self.parts.store.do(
            lambda connection: store.lease_deliveries(connection, agent, wanted, now, until)
        )

    async def settle_deliveries(self, deliveries: Sequence[Delivery]) -> Flags:
        now = self.clock()
        return await self.parts.store.do(lambda connection: store.settle_deliveries(connection, deliveries, now))

    async def retry_delivery(self, task_id: str, config_id: str) -> bool:
        if not are_texts(task_id, config_id):
            return False
        values = storable(task_id), storable(config_id), self.clock()
        done = await self.parts.store.do(lambda connection: connection.fetchval(QUERIES["retry_entry"], *values))
        return bool(done)

    async def note_access(self, entry: AccessEntry) -> None:
        values = entry.at, entry.id, encode(entry)
        await self.parts.store.do(lambda connection: connection.execute(QUERIES["note_access"], *values))

    async def report(self, report: ProcessReport) -> None:
        values = storable(report.id), report.at, encode(report), silent_since(self.clock())
        await self.parts.store.do(lambda connection: connection.execute(QUERIES["report"], *values))

    async def forget_process(self, process_id: str) -> None:
        name = storable(process_id)
        await self.parts.store.do(lambda connection: connection.execute(QUERIES["delete_report"], name))

    async def sweep(self, every: float = 0.0) -> int:
        async with self.readers.connection() as connection:
            return await retention.sweep(connection, self.retention, self.clock(), int(every * 1000))

    def _watch(self, task_id: str) -> None:
        if self._parts is not None:
            self._parts.notifications.watch(task_id)
