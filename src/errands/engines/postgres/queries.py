"""Reading the database: tasks, logs, pages and contexts, as plain functions over a connection."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

from errands.clock import Clock
from errands.engines.commit import TaskRow
from errands.engines.connection import StoreClock
from errands.engines.damage import read_lease, stored_task
from errands.engines.listing import FAR, Cursor, earliest, leave_out_artifacts, list_page
from errands.engines.postgres.connection import Connection
from errands.engines.statements import read_queries
from errands.engines.subscriptions import READ_BYTES
from errands.errors import TaskNotFoundError
from errands.model.core import UNSPECIFIED, TaskState
from errands.model.log import (
    AskingQuery,
    Event,
    Head,
    ListPage,
    ListQuery,
    LogSlice,
    RunningTask,
    Scope,
    StoredTask,
)

#: The statements of `queries.sql` by name.
QUERIES = read_queries(files(__package__))

#: What an integer column holds; a log has no more events.
MAX_VERSION = 2**31 - 1

# Texts

#: PostgreSQL's texts hold every character but NUL; it is written as this one and a digit.
_ESCAPE = "\x1a"


def storable(text: str) -> str:
    """Return a text as it is stored; `readable` is the inverse."""
    if "\0" in text or _ESCAPE in text:
        return text.replace(_ESCAPE, _ESCAPE + "1").replace("\0", _ESCAPE + "0")
    return text


def readable(text: str) -> str:
    if _ESCAPE in text:
        return text.replace(_ESCAPE + "0", "\0").replace(_ESCAPE + "1", _ESCAPE)
    return text


def is_text(text: str) -> bool:
    """Return whether a text can be stored at all: half a surrogate pair cannot."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


@lru_cache(maxsize=4096)
def scope_key(scope: Scope) -> int:
    """Return the scope as one number, for indexes."""
    return int.from_bytes(_digest(scope, 8), "big", signed=True)


def receipt_key(scope: Scope, receipt: bytes) -> bytes:
    """Return the scope and the digest of a message as one."""
    return _digest(scope, 16, receipt)


def _digest(scope: Scope, size: int, more: bytes = b"") -> bytes:
    # The lengths keep apart what would read the same when put together.
    head = f"{len(scope.tenant)},{len(scope.owner)},{len(scope.agent)}:{scope.tenant}{scope.owner}{scope.agent}"
    return hashlib.blake2b(head.encode("utf-8", "surrogatepass") + b"\0" + more, digest_size=size).digest()


# Rows

#: asyncpg's record.
Row = Any

#: By their names; another release may know more.
_STATES = {state.value: state for state in TaskState}


def read_row(row: Row) -> TaskRow:
    """Return the columns of the fragment `record`, with which a row begins."""
    return TaskRow(
        row[0],
        readable(row[1]),
        Scope(readable(row[2]), readable(row[3]), readable(row[4])),
        readable(row[5]),
        row[6],
        row[7],
        Head(
            version=row[9],
            state=_STATES.get(row[10], UNSPECIFIED),
            attempt=row[11],
            attempt_base=row[12],
            given_back=row[13],
            worker=readable(row[14]),
            due_at=row[15],
            claimed=row[16],
            unread=row[17],
            cancel_requested=row[18],
            direct=row[19],
            asks=readable(row[20]),
            created_at=row[21],
            updated_at=row[22],
            status_at=row[23],
        ),
        row[8],
    )


def read_events(row: Row) -> list[Event]:
    """Return the columns of the fragment `log`, after those of the task; a snapshot, of version 0, comes first."""
    versions, kinds, data, times, leases = row[24:29]
    if versions is None:
        return []
    return [
        Event(version, kind, content, at, lease and read_lease(readable(lease)))
        for version, kind, content, at, lease in zip(versions, kinds, data, times, leases, strict=True)
    ]


def read_stored(row: Row) -> StoredTask:
    task = read_row(row)
    return stored_task(task.id, task.context_id, task.scope, task.head, read_events(row))


# One task


async def load(connection: Connection, task_id: str, scope: Scope | None) -> StoredTask:
    """Load a task; of any scope when none is given. Raises `TaskNotFoundError`."""
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
    """Return the events after a version, in any scope, and the state; None when the task or the events are gone."""
    found = await _slice(connection, task_id, after, limit)
    if found is None or after < found[0].trimmed:
        return None
    return found[1], found[0].head.state


async def _slice(connection: Connection, task_id: str, after: int, limit: int) -> tuple[TaskRow, list[Event]] | None:
    if not is_text(task_id):
        return None
    position = min(max(after, 0), MAX_VERSION)
    row = await connection.fetchrow(QUERIES["read"], storable(task_id), position, limit, READ_BYTES)
    return None if row is None else (read_row(row), read_events(row))


async def records(connection: Connection, task_id: str, scope: Scope) -> list[Event]:
    row = await connection.fetchrow(QUERIES["records"], storable(task_id)) if is_text(task_id) else None
    if row is None or read_row(row).scope != scope:
        raise TaskNotFoundError(taskId=task_id)
    return read_events(row)


async def load_context(connection: Connection, scope: Scope, context_id: str) -> bytes | None:
    if not all(map(is_text, (*scope, context_id))):
        return None
    value: bytes | None = await connection.fetchval(
        QUERIES["load_context"], *map(storable, scope), storable(context_id)
    )
    return value


# Several tasks


async def contents(connection: Connection, ids: Sequence[str]) -> dict[str, StoredTask]:
    """Load these tasks; ids are as they are stored."""
    return {row[1]: read_stored(row) for row in await connection.fetch(QUERIES["contents"], ids, True)}


async def some_tasks(connection: Connection, after: str, limit: int) -> tuple[list[StoredTask], str | None]:
    """Return the next tasks of any scope after an id, and the last id as it is stored; None when none is left."""
    rows = await connection.fetch(QUERIES["some_tasks"], after, True, limit)
    return [read_stored(row) for row in rows], rows[-1][1] if rows else None


async def asking(connection: Connection, query: AskingQuery) -> list[StoredTask]:
    wanted = (query.task_id, query.tenant, query.agent)
    if not all(is_text(text) for text in wanted if text is not None):
        return []
    task_id, tenant, agent = (None if text is None else storable(text) for text in wanted)
    users = None if query.users is None else [storable(user) for user in query.users if is_text(user)]
    rows = await connection.fetch(QUERIES["asking"], task_id, False, tenant, agent, users, query.limit)
    tasks = [stored for stored in map(read_stored, rows) if not stored.damage]
    leave_out_artifacts(tasks)
    return tasks


async def abandoned(
    connection: Connection, agent: str, paused_by: int, created_by: int, limit: int
) -> list[tuple[str, Scope]]:
    # Without a bound on the age, only those that paused long ago are looked at.
    newest = paused_by if created_by < 0 else FAR
    rows = await connection.fetch(QUERIES["abandoned"], storable(agent), newest, paused_by, created_by, limit)
    return [(readable(key), Scope(*map(readable, scope))) for key, *scope in rows]


async def page(connection: Connection, query: ListQuery, now: int) -> ListPage:
    if not all(map(is_text, (*query.scope, query.context_id or ""))):
        if query.page_token:
            Cursor.read(query.page_token)
        return ListPage(tasks=[], next_page_token="", total_size=0)
    return await list_page(_PostgresListing(connection, query), query, now)


class _PostgresListing:
    """The queries of one listing; see `errands.engines.listing.Listing`."""

    def __init__(self, connection: Connection, query: ListQuery) -> None:
        self._connection = connection
        self._query = query
        self._subject = "scope" if query.context_id is None else "context"
        self._context = () if query.context_id is None else (storable(query.context_id),)
        states = [state for state in _STATES if state != UNSPECIFIED] if query.state is None else [query.state.value]
        self._filters = (scope_key(query.scope), states, earliest(query), *map(storable, query.scope))

    async def count(self) -> int:
        if self._query.status_after is None and self._query.context_id is None:
            total: int = await self._connection.fetchval(QUERIES["tally"], *self._filters[:2])
        else:
            counting = QUERIES[f"count_{self._subject}"]
            total = await self._connection.fetchval(counting, *self._filters[:3], *self._context)
        return total

    async def in_order(self, cursor: Cursor, limit: int) -> list[tuple[int, str]]:
        rows = await self._connection.fetch(
            QUERIES[f"list_{self._subject}_in_order"],
            *self._filters,
            cursor.as_of,
            cursor.status_at,
            _position(cursor),
            limit,
            *self._context,
        )
        return [(status_at, readable(task_id)) for task_id, status_at in rows]

    async def since_changed(self, cursor: Cursor, limit: int) -> list[str]:
        rows = await self._connection.fetch(
            QUERIES[f"list_{self._subject}_since_changed"],
            *self._filters,
            cursor.as_of,
            _position(cursor),
            limit,
            *self._context,
        )
        return [readable(row[0]) for row in rows]

    async def load(self, task_ids: list[str]) -> list[StoredTask | None]:
        wanted = [storable(task_id) for task_id in task_ids]
        rows = await self._connection.fetch(
            QUERIES["contents_within"], wanted, self._query.with_artifacts, self._query.page_bytes
        )
        # Without any row all are gone. If only those after the last row are, the next page finds that out.
        loaded: list[StoredTask | None] = [None] * (rows[-1]["place"] if rows else len(wanted))
        for row in rows:
            loaded[row["place"] - 1] = read_stored(row)
        return loaded


def _position(cursor: Cursor) -> str:
    """Return the id in a token, which may be any text, without what cannot be stored."""
    return storable(cursor.task_id.encode("utf-8", "ignore").decode())


# The queue, and the server itself


async def wanted_canceled(connection: Connection, worker: str) -> list[str]:
    return [readable(row[0]) for row in await connection.fetch(QUERIES["wanted_canceled"], storable(worker))]


async def running(connection: Connection, now: int) -> list[RunningTask]:
    return [read_row(row).running() for row in await connection.fetch(QUERIES["running"], now)]


async def queue_age(connection: Connection, agents: Sequence[str], now: int) -> int | None:
    names = [storable(agent) for agent in agents if is_text(agent)]
    due_at: int | None = await connection.fetchval(QUERIES["longest_due"], names, now)
    return None if due_at is None else now - due_at


async def versions(connection: Connection, task_ids: Sequence[str]) -> dict[str, int]:
    """Return the versions of these tasks; one that does not exist is missing."""
    rows = await connection.fetch(QUERIES["versions"], [storable(task_id) for task_id in task_ids if is_text(task_id)])
    return {readable(key): version for key, version in rows}


async def compare_clock(connection: Connection, clock: Clock, name: str) -> None:
    """Correct a `StoreClock` by the server's time."""
    if isinstance(clock, StoreClock):
        asked = clock.own()
        theirs = await connection.fetchval(QUERIES["server_time"])
        clock.compare(asked, theirs, clock.own(), name)


async def is_read_only(connection: Connection) -> bool:
    """Return whether nothing can be written. Fails when the tables cannot be read."""
    return bool(await connection.fetchval(QUERIES["check"]))


async def try_to_write(connection: Connection) -> None:
    """Insert an event that belongs to no task and roll it back. Fails when a message could not be stored."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(QUERIES["probe"])
    finally:
        await transaction.rollback()
