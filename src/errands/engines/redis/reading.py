"""Looking into the store: tasks, logs and pages."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence

from errands.engines.fanout import READ_BYTES
from errands.engines.listing import leave_out_artifacts, still_matching
from errands.engines.paging import Cursor, Found, read_token
from errands.engines.redis.connection import Link
from errands.engines.redis.jobs import Canceling, Changed, Load, Read, Records, Running, Stands
from errands.engines.redis.keys import Keys
from errands.engines.redis.records import LOST, Record, read_events, read_record, read_stored, read_trimmed
from errands.errors import TaskNotFoundError
from errands.model.log import AskingQuery, Event, ListPage, ListQuery, LogSlice, RunningTask, Scope, StoredTask

#: Tasks that one job looks at: the server does nothing else meanwhile.
LOOK = 500
#: Beyond every time, and still a score that a sorted set holds exactly.
_FAR = 2**53


class Reader:
    def __init__(self, link: Link, keys: Keys) -> None:
        self._link = link
        self._keys = keys

    async def load(self, task_id: str, scope: Scope) -> StoredTask:
        (stored,) = await self.load_all([task_id])
        if stored is not None and stored.scope == LOST:
            listing = self._keys.listing(scope)
            stored.scope = LOST if await self._link.do("zscore", listing, task_id) is None else scope
        if stored is None or stored.scope != scope:
            raise TaskNotFoundError(taskId=task_id)
        return stored

    async def every_task(self) -> AsyncIterator[StoredTask]:
        prefix = self._keys.task("")
        pattern = re.sub(r"([*?\\[\]])", r"\\\1", prefix) + "*"
        cursor: int | None = None
        while cursor != 0:
            cursor, names = await self._link.do("scan", cursor or 0, match=pattern, count=LOOK)
            for stored in await self.load_all([name.decode(errors="replace").removeprefix(prefix) for name in names]):
                if stored is not None:
                    yield stored

    async def load_all(
        self, task_ids: list[str], *, with_artifacts: bool = True, most: int | None = None
    ) -> list[StoredTask | None]:
        """These tasks as they stand now; None for one that is gone. Fewer when they have more than `most` bytes."""
        if not task_ids:
            return []
        loaded = await self._link.ask(Load(ids=task_ids, with_artifacts=with_artifacts, most=most))
        records = map(read_record, loaded)
        return [
            None if record is None else read_stored(task_id, record, each)
            for task_id, record, each in zip(task_ids, records, loaded, strict=False)
        ]

    async def read(self, task_id: str, scope: Scope, after: int, limit: int) -> LogSlice:
        job = Read(id=task_id, after=str(min(max(after, 0), _FAR)), limit=limit, bytes=READ_BYTES)
        answer = await self._link.ask(job)
        record = read_trimmed(answer[0]) if answer else None
        if record is None or record.scope != scope:
            raise TaskNotFoundError(taskId=task_id)
        return LogSlice(read_events(answer[1]), gap=after < record.trimmed)

    async def scope_of(self, task_id: str) -> Scope:
        answer = await self._link.ask(Records(id=task_id))
        if not answer:
            raise TaskNotFoundError(taskId=task_id)
        return read_trimmed(answer[0]).scope

    async def records(self, task_id: str, scope: Scope) -> list[Event]:
        answer = await self._link.ask(Records(id=task_id))
        if not answer or read_trimmed(answer[0]).scope != scope:
            raise TaskNotFoundError(taskId=task_id)
        return read_events(answer[1])

    async def load_context(self, scope: Scope, context_id: str) -> bytes | None:
        key = self._keys.context(self._keys.context_name(scope, context_id))
        value: bytes | None = await self._link.do("get", key)
        return value

    async def asking(self, query: AskingQuery) -> list[StoredTask]:
        names = [query.task_id] if query.task_id is not None else await self._asking_ids()
        stands = await self._link.ask(Stands(ids=names)) if names else []
        records = zip(names, map(read_record, stands), strict=True)
        ids = [task_id for task_id, record in records if record is not None and _is_asked(record, query)]
        found = await self.load_all(ids[: query.limit], with_artifacts=False)
        tasks = [stored for stored in found if stored is not None and stored.head.asks]
        leave_out_artifacts(tasks)
        return tasks

    async def _asking_ids(self) -> list[str]:
        return [name.decode() for name in await self._link.do("zrange", self._keys.asking, 0, -1)]

    async def abandoned(self, agent: str, paused_by: int, created_by: int, limit: int) -> list[tuple[str, Scope]]:
        """The ids and scopes of paused tasks that have waited too long."""
        names: set[bytes] = set()
        for key, before in ((self._keys.paused(agent), paused_by), (self._keys.aging(agent), created_by)):
            names.update(await self._link.do("zrangebyscore", key, 0, before, start=0, num=limit))
        ids = [name.decode() for name in names][:limit]
        stands = await self._link.ask(Stands(ids=ids)) if ids else []
        records = zip(ids, map(read_record, stands), strict=True)
        return [(task_id, record.scope) for task_id, record in records if record is not None]

    async def longest_due(self, agents: Sequence[str]) -> int | None:
        """When the first task of these agents in the queue is due, or was; None when there is none."""
        first = [await self._link.do("zrange", self._keys.queue(agent), 0, 0, withscores=True) for agent in agents]
        return min((int(score) for found in first for _, score in found), default=None)

    async def wanted_canceled(self, worker: str) -> list[str]:
        return [task_id.decode() for task_id in await self._link.ask(Canceling(worker=worker))]

    async def running(self, now: int) -> list[RunningTask]:
        found: list[RunningTask] = []
        for name, *fields in await self._link.ask(Running(now=str(now))):
            record = read_record(fields)
            if record is not None:
                running = RunningTask(
                    task_id=name.decode(), context_id=record.context_id, scope=record.scope, head=record.head
                )
                found.append(running)
        return sorted(found, key=lambda task: (task.head.created_at, task.task_id))

    async def page(self, query: ListQuery, now: int) -> ListPage:
        cursor = read_token(query.page_token) if query.page_token else Cursor(now, _FAR, "")
        listing = _Listing(self._link, self._keys, query)
        total = await listing.count()
        found = await listing.find(cursor)
        loaded = await self.load_all(found.ids, with_artifacts=query.with_artifacts, most=query.page_bytes)
        for stored in loaded:
            if stored is not None and stored.scope == LOST:
                stored.scope = query.scope
        tasks = still_matching(loaded, query)
        if not query.with_artifacts:
            leave_out_artifacts(tasks)
        return ListPage(tasks=tasks, next_page_token=found.token(len(loaded)), total_size=total)


class _Listing:
    """One listing: the sorted set that its filters choose, and the range of scores. A score is a negative time."""

    def __init__(self, link: Link, keys: Keys, query: ListQuery) -> None:
        self._link = link
        self._key = keys.listing(query.scope, query.context_id, query.state)
        self._size = query.page_size
        self._last = "+inf" if query.status_after is None else str(-_bounded(query.status_after))

    async def count(self) -> int:
        total: int = await self._link.do("zcount", self._key, "-inf", self._last)
        return total

    async def find(self, cursor: Cursor) -> Found:
        """The page after `cursor`."""
        walked = [] if cursor.changed else await self._in_order(cursor)
        changed = [] if len(walked) > self._size else await self._since_changed(cursor.second_phase())
        return Found.of(cursor, self._size, walked, changed)

    async def _in_order(self, cursor: Cursor) -> list[tuple[int, str]]:
        """The first phase: on from the last task, never past the moment the listing began; one more than a page."""
        start = _bounded(min(cursor.status_at, cursor.as_of))
        wanted = self._size + 1
        limit = wanted
        while True:
            rows = await self._link.do(
                "zrangebyscore", self._key, str(-start), self._last, start=0, num=limit, withscores=True
            )
            walked = [(-int(row[1]), row[0].decode()) for row in rows]
            # Those of the very same millisecond as the last task: their ids tell which were shown.
            rest = [row for row in walked if row[0] < cursor.status_at or row[1] > cursor.task_id]
            if len(rest) >= wanted or len(rows) < limit:
                return rest[:wanted]
            limit *= 4

    async def _since_changed(self, cursor: Cursor) -> list[str]:
        """The second phase: what has left the order since the listing began, by id."""
        as_of = _bounded(cursor.as_of)
        found: set[str] = set()
        newer, limit, count = f"({-as_of}", LOOK, LOOK
        while count == limit:
            count, last, ids = await self._link.ask(Changed(listing=self._key, newer=newer, as_of=as_of, limit=limit))
            found.update(each.decode() for each in ids)
            if last.decode() == newer:
                # All of the very same millisecond: there may be more of it than one look takes in.
                limit, count = 4 * limit, 4 * count
            newer = last.decode()
        return sorted(task_id for task_id in found if task_id > cursor.task_id)


def _is_asked(record: Record, query: AskingQuery) -> bool:
    return (
        record.head.asks != ""
        and (query.tenant is None or record.scope.tenant == query.tenant)
        and (query.agent is None or record.scope.agent == query.agent)
        and (query.users is None or record.head.asks in query.users)
    )


def _bounded(time: int) -> int:
    """A token may hold any number; one that is no score compares the same as the farthest that is."""
    return max(-_FAR, min(time, _FAR))
