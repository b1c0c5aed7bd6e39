"""Reading the store: the engine's methods that read."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec

from errands.engines.base import (
    MOST_LOOKED_AT,
    Abandoned,
    Configs,
    Entries,
    Events,
    Ids,
    LargeReadError,
    Reports,
    Running,
    Tasks,
)
from errands.engines.commit import HOSTS, LocalEngine
from errands.engines.damage import bare_task, read_access, read_reports, readable_pushes
from errands.engines.listing import FAR, Cursor, bounded, earliest, leave_out_artifacts, list_page
from errands.engines.redis.connection import RedisServer
from errands.engines.redis.schema import (
    LOST,
    Keys,
    TaskHash,
    read_entry,
    read_events,
    read_hash,
    read_stored,
    scope_name,
)
from errands.engines.subscriptions import READ_BYTES, READ_SIZE
from errands.errors import TaskNotFoundError
from errands.model.core import TERMINAL_STATES, TaskState
from errands.model.log import (
    AccessEntry,
    AskingQuery,
    ListPage,
    ListQuery,
    LogSlice,
    OutboxBacklog,
    OutboxEntry,
    Reach,
    RunningTask,
    Scope,
    StoredTask,
    is_reached,
    silent_since,
)

#: Tasks that one request looks at: the server does nothing else while it does.
LOOK = 500

# Inside the engine, `list` is the method.
Loaded = list[StoredTask | None]


class RedisQueries(LocalEngine):
    """The methods of the engine that read."""

    keys: Keys

    @property
    @abstractmethod
    def server(self) -> RedisServer:
        """The connections to the server. Raises `StorageError` when the engine is not open."""

    # One task

    async def load(self, task_id: str, scope: Scope | None) -> StoredTask:
        return await self._load(task_id, scope)

    async def load_head(self, task_id: str, scope: Scope | None) -> StoredTask:
        task = (await self.look([task_id])).get(task_id)
        if task is not None and task.scope == LOST:
            return await self.load(task_id, scope)  # which looks for its scope
        if task is None or scope not in (None, task.scope):
            raise TaskNotFoundError(taskId=task_id)
        return bare_task(task_id, task.context_id, task.scope, task.head)

    async def load_small(self, task_id: str, scope: Scope, most: int) -> StoredTask:
        return await self._load(task_id, scope, most=most, only_small=True)

    async def _load(self, task_id: str, scope: Scope | None, **options: Any) -> StoredTask:
        (stored,) = await self.load_all([task_id], scope=scope, **options)
        if stored is not None and scope is not None and stored.scope == LOST:
            is_listed = await self.server.do("zscore", self.keys.listing(scope), task_id) is not None
            stored.scope = scope if is_listed else LOST
        if stored is None or scope not in (None, stored.scope):
            raise TaskNotFoundError(taskId=task_id)
        return stored

    async def read(self, task_id: str, scope: Scope, after: int, limit: int = READ_SIZE) -> LogSlice:
        position = str(min(max(after, 0), FAR))
        task, events = await self._log_of("read", task_id, scope, after=position, limit=limit, bytes=READ_BYTES)
        return LogSlice(events, gap=after < task.trimmed)

    async def records(self, task_id: str, scope: Scope) -> Events:
        return (await self._log_of("records", task_id, scope))[1]

    async def _log_of(self, name: str, task_id: str, scope: Scope, **more: object) -> tuple[TaskHash, Events]:
        answer = await self.server.ask(name, id=task_id, **more)
        # The lease does not matter.
        task = read_hash((answer[0], b"", b"", b"", b"")) if answer else None
        if task is None or task.scope != scope:
            raise TaskNotFoundError(taskId=task_id)
        return task, read_events(answer[1])

    async def load_context(self, scope: Scope, context_id: str) -> bytes | None:
        value: bytes | None = await self.server.do("get", self.keys("context", scope_name(scope), context_id))
        return value

    # Several tasks

    async def load_all(
        self,
        task_ids: Ids,
        *,
        scope: Scope | None = None,
        with_artifacts: bool = True,
        most: int | None = None,
        only_small: bool = False,
    ) -> Loaded:
        """Load tasks, None for one that is gone or not in `scope`; fewer when they have more than `most` bytes.

        With `only_small` it raises `LargeReadError` then.
        """
        if not task_ids:
            return []
        loaded = await self.server.ask(
            "load", ids=task_ids, scope=scope, with_artifacts=with_artifacts, most=most, only_small=only_small
        )
        if isinstance(loaded, int):
            raise LargeReadError(loaded)
        return [
            None if (task := read_hash(each)) is None else read_stored(task_id, task, each)
            for task_id, each in zip(task_ids, loaded, strict=False)
        ]

    async def look(self, task_ids: Ids) -> dict[str, TaskHash]:
        """Return tasks without their content; those that do not exist are missing."""
        found = await self.server.ask("look", ids=task_ids) if task_ids else []
        tasks = zip(task_ids, map(read_hash, found), strict=True)
        return {task_id: task for task_id, task in tasks if task is not None}

    async def every_task(self) -> AsyncIterator[StoredTask]:
        async for ids in self._scan("task"):
            for stored in await self.load_all(ids):
                if stored is not None:
                    yield stored

    async def _scan(self, kind: str) -> AsyncIterator[Ids]:
        """Iterate over the tasks that have a key of this kind, some at a time."""
        prefix = self.keys(kind, "")
        pattern = re.sub(r"([*?\\[\]])", r"\\\1", prefix) + "*"
        cursor: int | None = None
        while cursor != 0:
            cursor, names = await self.server.do("scan", cursor or 0, match=pattern, count=LOOK)
            yield [name.decode(errors="replace").removeprefix(prefix) for name in names]

    async def asking(self, query: AskingQuery) -> Tasks:
        if query.task_id is not None:
            names = [query.task_id]
        else:
            names = [name.decode() for name in await self.server.do("zrange", self.keys("asking"), 0, -1)]
        tasks = await self.look(names)
        ids = [task_id for task_id, task in tasks.items() if query.matches(task.scope, task.head)]
        found = await self.load_all(ids[: query.limit], with_artifacts=False)
        asking = [stored for stored in found if stored is not None and stored.head.asks]
        leave_out_artifacts(asking)
        return asking

    async def abandoned(
        self, agent: str, paused_by: int, created_by: int, limit: int, unfinished_by: int = -1
    ) -> Abandoned:
        names: set[bytes] = set()
        for kind, before in (("paused", paused_by), ("aging", max(created_by, unfinished_by))):
            names.update(await self.server.do("zrangebyscore", self.keys(kind, agent), 0, before, start=0, num=limit))
        ids = [name.decode() for name in names][:limit]
        found = [(task_id, task.scope) for task_id, task in (await self.look(ids)).items()]
        start = 0
        while unfinished_by >= 0 and len(found) < limit:
            # No set has the queue by age. Tasks that move in it meanwhile may be missed, until the next call.
            queued = await self.server.do("zrange", self.keys("queue", agent), start, start + LOOK - 1)
            found += [
                (task_id, task.scope)
                for task_id, task in (await self.look([name.decode() for name in queued])).items()
                if task.head.created_at <= unfinished_by and not task.head.cancel_requested
            ]
            start += LOOK
            if len(queued) < LOOK:
                break
        return found[:limit]

    async def count_live(self, scope: Scope, reach: Reach = "scope") -> int:
        scopes = await self._scopes(scope, reach)
        states = [state for state in TaskState if state not in TERMINAL_STATES]
        live = [self.keys.listing(each, state=state) for each in scopes for state in states]
        return sum([await self.server.do("zcard", listing) for listing in live])

    async def stored_bytes(self, scope: Scope, reach: Reach = "scope") -> int:
        size = 0
        for each in await self._scopes(scope, reach):
            start = 0
            while ids := await self.server.do("zrange", self.keys.listing(each), start, start + LOOK - 1):
                size += await self.server.ask("bytes", ids=[name.decode() for name in ids])
                start += LOOK
        return size

    async def list(self, query: ListQuery) -> ListPage:
        if query.reach == "scope":
            return await list_page(_RedisListing(self, query), query, self.clock())
        scopes = await self._scopes(query.scope, query.reach, query.context_id, query.state)
        return await list_page(_OwnersListing(self, query, scopes), query, self.clock())

    async def _scopes(
        self, scope: Scope, reach: Reach, context_id: str | None = None, state: TaskState | None = None
    ) -> set[Scope]:
        """Return the scopes within the reach that have tasks like these. All keys are looked at."""
        if reach == "scope":
            return {scope}
        prefix = self.keys("list", "")
        found: set[Scope] = set()
        async for names in self._scan("list"):
            for name in names:
                # No part of a scope has a colon or a slash in its name.
                other = Scope(*map(unquote, name.partition(":")[0].split("/")))
                if is_reached(other, scope, reach) and prefix + name == self.keys.listing(other, context_id, state):
                    found.add(other)
        return found

    # The queue

    async def wanted_canceled(self, worker: str) -> Ids:
        return [task_id.decode() for task_id in await self.server.ask("canceling", worker=worker)]

    async def running(self) -> Running:
        found: Running = []
        for name, *fields in await self.server.ask("running", now=str(self.clock())):
            if (task := read_hash(fields)) is not None:
                context_id, scope, head = task.context_id, task.scope, task.head
                found.append(RunningTask(task_id=name.decode(), context_id=context_id, scope=scope, head=head))
        return sorted(found, key=lambda task: (task.head.created_at, task.task_id))

    async def queue_age(self, agents: Sequence[str]) -> int | None:
        now = self.clock()
        first = [await self.server.do("zrange", self.keys("queue", agent), 0, 0, withscores=True) for agent in agents]
        due_at = min((int(score) for found in first for _, score in found), default=now + 1)
        return None if due_at > now else now - due_at

    # The outbox

    async def _entries(self, task_ids: Ids) -> Entries:
        answers = await self.server.ask("entries", ids=task_ids) if task_ids else []
        return readable_pushes(read_entry, answers)

    async def push_configs(self, task_id: str, scope: Scope) -> Configs:
        task = (await self.look([task_id])).get(task_id)
        if task is None or task.scope != scope:
            raise TaskNotFoundError(taskId=task_id)
        entries = await self._entries([task_id])
        return [entry.config for entry in sorted(entries, key=lambda entry: entry.config.id)]

    async def _due_hosts(self, agent: str, now: int, after: str) -> Ids:
        names = await self.server.do("zrangebyscore", self.keys("hosts", agent), "-inf", now)
        hosts = [name.decode() for name in names]
        return sorted(host for host in hosts if host > after)[:HOSTS]

    async def outbox(self, agent: str | None = None) -> AsyncIterator[OutboxEntry]:
        async for ids in self._scan("pushes"):
            for entry in await self._entries(ids):
                if agent in (None, entry.scope.agent):
                    yield entry

    async def outbox_backlog(self, agent: str) -> OutboxBacklog:
        first = await self.server.do("zrange", self.keys("hosts", agent), 0, 0, withscores=True)
        due_at = int(first[0][1]) if first else None
        dead = await self.server.do("scard", self.keys("dead", agent))
        due_since = None if due_at is None or due_at > self.clock() else due_at
        return OutboxBacklog(due_since, min(dead, MOST_LOOKED_AT))

    # The access log

    async def accesses(self) -> AsyncIterator[AccessEntry]:
        # By time and not by rank: retention removes entries from the beginning meanwhile.
        key, last = self.keys("accesses"), "-inf"
        while rows := await self.server.do("zrangebyscore", key, last, "+inf", start=0, num=LOOK, withscores=True):
            latest = rows[-1][1]
            shown = sum(at == latest for _, at in rows)
            while rows:
                for data, at in rows:
                    yield read_access(int(bounded(at)), data)
                # The rest of those with the same time.
                rows = await self.server.do(
                    "zrangebyscore", key, latest, latest, start=shown, num=LOOK, withscores=True
                )
                shown += len(rows)
            last = f"({latest}"

    # Processes

    async def processes(self) -> Reports:
        since = silent_since(self.clock())
        found = read_reports((await self.server.do("hgetall", self.keys("processes"))).values())
        return [report for report in found if report.at > since]


class _RedisListing:
    """One listing: the sorted set that its filters choose, and the range of scores. A score is a negative time.

    See `errands.engines.listing.Listing`.
    """

    def __init__(self, engine: RedisQueries, query: ListQuery) -> None:
        self._engine = engine
        self._query = query
        self._key = engine.keys.listing(query.scope, query.context_id, query.state)
        self._last = "+inf" if query.status_after is None else str(-earliest(query))

    async def count(self) -> int:
        total: int = await self._engine.server.do("zcount", self._key, "-inf", self._last)
        return total

    async def in_order(self, cursor: Cursor, limit: int) -> list[tuple[int, str]]:
        start = min(cursor.status_at, cursor.as_of)
        wanted = limit
        while True:
            rows = await self._engine.server.do(
                "zrangebyscore", self._key, str(-start), self._last, start=0, num=limit, withscores=True
            )
            walked = [(-int(row[1]), row[0].decode()) for row in rows]
            # Of the tasks with the same time as the last one, those with higher ids were not shown yet.
            rest = [row for row in walked if row[0] < cursor.status_at or row[1] > cursor.task_id]
            if len(rest) >= wanted or len(rows) < limit:
                return rest[:wanted]
            limit *= 4

    async def since_changed(self, cursor: Cursor, limit: int) -> list[str]:
        found: set[str] = set()
        newer, step, count = f"({-cursor.as_of}", LOOK, LOOK
        while count == step:
            count, last, ids = await self._engine.server.ask(
                "since_changed", listing=self._key, newer=newer, as_of=cursor.as_of, limit=step
            )
            found.update(each.decode() for each in ids)
            if last.decode() == newer:
                # All have the very same time: there may be more of them than one step takes in.
                step, count = 4 * step, 4 * count
            newer = last.decode()
        return sorted(task_id for task_id in found if task_id > cursor.task_id)[:limit]

    async def load(self, task_ids: list[str]) -> Loaded:
        query = self._query
        loaded = await self._engine.load_all(
            task_ids, with_artifacts=query.with_artifacts, most=query.page_bytes, only_small=query.only_small
        )
        for stored in loaded:
            if stored is not None and stored.scope == LOST:
                stored.scope = query.scope
        return loaded


class _OwnersListing:
    """A listing of several owners: those of each, merged. See `errands.engines.listing.Listing`."""

    def __init__(self, engine: RedisQueries, query: ListQuery, scopes: Iterable[Scope]) -> None:
        self._parts = [_RedisListing(engine, msgspec.structs.replace(query, scope=scope)) for scope in scopes]

    async def count(self) -> int:
        return sum([await part.count() for part in self._parts])

    async def in_order(self, cursor: Cursor, limit: int) -> list[tuple[int, str]]:
        found = [place for part in self._parts for place in await part.in_order(cursor, limit)]
        return sorted(found, key=lambda place: (-place[0], place[1]))[:limit]

    async def since_changed(self, cursor: Cursor, limit: int) -> list[str]:
        return sorted([task_id for part in self._parts for task_id in await part.since_changed(cursor, limit)])[:limit]

    async def load(self, task_ids: list[str]) -> Loaded:
        # Which part loads a task does not matter: they differ in their keys.
        return await self._parts[0].load(task_ids) if task_ids else []
