"""Looking into the database: tasks, logs, pages and contexts. Plain functions over a connection."""

from __future__ import annotations

from collections.abc import Sequence

from errands.clock import Clock
from errands.engines.fanout import READ_BYTES
from errands.engines.listing import leave_out_artifacts, still_matching, whole
from errands.engines.paging import Cursor, Found, read_token
from errands.engines.postgres.connection import Connection
from errands.engines.postgres.records import (
    MAX_VERSION,
    Record,
    is_text,
    read_events,
    read_record,
    read_stored,
    readable,
    scope_key,
    storable,
)
from errands.engines.postgres.sql import QUERIES
from errands.engines.store_clock import StoreClock
from errands.errors import TaskNotFoundError
from errands.model.core import UNSPECIFIED, TaskState
from errands.model.log import AskingQuery, Event, ListPage, ListQuery, LogSlice, RunningTask, Scope, StoredTask

#: Beyond every time, and still a number that PostgreSQL can compare.
_FAR = 2**62

_STATES = [state.value for state in TaskState if state is not UNSPECIFIED]


async def load(connection: Connection, task_id: str, scope: Scope | None) -> StoredTask:
    """The task; whosever it is when no scope is given. Raises `TaskNotFoundError`."""
    row = await connection.fetchrow(QUERIES["load"], storable(task_id), True) if is_text(task_id) else None
    stored = None if row is None else read_stored(row)
    if stored is None or scope not in (None, stored.scope):
        raise TaskNotFoundError(taskId=task_id)
    return stored


async def read(connection: Connection, task_id: str, scope: Scope, after: int, limit: int) -> LogSlice:
    found = await _slice(connection, task_id, after, limit)
    if found is None or found[0].scope != scope:
        raise TaskNotFoundError(taskId=task_id)
    return LogSlice(found[1], gap=after < found[0].trimmed)


async def tail(connection: Connection, task_id: str, after: int, limit: int) -> tuple[list[Event], TaskState] | None:
    """The events of a task after a version, whosever it is, and its state; None when it is gone or they are."""
    found = await _slice(connection, task_id, after, limit)
    if found is None or after < found[0].trimmed:
        return None
    return found[1], found[0].head.state


async def _slice(connection: Connection, task_id: str, after: int, limit: int) -> tuple[Record, list[Event]] | None:
    if not is_text(task_id):
        return None
    row = await connection.fetchrow(
        QUERIES["read"], storable(task_id), min(max(after, 0), MAX_VERSION), limit, READ_BYTES
    )
    return None if row is None else (read_record(row), read_events(row))


async def scope_of(connection: Connection, task_id: str) -> Scope:
    row = await connection.fetchrow(QUERIES["records"], storable(task_id)) if is_text(task_id) else None
    if row is None:
        raise TaskNotFoundError(taskId=task_id)
    return read_record(row).scope


async def records(connection: Connection, task_id: str, scope: Scope) -> list[Event]:
    row = await connection.fetchrow(QUERIES["records"], storable(task_id)) if is_text(task_id) else None
    if row is None or read_record(row).scope != scope:
        raise TaskNotFoundError(taskId=task_id)
    return read_events(row)


async def load_context(connection: Connection, scope: Scope, context_id: str) -> bytes | None:
    if not all(map(is_text, (*scope, context_id))):
        return None
    value: bytes | None = await connection.fetchval(
        QUERIES["load_context"], *map(storable, scope), storable(context_id)
    )
    return value


async def compare_clock(connection: Connection, clock: Clock, name: str) -> None:
    """Puts a clock right that goes by the server's."""
    if isinstance(clock, StoreClock):
        asked = clock.own()
        theirs = await connection.fetchval(QUERIES["server_time"])
        clock.compare(asked, theirs, clock.own(), name)


async def is_read_only(connection: Connection) -> bool:
    """Whether nothing can be written. Fails when the tables cannot be read."""
    return bool(await connection.fetchval(QUERIES["check"]))


async def try_to_write(connection: Connection) -> None:
    """Inserts an event that belongs to no task and takes it back. Fails when a message could not be stored."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(QUERIES["probe"])
    finally:
        await transaction.rollback()


async def wanted_canceled(connection: Connection, worker: str) -> list[str]:
    return [readable(row[0]) for row in await connection.fetch(QUERIES["wanted_canceled"], storable(worker))]


async def running(connection: Connection, now: int) -> list[RunningTask]:
    records = [read_record(row) for row in await connection.fetch(QUERIES["running"], now)]
    return [RunningTask(task_id=r.id, context_id=r.context_id, scope=r.scope, head=r.head) for r in records]


async def queue_age(connection: Connection, agents: Sequence[str], now: int) -> int | None:
    names = [storable(agent) for agent in agents if is_text(agent)]
    due_at: int | None = await connection.fetchval(QUERIES["longest_due"], names, now)
    return None if due_at is None else now - due_at


async def versions(connection: Connection, task_ids: Sequence[str]) -> dict[str, int]:
    """Where these tasks stand; one that does not exist is missing."""
    rows = await connection.fetch(QUERIES["versions"], [storable(task_id) for task_id in task_ids if is_text(task_id)])
    return {readable(key): version for key, version in rows}


async def contents(connection: Connection, ids: Sequence[str]) -> dict[str, StoredTask]:
    """These tasks by their ids; both as they are stored."""
    return {row[0]: read_stored(row) for row in await connection.fetch(QUERIES["contents"], ids, True)}


async def page(connection: Connection, query: ListQuery, now: int) -> ListPage:
    cursor = read_token(query.page_token) if query.page_token else Cursor(now, _FAR, "")
    if not all(map(is_text, (*query.scope, query.context_id or ""))):
        return ListPage(tasks=[], next_page_token="", total_size=0)
    listing = _Listing(connection, query)
    total = await listing.count() if cursor.total is None else cursor.total
    found = await listing.find(cursor.counted(total, query))
    wanted = [storable(task_id) for task_id in found.ids]
    rows = await connection.fetch(QUERIES["contents_within"], wanted, query.with_artifacts, query.page_bytes)
    tasks = still_matching(map(read_stored, rows), query)
    if not query.with_artifacts:
        leave_out_artifacts(tasks)
    # Without any row they are all gone. When only those after the last row are, the next page finds that out.
    read = rows[-1]["place"] if rows else len(wanted)
    return ListPage(tasks=tasks, next_page_token=found.token(read), total_size=total)


async def some_tasks(connection: Connection, after: str, limit: int) -> tuple[list[StoredTask], str | None]:
    """The next tasks after an id, whosever they are, and the last one's as it is stored; None when none is left."""
    rows = await connection.fetch(QUERIES["some_tasks"], after, True, limit)
    return [read_stored(row) for row in rows], rows[-1][0] if rows else None


async def asking(connection: Connection, query: AskingQuery) -> list[StoredTask]:
    wanted = (query.task_id, query.tenant, query.agent)
    if not all(is_text(text) for text in wanted if text is not None):
        return []
    task_id, tenant, agent = (None if text is None else storable(text) for text in wanted)
    users = None if query.users is None else [storable(user) for user in query.users if is_text(user)]
    rows = await connection.fetch(QUERIES["asking"], task_id, False, tenant, agent, users, query.limit)
    tasks = whole(map(read_stored, rows))
    leave_out_artifacts(tasks)
    return tasks


async def abandoned(
    connection: Connection, agent: str, paused_by: int, created_by: int, limit: int
) -> list[tuple[str, Scope]]:
    """The ids and scopes of paused tasks that have waited too long."""
    # Without a bound on the age, only those that paused long ago are looked at.
    newest = paused_by if created_by < 0 else _FAR
    rows = await connection.fetch(QUERIES["abandoned"], storable(agent), newest, paused_by, created_by, limit)
    return [(readable(key), Scope(*map(readable, scope))) for key, *scope in rows]


class _Listing:
    """The two phases of a listing, as `errands.engines.paging` explains them."""

    def __init__(self, connection: Connection, query: ListQuery) -> None:
        self._connection = connection
        self._size = query.page_size
        self._subject = "scope" if query.context_id is None else "context"
        states = _STATES if query.state is None else [query.state.value]
        self._is_whole = query.status_after is None and query.context_id is None
        self._context = () if query.context_id is None else (storable(query.context_id),)
        self._filters = (
            scope_key(query.scope),
            states,
            -_FAR if query.status_after is None else _bounded(query.status_after),
            *map(storable, query.scope),
        )

    async def find(self, cursor: Cursor) -> Found:
        """The page after `cursor`."""
        walked = [] if cursor.changed else await self._in_order(cursor)
        changed = [] if len(walked) > self._size else await self._since_changed(cursor, self._size - len(walked))
        return Found.of(cursor, self._size, walked, changed)

    async def _in_order(self, cursor: Cursor) -> list[tuple[int, str]]:
        rows = await self._connection.fetch(
            QUERIES[f"list_{self._subject}_in_order"],
            *self._filters,
            _bounded(cursor.as_of),
            _bounded(cursor.status_at),
            _place(cursor),
            self._size + 1,
            *self._context,
        )
        return [(status_at, readable(task_id)) for task_id, status_at in rows]

    async def _since_changed(self, cursor: Cursor, room: int) -> list[str]:
        rows = await self._connection.fetch(
            QUERIES[f"list_{self._subject}_since_changed"],
            *self._filters,
            _bounded(cursor.as_of),
            _place(cursor.second_phase()),
            room + 1,
            *self._context,
        )
        return [readable(row[0]) for row in rows]

    async def count(self) -> int:
        if self._is_whole:
            total: int = await self._connection.fetchval(QUERIES["tally"], *self._filters[:2])
        else:
            counting = QUERIES[f"count_{self._subject}"]
            total = await self._connection.fetchval(counting, *self._filters[:3], *self._context)
        return total


def _place(cursor: Cursor) -> str:
    """A token may hold any text; what cannot be stored was never an id of ours."""
    return storable(cursor.task_id.encode("utf-8", "ignore").decode())


def _bounded(time: int) -> int:
    """A token may hold any number; one that PostgreSQL cannot hold compares the same as the farthest it can."""
    return max(-_FAR, min(time, _FAR))
