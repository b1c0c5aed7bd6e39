"""The engine over a Redis or Valkey server: shared by any number of machines.

This class hands work to the store and the reader and tells this process what was written, here or elsewhere.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from errands.clock import Clock, system_clock
from errands.engines.base import Abandoned, Events, Ids, Retention, Running, Tasks
from errands.engines.commit import LocalEngine
from errands.engines.connection import store_clock
from errands.engines.redis.connection import RedisOptions, RedisServer
from errands.engines.redis.notifications import RedisNotifications
from errands.engines.redis.queries import RedisReader
from errands.engines.redis.retention import RedisSweep
from errands.engines.redis.schema import (
    LOST,
    Claim,
    Delete,
    Extend,
    Keys,
    Load,
    Look,
    RunCommands,
    read_known,
    read_stored,
)
from errands.engines.redis.store import LONG_LOG, CommandBuilder, RedisStore
from errands.engines.subscriptions import READ_SIZE
from errands.errors import ConcurrencyError, StorageError, TaskNotFoundError
from errands.model.core import TERMINAL_STATES, UNSPECIFIED
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


class _Parts(NamedTuple):
    """The parts of an open engine."""

    server: RedisServer
    store: RedisStore
    reader: RedisReader
    notifications: RedisNotifications


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
        """Args:
        timeout: seconds that one answer may take.
        patience: seconds for which calls wait for a server that is away.
        poll_interval: seconds between looks while other processes cannot be heard.
        """
        super().__init__(clock=store_clock(clock), retention=retention)
        self._options = RedisOptions.from_url(url)
        self._keys = Keys(self._options.prefix)
        self._timeout = timeout
        self._patience = patience
        self._poll_interval = poll_interval
        #: The name of this process among those that write.
        self._origin = secrets.token_hex(8)
        keep = self.retention.events_per_task
        self._commands = CommandBuilder(self._keys, self._origin, LONG_LOG if keep is None else min(LONG_LOG, keep))
        self._parts: _Parts | None = None

    @property
    def batches(self) -> int:
        """The number of batches that this engine has sent since it was opened."""
        return self._open.store.batches

    async def open(self) -> None:
        if self._parts is not None:
            raise StorageError(f"Redis at {self._options.server} is already open in this engine")
        server = RedisServer(self._options, self._keys, timeout=self._timeout, patience=self._patience)
        try:
            await server.examine()
            await server.compare_clock(self.clock)
        except BaseException:
            await server.close()
            raise
        store = RedisStore(server, self._keys, self._commands, self.deliver)
        reader = RedisReader(server, self._keys)
        notifications = RedisNotifications(
            server,
            self._keys,
            reader,
            self.subscribers,
            origin=self._origin,
            wake=self.wake_workers,
            poll_interval=self._poll_interval,
        )
        self._parts = _Parts(server, store, reader, notifications)

    async def close(self) -> None:
        parts, self._parts = self._parts, None
        if parts is None:
            return
        self.disconnect()
        await parts.store.stop()
        await parts.notifications.stop()
        await parts.server.close()

    async def check(self) -> None:
        await self._open.server.check()

    @property
    def _open(self) -> _Parts:
        if self._parts is None:
            raise StorageError(f"Redis at {self._options.server} is not open: the engine was closed or never opened")
        return self._parts

    # Writing

    async def commit(self, change: Change) -> Head:
        head: Head = await self._open.store.submit(change)
        return head

    async def delete(self, task_id: str, scope: Scope) -> None:
        while True:
            (fields,) = await self._open.server.ask(Look(ids=[task_id]))
            known = read_known(fields)
            task = known.task
            if task is None or task.scope != scope:
                raise TaskNotFoundError(taskId=task_id)
            if task.head.state not in TERMINAL_STATES | {UNSPECIFIED}:
                raise ConcurrencyError(f"task {task_id} is {task.head.state.short}: only ended tasks can be deleted")
            request = Delete(id=task_id, expected=known.fields, commands=self._commands.delete(task_id, task))
            if (await self._open.store.submit(request))[0] == b"written":
                return

    async def sweep(self, every: float = 0.0) -> int:
        await self._open.server.compare_clock(self.clock)
        sweep = RedisSweep(self._open.server, self._keys, self._open.reader, self._commands)
        return await sweep.run(self.retention, self.clock(), int(every * 1000))

    # Leases

    async def _lease_due(self, worker: str, agents: Sequence[str], limit: int, until: int) -> Tasks:
        now, expires = str(self.clock()), str(until)
        request = Claim(agents=sorted(set(agents)), worker=worker, limit=limit, now=now, expires=expires)
        answer = [word.decode() for word in await self._open.store.submit(request)]
        attempts = dict(zip(answer[::2], map(int, answer[1::2]), strict=True))
        if not attempts:
            return []
        claimed: list[StoredTask] = []
        for task_id, loaded in zip(attempts, await self._open.server.ask(Load(ids=[*attempts])), strict=True):
            known = read_known(loaded[:5])
            task = known.task
            # Its lease may be lost already, or the task deleted.
            if task is not None and (task.head.worker, task.head.attempt) == (worker, attempts[task_id]):
                self._open.store.know(task_id, known)
                claimed.append(read_stored(task_id, task, loaded))
        return claimed

    async def set_aside(self, stored: StoredTask, worker: str = "") -> None:
        if stored.scope != LOST:
            await super().set_aside(stored, worker)
            return
        agents = [name.decode() for name in await self._open.server.do("smembers", self._keys.agents)]
        await self._open.store.submit(
            RunCommands(commands=self._commands.end_lost(stored.task.id, agents, self.clock()))
        )

    async def extend(self, worker: str, leases: Sequence[Lease], until: int) -> list[LeaseSignal]:
        if not leases:
            return []
        flat = [word for lease in leases for word in (lease.task_id, str(lease.attempt))]
        answer = await self._open.store.submit(Extend(worker=worker, leases=flat, expires=str(until)))
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

    async def load(self, task_id: str, scope: Scope | None) -> StoredTask:
        return await self._open.reader.load(task_id, scope)

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
        self._open.notifications.watch()
