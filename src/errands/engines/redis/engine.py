"""The engine over a Redis or Valkey server: shared by any number of machines.

This class passes work to the store and publishes in this process what was written, here or elsewhere.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from errands.clock import Clock, system_clock
from errands.engines.base import Entries, Flags, Retention, Tasks
from errands.engines.connection import store_clock
from errands.engines.damage import readable_pushes
from errands.engines.redis.connection import RedisOptions, RedisServer
from errands.engines.redis.notifications import RedisNotifications
from errands.engines.redis.queries import RedisQueries
from errands.engines.redis.retention import RedisSweep
from errands.engines.redis.schema import LOST, Keys, read_entry, read_known, read_stored, request
from errands.engines.redis.store import LONG_LOG, CommandBuilder, RedisStore
from errands.errors import ConcurrencyError, StorageError, TaskNotFoundError
from errands.model.base import encode
from errands.model.core import TERMINAL_STATES, UNSPECIFIED
from errands.model.log import (
    AccessEntry,
    Change,
    Delivery,
    Head,
    Lease,
    LeaseSignal,
    ProcessReport,
    Scope,
    StoredTask,
    silent_since,
)


class RedisParts(NamedTuple):
    """The parts of an open engine."""

    server: RedisServer
    store: RedisStore
    notifications: RedisNotifications


class RedisEngine(RedisQueries):
    """Tasks in Redis. It is bound to the event loop that opens it; a process that forks must open its own."""

    name = "redis"

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
        self.keys = Keys(self._options.prefix)
        self._timeout = timeout
        self._patience = patience
        self._poll_interval = poll_interval
        #: The name of this process among those that write.
        self._origin = secrets.token_hex(8)
        keep = self.retention.events_per_task
        self._commands = CommandBuilder(self.keys, self._origin, LONG_LOG if keep is None else min(LONG_LOG, keep))
        self._parts: RedisParts | None = None

    @property
    def parts(self) -> RedisParts:
        """The parts of the open engine. Raises `StorageError` when it is not open."""
        if self._parts is None:
            raise StorageError(f"Redis at {self._options.server} is not open: the engine was closed or never opened")
        return self._parts

    @property
    def server(self) -> RedisServer:
        return self.parts.server

    async def open(self) -> None:
        if self._parts is not None:
            raise StorageError(f"Redis at {self._options.server} is already open in this engine")
        server = RedisServer(self._options, self.keys, timeout=self._timeout, patience=self._patience)
        try:
            await server.examine()
            await server.compare_clock(self.clock)
        except BaseException:
            await server.close()
            raise
        store = RedisStore(server, self._commands, self.deliver, self.counts)
        self._parts = RedisParts(server, store, RedisNotifications(self, server, self._origin, self._poll_interval))

    async def close(self) -> None:
        parts, self._parts = self._parts, None
        if parts is not None:
            self.disconnect()
            await parts.store.stop()
            await parts.notifications.stop()
            await parts.server.close()

    async def check(self) -> None:
        await self.server.check()

    # Writing

    async def commit(self, change: Change) -> Head:
        head: Head = await self.parts.store.submit(change)
        return head

    async def delete(self, task_id: str, scope: Scope) -> None:
        is_deleted = False
        while not is_deleted:
            (fields,) = await self.server.ask("look", ids=[task_id])
            known = read_known(fields)
            task = known.task
            if task is None or task.scope != scope:
                raise TaskNotFoundError(taskId=task_id)
            if task.head.state not in TERMINAL_STATES | {UNSPECIFIED}:
                raise ConcurrencyError(f"task {task_id} is {task.head.state.short}: only ended tasks can be deleted")
            answer = await self.parts.store.submit(self._commands.delete(task_id, known))
            is_deleted = answer[0] == b"written"

    async def sweep(self, every: float = 0.0) -> int:
        await self.server.compare_clock(self.clock)
        return await RedisSweep(self, self._commands).run(self.clock(), int(every * 1000))

    # Leases

    async def _lease_due(self, worker: str, agents: Sequence[str], limit: int, until: int) -> Tasks:
        now, expires = str(self.clock()), str(until)
        store = self.parts.store
        due = request("claim", agents=sorted(set(agents)), worker=worker, limit=limit, now=now, expires=expires)
        answer = [word.decode() for word in await store.submit(due)]
        attempts = dict(zip(answer[::2], map(int, answer[1::2]), strict=True))
        claimed: list[StoredTask] = []
        found = await self.server.ask("load", ids=[*attempts], with_artifacts=True) if attempts else []
        for task_id, loaded in zip(attempts, found, strict=True):
            known = read_known(loaded[:5])
            task = known.task
            # Its lease may be lost already, or the task deleted.
            if task is not None and (task.head.worker, task.head.attempt) == (worker, attempts[task_id]):
                store.know(task_id, known)
                claimed.append(read_stored(task_id, task, loaded))
        return claimed

    async def set_aside(self, stored: StoredTask, worker: str = "") -> None:
        if stored.scope != LOST:
            await super().set_aside(stored, worker)
            return
        agents = [name.decode() for name in await self.server.do("smembers", self.keys("agents"))]
        await self.parts.store.submit(self._commands.end_lost(stored.task.id, agents, self.clock()))

    async def extend(self, worker: str, leases: Sequence[Lease], until: int) -> list[LeaseSignal]:
        if not leases:
            return []
        flat = [word for lease in leases for word in (lease.task_id, str(lease.attempt))]
        answer = await self.parts.store.submit(request("extend", worker=worker, leases=flat, expires=str(until)))
        return [
            LeaseSignal(lease.task_id, lost=signal == b"lost", cancel_requested=signal == b"cancel")
            for lease, signal in zip(leases, answer, strict=True)
            if signal != b"fine"
        ]

    # The outbox

    async def _lease_deliveries(self, agent: str, wanted: Mapping[str, int], now: int, until: int) -> Entries:
        flat = [word for pair in wanted.items() for word in pair]
        lease = request("lease_entries", agent=agent, wanted=flat, now=str(now), expires=str(until))
        answers = await self.parts.store.submit(lease)
        return readable_pushes(read_entry, answers)

    async def settle_deliveries(self, deliveries: Sequence[Delivery]) -> Flags:
        if not deliveries:
            return []
        packed: list[dict[str, object]] = []
        for delivery in deliveries:
            times = {name: getattr(delivery, name) for name in ("due_at", "failed_at")}
            texts = {name: "" if time is None else str(time) for name, time in times.items()}
            packed.append({**msgspec.structs.asdict(delivery), **texts})
        settle = request("settle_entries", deliveries=packed, now=str(self.clock()))
        return [answer == 1 for answer in await self.parts.store.submit(settle)]

    async def retry_delivery(self, task_id: str, config_id: str) -> bool:
        retry = request("retry_entry", id=task_id, config=config_id, now=str(self.clock()))
        return bool(await self.parts.store.submit(retry) == 1)

    # The access log

    async def note_access(self, entry: AccessEntry) -> None:
        await self.server.do("zadd", self.keys("accesses"), {encode(entry): entry.at})

    # Processes

    async def report(self, report: ProcessReport) -> None:
        before = str(silent_since(self.clock()))
        text = encode(report).decode()
        await self.server.ask("report", id=report.id, at=str(report.at), report=text, before=before)

    async def forget_process(self, process_id: str) -> None:
        await self.server.do("hdel", self.keys("processes"), process_id)
        await self.server.do("zrem", self.keys("reported"), process_id)

    def _watch(self, task_id: str) -> None:
        self.parts.notifications.watch()
