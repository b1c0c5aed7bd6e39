"""Deleting what is old, step by step: each step is a job of the thread that writes."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from typing import Any

from errands.engines.sqlite.queries import MAX_VERSION, QUERIES, VERSION_BITS, fetch_rows, load_rows
from errands.engines.sqlite.store import SQLiteStore, write_large
from errands.errors import TaskNotFoundError
from errands.model.base import encode
from errands.model.core import TaskState
from errands.model.log import Scope

#: What one step removes at most: other writes wait that long.
SWEEP_TASKS = 200
SWEEP_EVENTS = 2000


class SQLiteSweep:
    """The steps of `errands.engines.retention.Sweep`."""

    def __init__(self, store: SQLiteStore) -> None:
        self._store = store

    async def _execute(self, query: str, *values: object) -> int:
        """Return the number of rows that a statement has written."""
        return await self._store.do(lambda connection: connection.execute(QUERIES[query], values).rowcount)

    async def begin(self, now: int, every: int) -> int:
        """Return whether retention is to be applied now; then it is not begun again within `every` milliseconds."""
        return await self._execute("begin_sweep", now, every)

    async def delete_ended(self, state: TaskState, before: int) -> int:
        values = state.value, before, SWEEP_TASKS
        return await self._store.do(lambda connection: _delete_some(connection, "ended_before", values))

    async def delete_excess(self, at_most: int) -> int:
        def delete(connection: sqlite3.Connection) -> int:
            excess = connection.execute(QUERIES["count_ended"]).fetchone()[0] - at_most
            return _delete_some(connection, "longest_ended", {"limit": min(max(excess, 0), SWEEP_TASKS)})

        return await self._store.do(delete)

    async def clear_remains(self) -> int:
        return await self._store.do(clear_remains)

    async def delete_receipts(self, now: int) -> int:
        return await self._execute("delete_receipts", now, SWEEP_EVENTS)

    async def delete_contexts(self, before: int) -> int:
        return await self._execute("delete_contexts", before, SWEEP_TASKS)

    async def delete_accesses(self, before: int) -> int:
        return await self._execute("delete_accesses", before, SWEEP_EVENTS)

    async def overgrown(self, events: int) -> AsyncIterator[str]:
        query = QUERIES["overgrown"]
        for row in await self._store.readers.submit(lambda connection: connection.execute(query, (events,)).fetchall()):
            yield row[0]

    async def trim(self, task_id: str, keep: int) -> int:
        return await self._store.do(lambda connection: trim(connection, task_id, keep))


def delete(connection: sqlite3.Connection, task_id: str, scope: Scope) -> None:
    """Delete one task, as `Storage.delete` says."""
    rows = fetch_rows(connection, "record", (task_id,))
    if not rows:
        raise TaskNotFoundError(taskId=task_id)
    rows[0].check_ended(scope)
    _delete(connection, rows[0].no)


def _delete_some(connection: sqlite3.Connection, query: str, values: Any) -> int:
    """Delete tasks that a query finds, until it is enough for one transaction."""
    deleted = events = 0
    for (no,) in connection.execute(QUERIES[query], values).fetchall():
        events += _delete(connection, no)
        deleted += 1
        if events >= SWEEP_EVENTS:
            break
    return deleted


def _delete(connection: sqlite3.Connection, no: int) -> int:
    """Delete a task, and return how long its log is. Readers see it no more; `clear_remains` removes a long log."""
    last = connection.execute(QUERIES["last_place"], (no << VERSION_BITS, (no + 1) << VERSION_BITS)).fetchone()[0]
    version = (last or 0) & MAX_VERSION
    connection.execute(QUERIES["delete_task"], (no,))
    _clear(connection, no, version)
    return version


def clear_remains(connection: sqlite3.Connection) -> int:
    """Remove a piece of the log of a deleted task; 0 when nothing is left."""
    found = connection.execute(QUERIES["some_remains"]).fetchone()
    if found is None:
        return 0
    _clear(connection, *found)
    return 1


def _clear(connection: sqlite3.Connection, no: int, version: int) -> None:
    """Remove as much as one transaction may of a deleted task's log up to a version, and note the rest."""
    base, rest = no << VERSION_BITS, version - SWEEP_EVENTS
    connection.execute(QUERIES["delete_events"], (base + max(rest + 1, 0), base + version + 1))
    if rest >= 0:
        connection.execute(QUERIES["note_remains"], (no, rest))
    else:
        connection.execute(QUERIES["delete_remains"], (no,))


def trim(connection: sqlite3.Connection, task_id: str, keep: int) -> int:
    """Remove a piece from the beginning of a log; 0 when it is short enough, or cannot be read."""
    rows = fetch_rows(connection, "record", (task_id,))
    if not rows or rows[0].head.version - rows[0].trimmed <= keep:
        return 0
    row = rows[0]
    base = row.no << VERSION_BITS
    upto = min(row.head.version - keep, row.trimmed + SWEEP_EVENTS)
    if row.folded < upto:
        # What is removed must be in the snapshot.
        (stored,) = load_rows(connection, [row])
        if stored.damage:
            return 0
        write_large(connection, base, "snapshot", encode(stored.task))
        row.folded = row.head.version
    connection.execute(QUERIES["trim_events"], (base + row.trimmed + 1, base + upto + 1))
    connection.execute(QUERIES["trim"], (upto, row.folded, row.no))
    return 1
