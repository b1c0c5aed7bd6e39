"""The engine over one SQLite file: durable, shared by the processes of one machine, and nothing to set up.

One thread writes and a few read; this class hands work to them and tells this process what was written.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from errands.clock import Clock, system_clock
from errands.engines.base import Abandoned, Events, Ids, Retention, Running, Schema, Tasks
from errands.engines.fanout import READ_SIZE, LocalSubscription
from errands.engines.local import LocalEngine
from errands.engines.probe import Probe
from errands.engines.sqlite import jobs, reading
from errands.engines.sqlite.changes import Written
from errands.engines.sqlite.connection import Options, make_directory
from errands.engines.sqlite.readers import Readers
from errands.engines.sqlite.schema import SQLiteSchema
from errands.engines.sqlite.writer import Outcome, Write, Writer
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
        self._options = Options(name, synchronous, busy_timeout)
        self._poll_interval = poll_interval
        self._writer: Writer | None = None
        self._readers: Readers | None = None
        self._probe = Probe(f"The database {name}", self._look, partial(self._write, jobs.probe))
        #: When another process was last seen to write, on the loop's clock.
        self._others_wrote_at = float("-inf")
        #: Where the watched tasks stood when another process had last written.
        self._versions: dict[str, int] = {}

    @property
    def path(self) -> str:
        """The database file."""
        return self._options.path

    @property
    def transactions(self) -> int:
        """How many transactions this engine has committed since it was opened."""
        return self._open_writer.transactions

    @property
    def schema(self) -> Schema:
        return SQLiteSchema(self._options)

    async def open(self) -> None:
        if self._writer is not None:
            raise StorageError(f"The database {self.path} is already open in this engine")
        # Readers connect later, when the process may have changed its directory.
        self._options = self._options.absolute()
        make_directory(Path(self.path).parent)
        writer = Writer(self._options, self._poll_interval, self._deliver, self._others_wrote)
        await writer.start()
        self._writer, self._readers = writer, Readers(self._options, writer.file)

    async def close(self) -> None:
        writer, self._writer = self._writer, None
        readers, self._readers = self._readers, None
        if writer is None or readers is None:
            return
        self.disconnect()
        await readers.close()
        await writer.stop()
        await self._probe.stop()

    async def check(self) -> None:
        if not self._open_writer.alive:
            raise StorageError(f"The writer of the database {self.path} has stopped. Restart the process")
        await self._probe()

    async def _look(self) -> None:
        await self._open_readers.submit(reading.check)

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
        return StorageError(f"The database {self.path} is not open: the engine was closed or never opened")

    # Writing

    async def commit(self, change: Change) -> int:
        version: int = await self._open_writer.submit(change)
        return version

    async def _write(self, work: Write) -> Any:
        return await self._open_writer.submit(work)

    async def delete(self, task_id: str, scope: Scope) -> None:
        await self._write(partial(jobs.delete, task_id=task_id, scope=scope))

    async def _lease_due(self, worker: str, agents: Sequence[str], limit: int, until: int) -> Tasks:
        claimed: list[StoredTask] = await self._write(
            partial(jobs.claim, worker=worker, agents=agents, limit=limit, now=self.clock(), until=until)
        )
        return claimed

    async def extend(self, worker: str, leases: Sequence[Lease], until: int) -> list[LeaseSignal]:
        signals: list[LeaseSignal] = await self._write(partial(jobs.extend, worker=worker, leases=leases, until=until))
        return signals

    async def sweep(self, every: float = 0.0) -> int:
        now = self.clock()
        if not await self._write(partial(jobs.begin_sweep, now=now, every=int(every * 1000))):
            return 0
        deleted = 0
        retention = self.retention
        for state, before in retention.moments(now).items():
            while count := await self._write(partial(jobs.forget_ended, state=state, before=before)):
                deleted += count
        if retention.ended_at_most is not None:
            while count := await self._write(partial(jobs.forget_excess, at_most=retention.ended_at_most)):
                deleted += count
        while await self._write(jobs.clear_remains):
            pass
        while await self._write(partial(jobs.forget_receipts, now=now)):
            pass
        if (untouched_since := retention.contexts_before(now)) is not None:
            while await self._write(partial(jobs.forget_contexts, before=untouched_since)):
                pass
        if retention.events_per_task is not None:
            await self._trim(retention.events_per_task)
        return deleted

    async def _trim(self, keep: int) -> None:
        # A tenth over the bound before trimming, so that a growing log is cut rarely.
        for task_id in await self._open_readers.submit(reading.overgrown, keep + keep // 10):
            while await self._write(partial(jobs.trim, task_id=task_id, keep=keep)):
                pass

    def _deliver(self, outcomes: list[Outcome]) -> None:
        """On the event loop, once everything is durable: tells subscribers, callers and workers."""
        wake = False
        for (_, future), result in outcomes:
            if type(result) is Written:
                task_id, events, version, state, stored, wakes = result
                self._fanout.publish(task_id, events, state, stored)
                wake = wake or wakes
                result = version
            if future.done():
                continue  # the caller was canceled
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
        if wake:
            self._wake_workers()

    # Reading

    async def load(self, task_id: str, scope: Scope) -> StoredTask:
        return await self._open_readers.submit(reading.load, task_id, scope)

    async def scope_of(self, task_id: str) -> Scope:
        return await self._open_readers.submit(reading.scope_of, task_id)

    async def list(self, query: ListQuery) -> ListPage:
        return await self._open_readers.submit(reading.page, query, self.clock())

    async def every_task(self) -> AsyncIterator[StoredTask]:
        last: int | None = 0
        while last is not None:
            tasks, last = await self._open_readers.submit(reading.some_tasks, last, _STEP)
            for stored in tasks:
                yield stored

    async def asking(self, query: AskingQuery) -> Tasks:
        return await self._open_readers.submit(reading.asking, query)

    async def abandoned(self, agent: str, paused_by: int, created_by: int, limit: int) -> Abandoned:
        return await self._open_readers.submit(reading.abandoned, agent, paused_by, created_by, limit)

    async def load_context(self, scope: Scope, context_id: str) -> bytes | None:
        return await self._open_readers.submit(reading.load_context, scope, context_id)

    async def read(self, task_id: str, scope: Scope, after: int, limit: int = READ_SIZE) -> LogSlice:
        return await self._open_readers.submit(reading.read, task_id, scope, after, limit)

    async def records(self, task_id: str, scope: Scope) -> Events:
        return await self._open_readers.submit(reading.records, task_id, scope)

    # Watching

    async def wanted_canceled(self, worker: str) -> Ids:
        return await self._open_readers.submit(reading.wanted_canceled, worker)

    async def running(self) -> Running:
        return await self._open_readers.submit(reading.running, self.clock())

    async def queue_age(self, agents: Sequence[str]) -> int | None:
        return await self._open_readers.submit(reading.queue_age, agents, self.clock())

    def subscribe(self, task_id: str, scope: Scope, after: int, *, caught_up: bool = False) -> LocalSubscription:
        # What another process wrote on top may have been announced before this subscription was there.
        alone = asyncio.get_running_loop().time() - self._others_wrote_at > 10 * self._poll_interval
        return super().subscribe(task_id, scope, after, caught_up=caught_up and alone)

    def _others_wrote(self) -> None:
        """On the event loop: another process wrote something; find out whether it concerns anybody here."""
        self._others_wrote_at = asyncio.get_running_loop().time()
        watched = self._fanout.watched()
        if self._readers is not None and (watched or self._wakers):
            look = self._readers.submit(reading.news, watched, self.clock())
            look.add_done_callback(partial(self._hear, watched))

    def _hear(self, watched: Sequence[str], look: asyncio.Future[reading.News]) -> None:
        """Passes on what concerns somebody: processes that only keep their leases must not wake each other."""
        if look.cancelled() or look.exception() is not None:
            self._fanout.nudge(watched)
            self._wake_workers()
            return
        before, self._versions = self._versions, look.result().versions
        self._fanout.nudge(task_id for task_id in watched if self._versions.get(task_id) != before.get(task_id, -1))
        if look.result().has_work:
            self._wake_workers()
