"""Looking into the database: tasks, logs, pages and contexts. Plain functions over a connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from errands.engines.fanout import READ_BYTES
from errands.engines.listing import leave_out_artifacts, still_matching, whole
from errands.engines.paging import Cursor, Found, fitting, read_token
from errands.engines.sqlite.records import (
    MAX_VERSION,
    PACK_BITS,
    Pack,
    Record,
    read_record,
    read_stored,
    unpack,
)
from errands.engines.sqlite.sql import QUERIES
from errands.errors import TaskNotFoundError
from errands.model.base import encode
from errands.model.log import AskingQuery, Event, ListPage, ListQuery, LogSlice, RunningTask, Scope, StoredTask

_read_versions = msgspec.json.Decoder(dict[str, int]).decode
_read_sizes = msgspec.json.Decoder(dict[int, int]).decode

#: Beyond every time, and still a number that SQLite can compare.
_FAR = 2**62


def load(connection: sqlite3.Connection, task_id: str, scope: Scope) -> StoredTask:
    rows = connection.execute(QUERIES["load"], {"id": task_id, **scope._asdict()}).fetchall()
    if not rows:
        raise TaskNotFoundError(taskId=task_id)
    return read_stored(read_record(rows[0][1]), rows[1:])


def scope_of(connection: sqlite3.Connection, task_id: str) -> Scope:
    row = connection.execute(QUERIES["scope_of"], (task_id,)).fetchone()
    if row is None:
        raise TaskNotFoundError(taskId=task_id)
    return Scope(*row)


def read(connection: sqlite3.Connection, task_id: str, scope: Scope, after: int, limit: int) -> LogSlice:
    parameters = {
        "id": task_id,
        **scope._asdict(),
        "after": min(max(after, 0), MAX_VERSION),
        "limit": limit,
        "bytes": READ_BYTES,
    }
    rows = connection.execute(QUERIES["read"], parameters).fetchall()
    if not rows:
        raise TaskNotFoundError(taskId=task_id)
    return LogSlice(unpack(rows[1:]), gap=after < rows[0][1])


def records(connection: sqlite3.Connection, task_id: str, scope: Scope) -> list[Event]:
    rows = connection.execute(QUERIES["records"], {"id": task_id, **scope._asdict()}).fetchall()
    if not rows:
        raise TaskNotFoundError(taskId=task_id)
    return unpack(rows[1:])


def load_context(connection: sqlite3.Connection, scope: Scope, context_id: str) -> bytes | None:
    row = connection.execute(QUERIES["load_context"], (*scope, context_id)).fetchone()
    return None if row is None else row[0]


class News(NamedTuple):
    """What another process may have changed for this one."""

    #: Where the watched tasks stand; one that does not exist is missing.
    versions: dict[str, int]
    #: Whether there is a task to claim or to cancel.
    has_work: bool


def news(connection: sqlite3.Connection, watched: Sequence[str], now: int) -> News:
    versions = "{}"
    if watched:
        versions = connection.execute(QUERIES["versions"], (encode(watched).decode(),)).fetchone()[0]
    has_work = connection.execute(QUERIES["has_work"], (now,)).fetchone()[0]
    return News(_read_versions(versions), bool(has_work))


def check(connection: sqlite3.Connection) -> None:
    """Fails when the database cannot be read."""
    connection.execute(QUERIES["record"], ("",)).fetchone()


def wanted_canceled(connection: sqlite3.Connection, worker: str) -> list[str]:
    return [row[0] for row in connection.execute(QUERIES["wanted_canceled"], (worker,)).fetchall()]


def running(connection: sqlite3.Connection, now: int) -> list[RunningTask]:
    records = [read_record(row[0]) for row in connection.execute(QUERIES["running"], (now,)).fetchall()]
    return [RunningTask(task_id=r.id, context_id=r.context_id, scope=r.scope, head=r.head) for r in records]


def queue_age(connection: sqlite3.Connection, agents: Sequence[str], now: int) -> int | None:
    oldest = [connection.execute(QUERIES["longest_due"], (agent, now)).fetchone()[0] for agent in set(agents)]
    return max((now - due_at for due_at in oldest if due_at is not None), default=None)


def abandoned(
    connection: sqlite3.Connection, agent: str, paused_by: int, created_by: int, limit: int
) -> list[tuple[str, Scope]]:
    """The ids and scopes of paused tasks that have waited too long."""
    # Without a bound on the age, only those that paused long ago are looked at.
    newest = paused_by if created_by < 0 else _FAR
    parameters = {
        "agent": agent,
        "paused_by": paused_by,
        "created_by": created_by,
        "newest": newest,
        "limit": limit,
    }
    rows = connection.execute(QUERIES["abandoned"], parameters).fetchall()
    return [(task_id, Scope(*scope)) for task_id, *scope in rows]


def overgrown(connection: sqlite3.Connection, events: int) -> list[str]:
    """The tasks that hold more than so many events."""
    return [row[0] for row in connection.execute(QUERIES["overgrown"], (events,)).fetchall()]


def contents(
    connection: sqlite3.Connection, records: Sequence[Record], *, with_artifacts: bool = True
) -> dict[int, list[Pack]]:
    """Snapshot and tail of each of these tasks, by their numbers."""
    found: dict[int, list[Pack]] = {record.no: [] for record in records}
    parameters = {"nos": encode(list(found)).decode(), "with_artifacts": int(with_artifacts)}
    for row in connection.execute(QUERIES["contents"], parameters).fetchall():
        found[row[0] >> PACK_BITS].append(row)
    return found


def page(connection: sqlite3.Connection, query: ListQuery, now: int) -> ListPage:
    cursor = read_token(query.page_token) if query.page_token else Cursor(now, _FAR, "")
    with _one_look(connection):
        listing = _Listing(connection, query)
        total = listing.count() if cursor.total is None else cursor.total
        records, found = listing.find(cursor.counted(total, query))
        del records[fitting(_sizes(connection, records, query), query.page_bytes) :]
        content = contents(connection, records, with_artifacts=query.with_artifacts)
    tasks = still_matching((read_stored(record, content[record.no]) for record in records), query)
    if not query.with_artifacts:
        leave_out_artifacts(tasks)
    return ListPage(tasks=tasks, next_page_token=found.token(len(records)), total_size=total)


def _sizes(connection: sqlite3.Connection, records: Sequence[Record], query: ListQuery) -> list[int]:
    """How many bytes of each of these tasks would be read."""
    nos = [record.no for record in records]
    parameters = {"nos": encode(nos).decode(), "with_artifacts": int(query.with_artifacts)}
    sizes = _read_sizes(connection.execute(QUERIES["sizes"], parameters).fetchone()[0])
    return [sizes.get(no, 0) for no in nos]


def some_tasks(connection: sqlite3.Connection, after: int, limit: int) -> tuple[list[StoredTask], int | None]:
    """The next tasks after a number, whosever they are, and the last one's; None when none is left."""
    with _one_look(connection):
        records = [read_record(row[0]) for row in connection.execute(QUERIES["some_tasks"], (after, limit)).fetchall()]
        found = contents(connection, records)
    return [read_stored(record, found[record.no]) for record in records], records[-1].no if records else None


def asking(connection: sqlite3.Connection, query: AskingQuery) -> list[StoredTask]:
    parameters = {
        "id": query.task_id,
        "tenant": query.tenant,
        "agent": query.agent,
        "users": None if query.users is None else encode(query.users).decode(),
        "limit": query.limit,
    }
    with _one_look(connection):
        rows = connection.execute(QUERIES["asking" if query.task_id is None else "asking_by_id"], parameters).fetchall()
        records = [read_record(row[0]) for row in rows]
        found = contents(connection, records, with_artifacts=False)
    tasks = whole(read_stored(record, found[record.no]) for record in records)
    leave_out_artifacts(tasks)
    return tasks


@contextmanager
def _one_look(connection: sqlite3.Connection) -> Iterator[None]:
    """Several queries that see the same state of the database."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


class _Listing:
    """One listing's filters, and the queries that know them."""

    def __init__(self, connection: sqlite3.Connection, query: ListQuery) -> None:
        self._connection = connection
        self._size = query.page_size
        self._subject = "scope" if query.context_id is None else "context"
        self._filters: dict[str, object] = {
            **query.scope._asdict(),
            "context_id": query.context_id,
            "state": None if query.state is None else query.state.value,
            "status_after": -_FAR if query.status_after is None else _bounded(query.status_after),
        }

    def find(self, cursor: Cursor) -> tuple[list[Record], Found]:
        """The page after `cursor`."""
        size = self._size
        walked = [] if cursor.changed else self._rows("in_order", cursor, size + 1)
        changed: list[Record] = []
        if len(walked) <= size:
            changed = self._rows("since_changed", cursor.second_phase(), size - len(walked) + 1)
        places = [(record.head.status_at, record.id) for record in walked]
        return (walked + changed)[:size], Found.of(cursor, size, places, [record.id for record in changed])

    def _rows(self, phase: str, cursor: Cursor, limit: int) -> list[Record]:
        position = {
            "as_of": _bounded(cursor.as_of),
            "status_at": _bounded(cursor.status_at),
            "id": cursor.task_id,
            "limit": limit,
        }
        rows = self._connection.execute(
            QUERIES[f"list_{self._subject}_{phase}"], {**self._filters, **position}
        ).fetchall()
        return [read_record(row[0]) for row in rows]

    def count(self) -> int:
        total: int = self._connection.execute(QUERIES[f"count_{self._subject}"], self._filters).fetchone()[0]
        return total


def _bounded(time: int) -> int:
    """A token may hold any number; one that SQLite cannot hold compares the same as the farthest it can."""
    return max(-_FAR, min(time, _FAR))
