"""The engine over a Redis or Valkey server: shared by any number of machines.

This class hands work to the writer and the reader and tells this process what was written, here or elsewhere.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from errands.clock import Clock, system_clock
from errands.engines.base import Abandoned, Events, Ids, Retention, Running, Tasks
from errands.engines.fanout import READ_SIZE
from errands.engines.local import LocalEngine
from errands.engines.redis.changes import LONG_LOG, Judge, Judged
from errands.engines.redis.connection import Link
from errands.engines.redis.jobs import Claim, Extend, Forget, Load, Run, Stands
from errands.engines.redis.keys import Keys
from errands.engines.redis.listener import Listener
from errands.engines.redis.options import Options
from errands.engines.redis.reading import Reader
from errands.engines.redis.records import LOST, read_stand, read_stored
from errands.engines.redis.sweeping import Sweeper
from errands.engines.redis.writer import Writer
from errands.engines.store_clock import goes_by_store
from errands.errors import ConcurrencyError, StorageError, TaskNotFoundError
from errands.model.core import TERMINAL_STATES, UNSPECIFIED
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


class _Open(NamedTuple):
    """What there is while the engine is open."""

    link: Link
    writer: Writer
    reader: Reader
    listener: Listener
    sweeper: Sweeper


class RedisEngine(LocalEngine):
    """Bound to the event loop that opens it. A process that forks must open its own."""

    name = "redis"
    durable = True

    def __init__(
        self,
        url: str,
        *,
        clock: Clock = system_clock,
        retention: Retention | None = None,
        timeout: float = 5.0,
        patience: float = 5.0,
        poll_interval: float = 0.5,
    ) -> None:
        """`timeout`: seconds that one answer may take. `patience`: seconds for which calls wait for a server that is
        away. `poll_interval`: seconds between looks while other processes cannot be heard."""
        super().__init__(clock=goes_by_store(clock), retention=retention)
        self._options = Options.from_url(url)
        self._keys = Keys(self._options.prefix)
        self._timeout = timeout
        self._patience = patience
        self._poll_interval = poll_interval
        #: Names this process among those that write.
        self._origin = secrets.token_hex(8)
        keep = self.retention.events_per_task
        self._judge = Judge(self._keys, self._origin, LONG_LOG if keep is None else min(LONG_LOG, keep))
        self._parts: _Open | None = None

    @property
    def batches(self) -> int:
        """How many batches this engine has sent since it was opened."""
        return self._open.writer.batches

    async def open(self) -> None:
        if self._parts is not None:
            raise StorageError(f"Redis at {self._options.server} is already open in this engine")
        link = Link(self._options, self._keys, timeout=self._timeout, patience=self._patience)
        try:
            await link.examine()
            await link.compare_clock(self.clock)
        except BaseException:
            await link.close()
            raise
        writer = Writer(link, self._keys, self._judge, self._deliver)
        reader = Reader(link, self._keys)
        listener = Listener(
            link,
            self._keys,
            self._fanout,
            origin=self._origin,
            wake=self._wake_workers,
            poll_interval=self._poll_interval,
        )
        self._parts = _Open(link, writer, reader, listener, Sweeper(link, self._keys, reader, self._judge))

    async def close(self) -> None:
        parts, self._parts = self._parts, None
        if parts is None:
            return
        self.disconnect()
        await parts.writer.stop()
        await parts.listener.stop()
        await parts.link.close()

    async def check(self) -> None:
        await self._open.link.check()

    @property
    def _open(self) -> _Open:
        if self._parts is None:
            raise StorageError(f"Redis at {self._options.server} is not open: the engine was closed or never opened")
        return self._parts

    # Writing

    async def commit(self, change: Change) -> int:
        version: int = await self._open.writer.submit(change)
        return version

    def _deliver(self, change: Change, judged: Judged) -> None:
        """Once a change is durable: tells subscribers and workers of this process."""
        record = judged.stand.record
        assert record is not None
        self._fanout.publish(change.task_id, judged.events, record.head.state, judged.stored)
        if judged.wakes_workers:
            self._wake_workers()

    async def delete(self, task_id: str, scope: Scope) -> None:
        while True:
            (fields,) = await self._open.link.ask(Stands(ids=[task_id]))
            stand = read_stand(fields)
            record = stand.record
            if record is None or record.scope != scope:
                raise TaskNotFoundError(taskId=task_id)
            if record.head.state not in TERMINAL_STATES | {UNSPECIFIED}:
                raise ConcurrencyError(f"task {task_id} is {record.head.state.short}: only ended tasks can be deleted")
            job = Forget(id=task_id, expected=stand.fields, commands=self._judge.forget(task_id, record))
            if (await self._open.writer.submit(job))[0] == b"written":
                return

    async def sweep(self, every: float = 0.0) -> int:
        await self._open.link.compare_clock(self.clock)
        return await self._open.sweeper.sweep(self.retention, self.clock(), int(every * 1000))

    # Leases

    async def _lease_due(self, worker: str, agents: Sequence[str], limit: int, until: int) -> Tasks:
        job = Claim(agents=sorted(set(agents)), worker=worker, limit=limit, now=str(self.clock()), expires=str(until))
        answer = [word.decode() for word in await self._open.writer.submit(job)]
        attempts = dict(zip(answer[::2], map(int, answer[1::2]), strict=True))
        if not attempts:
            return []
        claimed: list[StoredTask] = []
        for task_id, loaded in zip(attempts, await self._open.link.ask(Load(ids=[*attempts])), strict=True):
            stand = read_stand(loaded[:4])
            record = stand.record
            # One whose lease is lost already, or that is gone, was not worth the while.
            if record is not None and (record.head.worker, record.head.attempt) == (worker, attempts[task_id]):
                self._open.writer.know(task_id, stand)
                claimed.append(read_stored(task_id, record, loaded))
        return claimed

    async def set_aside(self, stored: StoredTask, worker: str = "") -> None:
        if stored.scope != LOST:
            await super().set_aside(stored, worker)
            return
        agents = [name.decode() for name in await self._open.link.do("smembers", self._keys.agents)]
        await self._open.writer.submit(Run(commands=self._judge.lose(stored.task.id, agents, self.clock())))

    async def extend(self, worker: str, leases: Sequence[Lease], until: int) -> list[LeaseSignal]:
        if not leases:
            return []
        flat = [word for lease in leases for word in (lease.task_id, str(lease.attempt))]
        answer = await self._open.writer.submit(Extend(worker=worker, leases=flat, expires=str(until)))
        return [
            LeaseSignal(lease.task_id, lost=signal == b"lost", cancel_requested=signal == b"cancel")
            for lease, signal in zip(leases, answer, strict=True)
            if signal != b"fine"
        ]

    async def wanted_canceled(self, worker: str) -> Ids:
        return await self._open.reader.wanted_canceled(worker)

    async def running(self) -> Running:
        return await self._open.reader.running(self.clock())

    async def queue_age(self, agents: Sequence[str]) -> int | None:
        now = self.clock()
        due_at = await self._open.reader.longest_due(agents)
        return None if due_at is None or due_at > now else now - due_at

    # Reading and watching

    async def load(self, task_id: str, scope: Scope) -> StoredTask:
        return await self._open.reader.load(task_id, scope)

    async def scope_of(self, task_id: str) -> Scope:
        return await self._open.reader.scope_of(task_id)

    def every_task(self) -> AsyncIterator[StoredTask]:
        return self._open.reader.every_task()

    async def list(self, query: ListQuery) -> ListPage:
        return await self._open.reader.page(query, self.clock())

    async def asking(self, query: AskingQuery) -> Tasks:
        return await self._open.reader.asking(query)

    async def abandoned(self, agent: str, paused_by: int, created_by: int, limit: int) -> Abandoned:
        return await self._open.reader.abandoned(agent, paused_by, created_by, limit)

    async def load_context(self, scope: Scope, context_id: str) -> bytes | None:
        return await self._open.reader.load_context(scope, context_id)

    async def read(self, task_id: str, scope: Scope, after: int, limit: int = READ_SIZE) -> LogSlice:
        return await self._open.reader.read(task_id, scope, after, limit)

    async def records(self, task_id: str, scope: Scope) -> Events:
        return await self._open.reader.records(task_id, scope)

    def _watch(self, task_id: str) -> None:
        self._open.listener.watch()
