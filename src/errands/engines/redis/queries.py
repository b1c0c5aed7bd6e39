"""Reading the store: tasks, logs, pages and contexts."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence

from errands.engines.listing import FAR, Cursor, earliest, leave_out_artifacts, list_page
from errands.engines.redis.connection import RedisServer
from errands.engines.redis.schema import (
    LOST,
    Canceling,
    Keys,
    Load,
    Look,
    ReadLog,
    Records,
    Running,
    SinceChanged,
    TaskHash,
    read_events,
    read_hash,
    read_record,
    read_stored,
)
from errands.engines.subscriptions import READ_BYTES
from errands.errors import TaskNotFoundError
from errands.model.log import AskingQuery, Event, ListPage, ListQuery, LogSlice, RunningTask, Scope, StoredTask

#: Tasks that one request looks at: the server does nothing else while it does.
LOOK = 500


class RedisReader:
    def __init__(self, server: RedisServer, keys: Keys) -> None:
        self._server = server
        self._keys = keys

    async def load(self, task_id: str, scope: Scope | None) -> StoredTask:
        (stored,) = await self.load_all([task_id])
        if stored is not None and scope is not None and stored.scope == LOST:
            listing = self._keys.listing(scope)
            stored.scope = LOST if await self._server.do("zscore", listing, task_id) is None else scope
        if stored is None or scope not in (None, stored.scope):
            raise TaskNotFoundError(taskId=task_id)
        return stored

    async def every_task(self) -> AsyncIterator[StoredTask]:
        prefix = self._keys.task("")
        pattern = re.sub(r"([*?\\[\]])", r"\\\1", prefix) + "*"
        cursor: int | None = None
        while cursor != 0:
            cursor, names = await self._server.do("scan", cursor or 0, match=pattern, count=LOOK)
            for stored in await self.load_all([name.decode(errors="replace").removeprefix(prefix) for name in names]):
                if stored is not None:
                    yield stored

    async def load_all(
        self, task_ids: list[str], *, with_artifacts: bool = True, most: int | None = None
    ) -> list[StoredTask | None]:
        """Load tasks, None for one that is gone; fewer when they have more than `most` bytes."""
        if not task_ids:
            return []
        loaded = await self._server.ask(Load(ids=task_ids, with_artifacts=with_artifacts, most=most))
        return [
            None if (task := read_hash(each)) is None else read_stored(task_id, task, each)
            for task_id, each in zip(task_ids, loaded, strict=False)
        ]

    async def read(self, task_id: str, scope: Scope, after: int, limit: int) -> LogSlice:
        request = ReadLog(id=task_id, after=str(min(max(after, 0), FAR)), limit=limit, bytes=READ_BYTES)
        answer = await self._server.ask(request)
        task = read_record(answer[0]) if answer else None
        if task is None or task.scope != scope:
            raise TaskNotFoundError(taskId=task_id)
        return LogSlice(read_events(answer[1]), gap=after < task.trimmed)

    async def records(self, task_id: str, scope: Scope) -> list[Event]:
        answer = await self._server.ask(Records(id=task_id))
        if not answer or read_record(answer[0]).scope != scope:
            raise TaskNotFoundError(taskId=task_id)
        return read_events(answer[1])

    async def load_context(self, scope: Scope, context_id: str) -> bytes | None:
        key = self._keys.context(self._keys.context_name(scope, context_id))
        value: bytes | None = await self._server.do("get", key)
        return value

    async def asking(self, query: AskingQuery) -> list[StoredTask]:
        if query.task_id is not None:
            names = [query.task_id]
        else:
            names = [name.decode() for name in await self._server.do("zrange", self._keys.asking, 0, -1)]
        tasks = await self.look(names)
        ids = [task_id for task_id, task in tasks.items() if query.matches(task.scope, task.head)]
        found = await self.load_all(ids[: query.limit], with_artifacts=False)
        asking = [stored for stored in found if stored is not None and stored.head.asks]
        leave_out_artifacts(asking)
        return asking

    async def look(self, task_ids: list[str]) -> dict[str, TaskHash]:
        """Return tasks without their content; those that do not exist are missing."""
        found = await self._server.ask(Look(ids=task_ids)) if task_ids else []
        tasks = zip(task_ids, map(read_hash, found), strict=True)
        return {task_id: task for task_id, task in tasks if task is not None}

    async def abandoned(self, agent: str, paused_by: int, created_by: int, limit: int) -> list[tuple[str, Scope]]:
        names: set[bytes] = set()
        for key, before in ((self._keys.paused(agent), paused_by), (self._keys.aging(agent), created_by)):
            names.update(await self._server.do("zrangebyscore", key, 0, before, start=0, num=limit))
        ids = [name.decode() for name in names][:limit]
        return [(task_id, task.scope) for task_id, task in (await self.look(ids)).items()]

    async def longest_due(self, agents: Sequence[str]) -> int | None:
        """Return when the first task of these agents in the queue is or was due; None for an empty queue."""
        first = [await self._server.do("zrange", self._keys.queue(agent), 0, 0, withscores=True) for agent in agents]
        return min((int(score) for found in first for _, score in found), default=None)

    async def wanted_canceled(self, worker: str) -> list[str]:
        return [task_id.decode() for task_id in await self._server.ask(Canceling(worker=worker))]

    async def running(self, now: int) -> list[RunningTask]:
        found: list[RunningTask] = []
        for name, *fields in await self._server.ask(Running(now=str(now))):
            task = read_hash(fields)
            if task is not None:
                found.append(
                    RunningTask(task_id=name.decode(), context_id=task.context_id, scope=task.scope, head=task.head)
                )
        return sorted(found, key=lambda task: (task.head.created_at, task.task_id))

    async def page(self, query: ListQuery, now: int) -> ListPage:
        return await list_page(_RedisListing(self._server, self._keys, self, query), query, now)


class _RedisListing:
    """One listing: the sorted set that its filters choose, and the range of scores. A score is a negative time.

    See `errands.engines.listing.Listing`.
    """

    def __init__(self, server: RedisServer, keys: Keys, reader: RedisReader, query: ListQuery) -> None:
        self._server = server
        self._reader = reader
        self._query = query
        self._key = keys.listing(query.scope, query.context_id, query.state)
        self._last = "+inf" if query.status_after is None else str(-earliest(query))

    async def count(self) -> int:
        total: int = await self._server.do("zcount", self._key, "-inf", self._last)
        return total

    async def in_order(self, cursor: Cursor, limit: int) -> list[tuple[int, str]]:
        start = min(cursor.status_at, cursor.as_of)
        wanted = limit
        while True:
            rows = await self._server.do(
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
            request = SinceChanged(listing=self._key, newer=newer, as_of=cursor.as_of, limit=step)
            count, last, ids = await self._server.ask(request)
            found.update(each.decode() for each in ids)
            if last.decode() == newer:
                # All have the very same time: there may be more of them than one step takes in.
                step, count = 4 * step, 4 * count
            newer = last.decode()
        return sorted(task_id for task_id in found if task_id > cursor.task_id)[:limit]

    async def load(self, task_ids: list[str]) -> list[StoredTask | None]:
        query = self._query
        loaded = await self._reader.load_all(task_ids, with_artifacts=query.with_artifacts, most=query.page_bytes)
        for stored in loaded:
            if stored is not None and stored.scope == LOST:
                stored.scope = query.scope
        return loaded
