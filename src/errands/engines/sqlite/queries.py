"""Reading the database: tasks, logs, pages and contexts, as plain functions over a connection."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from errands.engines.commit import TaskRow
from errands.engines.damage import read_lease, salvaged_head, stored_task
from errands.engines.listing import FAR, Cursor, earliest, fitting, leave_out_artifacts, list_page
from errands.engines.statements import read_queries
from errands.engines.subscriptions import READ_BYTES
from errands.errors import TaskNotFoundError
from errands.model.base import encode
from errands.model.log import (
    AskingQuery,
    Event,
    ListPage,
    ListQuery,
    LogSlice,
    RunningTask,
    Scope,
    StoredTask,
)

#: The statements of `queries.sql` by name.
QUERIES = read_queries(files(__package__))

#: How many bits of `events.place` are the version; the rest is the task's number.
VERSION_BITS = 28
MAX_VERSION = (1 << VERSION_BITS) - 1
#: The same for `pack`, which names a run of 64 places.
PACK_BITS = VERSION_BITS - 6

_EACH = re.compile(r"/\*each\*/ (\([^)]*\)|\?)")


@cache
def repeated(name: str, rows: int) -> str:
    """Return the query with its repeated piece written `rows` times: many rows in one step of SQLite.

    Every step gives up the interpreter's lock and has to win it back from a busy event loop.
    """
    return _EACH.sub(lambda match: ", ".join([match[1]] * rows), QUERIES[name])


def json_text(value: Any) -> str:
    """Return a value as JSON, the way lists are passed to statements."""
    return encode(value).decode()


# Rows

# Not strict: SQLite has 0 and 1 instead of booleans.
_read_rows = msgspec.json.Decoder(list[TaskRow], strict=False).decode
_read_labels = msgspec.json.Decoder(list[tuple[int, str, int, Any, Any]]).decode
_read_versions = msgspec.json.Decoder(dict[str, int]).decode
_read_sizes = msgspec.json.Decoder(dict[int, int]).decode
_version = attrgetter("version")

#: A row of the fragment `packed`: several events at once.
Pack = tuple[int, str, bytes]


def read_row(text: str) -> TaskRow:
    """Return a row of `tasks`; without a state when it cannot be read."""
    return read_rows(f"[{text}]")[0]


def read_rows(text: str) -> list[TaskRow]:
    try:
        rows = _read_rows(text)
    except msgspec.MsgspecError:
        return [_salvaged(row) for row in msgspec.json.decode(text)]
    for row in rows:
        # Retention relies on these numbers, step by step.
        if not (0 <= row.trimmed <= row.head.version <= MAX_VERSION and 0 <= row.folded <= row.head.version):
            return [_salvaged(row) for row in msgspec.json.decode(text)]
    return rows


def _salvaged(columns: list[Any]) -> TaskRow:
    """Return what can be read of a row of which some may be damaged."""
    no, task_id, scope, context_id, *_, head_columns = columns
    head = salvaged_head(head_columns)
    if not 0 <= head.version <= MAX_VERSION:
        head.version = 0
    return TaskRow(no, task_id, Scope(*scope), context_id, 0, 0, head)


def unpack(packs: Iterable[Pack]) -> list[Event]:
    """Return the events of packed rows in the order of their places; a snapshot, of version 0, comes first."""
    events: list[Event] = []
    for _, labels, data in packs:
        end = 0
        for place, kind, length, at, lease in _read_labels(labels):
            start, end = end, end + length
            # In a damaged file these two may be anything.
            at, lease = at if isinstance(at, int) else 0, read_lease(lease) if isinstance(lease, str) else None
            events.append(Event(place & MAX_VERSION, kind, data[start:end], at, lease))  # type: ignore[arg-type]
    events.sort(key=_version)
    return events


def read_stored(row: TaskRow, content: Iterable[Pack]) -> StoredTask:
    return stored_task(row.id, row.context_id, row.scope, row.head, unpack(content))


# One task


def task_row(connection: sqlite3.Connection, task_id: str) -> TaskRow | None:
    row = connection.execute(QUERIES["record"], (task_id,)).fetchone()
    return None if row is None else read_row(row[0])


def load(connection: sqlite3.Connection, task_id: str, scope: Scope | None) -> StoredTask:
    """Load a task; of any scope when none is given. Raises `TaskNotFoundError`."""
    rows = connection.execute(QUERIES["load"], {"id": task_id}).fetchall()
    row = read_row(rows[0][1]) if rows else None
    if row is None or scope not in (None, row.scope):
        raise TaskNotFoundError(taskId=task_id)
    return read_stored(row, rows[1:])


def read(connection: sqlite3.Connection, task_id: str, scope: Scope, after: int, limit: int) -> LogSlice:
    position = {"after": min(max(after, 0), MAX_VERSION), "limit": limit, "bytes": READ_BYTES}
    rows = _rows_of(connection, "read", task_id, scope, **position)
    return LogSlice(unpack(rows[1:]), gap=after < rows[0][1])


def records(connection: sqlite3.Connection, task_id: str, scope: Scope) -> list[Event]:
    return unpack(_rows_of(connection, "records", task_id, scope)[1:])


def _rows_of(connection: sqlite3.Connection, query: str, task_id: str, scope: Scope, **more: int) -> list[Any]:
    rows = connection.execute(QUERIES[query], {"id": task_id, **scope._asdict(), **more}).fetchall()
    if not rows:
        raise TaskNotFoundError(taskId=task_id)
    return rows


def load_context(connection: sqlite3.Connection, scope: Scope, context_id: str) -> bytes | None:
    row = connection.execute(QUERIES["load_context"], (*scope, context_id)).fetchone()
    return None if row is None else row[0]


# Several tasks


@contextmanager
def _one_look(connection: sqlite3.Connection) -> Iterator[None]:
    """Have several queries see the same state of the database."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def contents(
    connection: sqlite3.Connection, rows: Sequence[TaskRow], *, with_artifacts: bool = True
) -> dict[int, list[Pack]]:
    """Return snapshot and tail of each of these tasks, by their numbers."""
    found: dict[int, list[Pack]] = {row.no: [] for row in rows}
    parameters = {"nos": json_text(list(found)), "with_artifacts": int(with_artifacts)}
    for pack in connection.execute(QUERIES["contents"], parameters).fetchall():
        found[pack[0] >> PACK_BITS].append(pack)
    return found


def some_tasks(connection: sqlite3.Connection, after: int, limit: int) -> tuple[list[StoredTask], int | None]:
    """Return the next tasks of any scope after a number, and the last one's number; None when none is left."""
    with _one_look(connection):
        rows = [read_row(row[0]) for row in connection.execute(QUERIES["some_tasks"], (after, limit)).fetchall()]
        content = contents(connection, rows)
    return [read_stored(row, content[row.no]) for row in rows], rows[-1].no if rows else None


def asking(connection: sqlite3.Connection, query: AskingQuery) -> list[StoredTask]:
    parameters = {
        "id": query.task_id,
        "tenant": query.tenant,
        "agent": query.agent,
        "users": None if query.users is None else json_text(query.users),
        "limit": query.limit,
    }
    name = "asking" if query.task_id is None else "asking_by_id"
    with _one_look(connection):
        rows = [read_row(row[0]) for row in connection.execute(QUERIES[name], parameters).fetchall()]
        content = contents(connection, rows, with_artifacts=False)
    tasks = [stored for row in rows if not (stored := read_stored(row, content[row.no])).damage]
    leave_out_artifacts(tasks)
    return tasks


def abandoned(
    connection: sqlite3.Connection, agent: str, paused_by: int, created_by: int, limit: int
) -> list[tuple[str, Scope]]:
    parameters = {
        "agent": agent,
        "paused_by": paused_by,
        "created_by": created_by,
        # Without a bound on the age, only those that paused long ago are looked at.
        "newest": paused_by if created_by < 0 else FAR,
        "limit": limit,
    }
    rows = connection.execute(QUERIES["abandoned"], parameters).fetchall()
    return [(task_id, Scope(*scope)) for task_id, *scope in rows]


def overgrown(connection: sqlite3.Connection, events: int) -> list[str]:
    """Return the tasks whose logs hold more than this number of events."""
    return [row[0] for row in connection.execute(QUERIES["overgrown"], (events,)).fetchall()]


def page(connection: sqlite3.Connection, query: ListQuery, now: int) -> ListPage:
    with _one_look(connection):
        return _run(list_page(_SQLiteListing(connection, query), query, now))


def _run(listing: Coroutine[Any, Any, ListPage]) -> ListPage:
    """Run a coroutine that never waits, because its queries do not, to its end."""
    try:
        listing.send(None)
    except StopIteration as end:
        page: ListPage = end.value
        return page
    raise AssertionError("the listing waits for something")


class _SQLiteListing:
    """The queries of one listing; see `errands.engines.listing.Listing`."""

    def __init__(self, connection: sqlite3.Connection, query: ListQuery) -> None:
        self._connection = connection
        self._query = query
        self._subject = "scope" if query.context_id is None else "context"
        self._filters: dict[str, object] = {
            **query.scope._asdict(),
            "context_id": query.context_id,
            "state": None if query.state is None else query.state.value,
            "status_after": earliest(query),
        }
        #: What was found so far, by id.
        self._found: dict[str, TaskRow] = {}

    async def count(self) -> int:
        total: int = self._connection.execute(QUERIES[f"count_{self._subject}"], self._filters).fetchone()[0]
        return total

    async def in_order(self, cursor: Cursor, limit: int) -> list[tuple[int, str]]:
        return [(row.head.status_at, row.id) for row in self._find("in_order", cursor, limit)]

    async def since_changed(self, cursor: Cursor, limit: int) -> list[str]:
        return [row.id for row in self._find("since_changed", cursor, limit)]

    def _find(self, phase: str, cursor: Cursor, limit: int) -> list[TaskRow]:
        position = {"as_of": cursor.as_of, "status_at": cursor.status_at, "id": cursor.task_id, "limit": limit}
        statement = QUERIES[f"list_{self._subject}_{phase}"]
        rows = [read_row(row[0]) for row in self._connection.execute(statement, {**self._filters, **position})]
        self._found |= {row.id: row for row in rows}
        return rows

    async def load(self, task_ids: list[str]) -> list[StoredTask]:
        rows = [self._found[task_id] for task_id in task_ids]
        with_artifacts = self._query.with_artifacts
        parameters = {"nos": json_text([row.no for row in rows]), "with_artifacts": int(with_artifacts)}
        sizes = _read_sizes(self._connection.execute(QUERIES["sizes"], parameters).fetchone()[0])
        del rows[fitting((sizes.get(row.no, 0) for row in rows), self._query.page_bytes) :]
        content = contents(self._connection, rows, with_artifacts=with_artifacts)
        return [read_stored(row, content[row.no]) for row in rows]


# The queue, and what other processes change


def wanted_canceled(connection: sqlite3.Connection, worker: str) -> list[str]:
    return [row[0] for row in connection.execute(QUERIES["wanted_canceled"], (worker,)).fetchall()]


def running(connection: sqlite3.Connection, now: int) -> list[RunningTask]:
    return [read_row(row[0]).running() for row in connection.execute(QUERIES["running"], (now,)).fetchall()]


def queue_age(connection: sqlite3.Connection, agents: Sequence[str], now: int) -> int | None:
    oldest = [connection.execute(QUERIES["longest_due"], (agent, now)).fetchone()[0] for agent in set(agents)]
    return max((now - due_at for due_at in oldest if due_at is not None), default=None)


class Changed(NamedTuple):
    """What another process may have changed for this one."""

    #: The versions of the watched tasks; one that does not exist is missing.
    versions: dict[str, int]
    #: Whether there is a task to claim or to cancel.
    has_work: bool


def changed(connection: sqlite3.Connection, watched: Sequence[str], now: int) -> Changed:
    versions = "{}"
    if watched:
        versions = connection.execute(QUERIES["versions"], (json_text(watched),)).fetchone()[0]
    has_work = connection.execute(QUERIES["has_work"], (now,)).fetchone()[0]
    return Changed(_read_versions(versions), bool(has_work))


def check(connection: sqlite3.Connection) -> None:
    """Fail when the database cannot be read."""
    connection.execute(QUERIES["record"], ("",)).fetchone()
