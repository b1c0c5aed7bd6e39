"""The engine over one PostgreSQL database: durable, and shared by any number of processes on any number of machines.

One task writes, a pool reads, one connection listens; this class hands work to them and tells this process what was
written.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import asyncpg

from errands.clock import Clock, system_clock
from errands.engines.base import Abandoned, Events, Ids, Retention, Running, Schema, Tasks
from errands.engines.fanout import READ_SIZE
from errands.engines.local import LocalEngine
from errands.engines.postgres import jobs, reading, retention
from errands.engines.postgres.changes import Changes, Process, Written
from errands.engines.postgres.connection import Options, check_session, connect
from errands.engines.postgres.failures import explain
from errands.engines.postgres.readers import Readers
from errands.engines.postgres.schema import PostgresSchema, ensure_schema
from errands.engines.postgres.watching import Watching
from errands.engines.postgres.writer import Outcome, Writer
from errands.engines.store_clock import goes_by_store
from errands.errors import ConfigurationError, StorageError
from errands.model.log import (
    AskingQuery,
    Change,
    Lease,
    LeaseSignal,
    ListPage,
    ListQuery,
    LogSlice,
    Scope,
    StoredTask,
)

#: So many processes write to tallies of their own and do not wait for each other; more share some.
_SHARES = 32

# Inside the class, `list` is the method.
Outcomes = list[Outcome]

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
        super().__init__(clock=goes_by_store(clock), retention=retention)
        self._options = Options.parse(url, patience=patience, command_timeout=command_timeout)
        self._poll_interval = poll_interval
        self._writer: Writer | None = None
        self._readers: Readers | None = None
        self._watching: Watching | None = None

    @property
    def transactions(self) -> int:
        """How many transactions this engine has committed since it was opened."""
        return self._open_writer.transactions

    @property
    def schema(self) -> Schema:
        return PostgresSchema(self._options)

    async def open(self) -> None:
        if self._writer is not None:
            raise StorageError(f"The database {self._options.name} is already open in this engine")
        try:
            connection = await connect(self._options)
            try:
                await check_session(connection, self._options)
                await ensure_schema(connection, self._options)
                await reading.compare_clock(connection, self.clock, f"the database {self._options.name}")
                readers = Readers(self._options)
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
        process = Process(name, first_shard, self._options.schema, self._fanout.watches)
        self._writer = Writer(self._options, Changes(process), self._deliver)
        self._writer.start(connection)
        self._readers = readers
        self._watching = Watching(
            self._options, name, readers, self._fanout, self._wake_workers, self.clock, self._poll_interval
        )
        self._watching.start()

    async def close(self) -> None:
        writer, self._writer = self._writer, None
        readers, self._readers = self._readers, None
        watching, self._watching = self._watching, None
        if writer is None or readers is None or watching is None:
            return
        self.disconnect()
        await writer.stop()
        await watching.stop()
        await readers.close()

    async def check(self) -> None:
        await self._open_readers.check()

    @property
    def _open_writer(self) -> Writer:
        if self._writer is None:
            raise self._closed()
        return self._writer

    @property
    def _open_readers(self) -> Readers:
        if self._readers is None:
            raise self._closed()
        return self._readers

    def _closed(self) -> StorageError:
        return StorageError(f"The database {self._options.name} is not open: the engine was closed or never opened")

    # Writing

    async def commit(self, change: Change) -> int:
        version: int = await self._open_writer.submit(change, change.task_id)
        return version

    async def delete(self, task_id: str, scope: Scope) -> None:
        work = partial(jobs.delete, task_id=task_id, scope=scope)
        await self._open_writer.submit(work, task_id)

    async def _lease_due(self, worker: str, agents: Sequence[str], limit: int, until: int) -> Tasks:
        work = partial(jobs.claim, worker=worker, agents=agents, limit=limit, now=self.clock(), until=until)
        claimed: list[StoredTask] = await self._open_writer.submit(work)
        return claimed

    async def extend(self, worker: str, leases: Sequence[Lease], until: int) -> list[LeaseSignal]:
        work = partial(jobs.extend, worker=worker, leases=leases, until=until)
        signals: list[LeaseSignal] = await self._open_writer.submit(work)
        return signals

    async def sweep(self, every: float = 0.0) -> int:
        async with self._open_readers.connection() as connection:
            return await retention.sweep(connection, self.retention, self.clock(), int(every * 1000))

    def _deliver(self, outcomes: Outcomes) -> None:
        """Once everything is durable: tells subscribers, callers and workers."""
        wake = False
        for job, result in outcomes:
            answer: Any = result
            if type(result) is Written:
                if result.is_watched and self._watching is not None:
                    self._watching.note(result.task_id, result.version)
                self._fanout.publish(result.task_id, result.events, result.state, result.stored)
                wake = wake or result.wakes_workers
                answer = result.version
            if job.future.done():
                continue  # the caller was canceled
            if isinstance(answer, Exception):
                job.future.set_exception(answer)
            else:
                job.future.set_result(answer)
        if wake:
            self._wake_workers()

    # Reading

    async def load(self, task_id: str, scope: Scope) -> StoredTask:
        return await self._open_readers.call(reading.load, task_id, scope)

    async def scope_of(self, task_id: str) -> Scope:
        return await self._open_readers.call(reading.scope_of, task_id)

    async def list(self, query: ListQuery) -> ListPage:
        return await self._open_readers.call(reading.page, query, self.clock())

    async def every_task(self) -> AsyncIterator[StoredTask]:
        last: str | None = ""
        while last is not None:
            tasks, last = await self._open_readers.call(reading.some_tasks, last, _STEP)
            for stored in tasks:
                yield stored

    async def asking(self, query: AskingQuery) -> Tasks:
        return await self._open_readers.call(reading.asking, query)

    async def abandoned(self, agent: str, paused_by: int, created_by: int, limit: int) -> Abandoned:
        return await self._open_readers.call(reading.abandoned, agent, paused_by, created_by, limit)

    async def load_context(self, scope: Scope, context_id: str) -> bytes | None:
        return await self._open_readers.call(reading.load_context, scope, context_id)

    async def read(self, task_id: str, scope: Scope, after: int, limit: int = READ_SIZE) -> LogSlice:
        return await self._open_readers.call(reading.read, task_id, scope, after, limit)

    async def records(self, task_id: str, scope: Scope) -> Events:
        return await self._open_readers.call(reading.records, task_id, scope)

    # Watching

    async def wanted_canceled(self, worker: str) -> Ids:
        return await self._open_readers.call(reading.wanted_canceled, worker)

    async def running(self) -> Running:
        return await self._open_readers.call(reading.running, self.clock())

    async def queue_age(self, agents: Sequence[str]) -> int | None:
        return await self._open_readers.call(reading.queue_age, agents, self.clock())

    def _watch(self, task_id: str) -> None:
        if self._watching is not None:
            self._watching.watch(task_id)
