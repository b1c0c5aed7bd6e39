"""Deleting what is old, step by step: each step is a job of the thread that writes."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from errands.engines.sqlite import queries
from errands.engines.sqlite.connection import ReaderThreads
from errands.engines.sqlite.queries import MAX_VERSION, QUERIES, VERSION_BITS
from errands.engines.sqlite.store import SQLiteStore, find_ended, write_large
from errands.model.base import encode
from errands.model.core import TaskState
from errands.model.log import Scope

#: What one step removes at most: other writes wait that long.
SWEEP_TASKS = 200
SWEEP_EVENTS = 2000


class SQLiteSweep:
    """The steps of `errands.engines.retention.Sweep`."""

    def __init__(self, store: SQLiteStore, readers: ReaderThreads) -> None:
        self._store = store
        self._readers = readers

    async def _do(self, step: Callable[..., int], *arguments: object) -> int:
        count: int = await self._store.submit(lambda connection: step(connection, *arguments))
        return count

    async def begin(self, now: int, every: int) -> int:
        """Return whether retention is to be applied now; then it is not begun again within `every` milliseconds."""
        return await self._do(_begin, now, every)

    async def delete_ended(self, state: TaskState, before: int) -> int:
        return await self._do(_delete_ended, state, before)

    async def delete_excess(self, at_most: int) -> int:
        return await self._do(_delete_excess, at_most)

    async def clear_remains(self) -> int:
        return await self._do(clear_remains)

    async def delete_receipts(self, now: int) -> int:
        return await self._do(_execute, "delete_receipts", now, SWEEP_EVENTS)

    async def delete_contexts(self, before: int) -> int:
        return await self._do(_execute, "delete_contexts", before, SWEEP_TASKS)

    async def overgrown(self, events: int) -> AsyncIterator[str]:
        for task_id in await self._readers.submit(queries.overgrown, events):
            yield task_id

    async def trim(self, task_id: str, keep: int) -> int:
        return await self._do(trim, task_id, keep)


def delete(connection: sqlite3.Connection, task_id: str, scope: Scope) -> None:
    """Delete one task, as `Storage.delete` says."""
    _delete(connection, find_ended(connection, task_id, scope).no)


def _execute(connection: sqlite3.Connection, query: str, *arguments: Any) -> int:
    return connection.execute(QUERIES[query], arguments).rowcount


def _begin(connection: sqlite3.Connection, now: int, every: int) -> int:
    return _execute(connection, "begin_sweep", now, every)


def _delete_ended(connection: sqlite3.Connection, state: TaskState, before: int) -> int:
    return _delete_some(
        connection, connection.execute(QUERIES["ended_before"], (state.value, before, SWEEP_TASKS)).fetchall()
    )


def _delete_excess(connection: sqlite3.Connection, at_most: int) -> int:
    excess = connection.execute(QUERIES["count_ended"]).fetchone()[0] - at_most
    if excess <= 0:
        return 0
    limit = {"limit": min(excess, SWEEP_TASKS)}
    return _delete_some(connection, connection.execute(QUERIES["longest_ended"], limit).fetchall())


def _delete_some(connection: sqlite3.Connection, found: Sequence[tuple[int]]) -> int:
    """Delete tasks, given by their numbers, until it is enough for one transaction."""
    deleted = events = 0
    for (no,) in found:
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
    row = queries.task_row(connection, task_id)
    if row is None or row.head.version - row.trimmed <= keep:
        return 0
    base = row.no << VERSION_BITS
    upto = min(row.head.version - keep, row.trimmed + SWEEP_EVENTS)
    if row.folded < upto:
        # What is removed must be in the snapshot.
        stored = queries.read_stored(row, queries.contents(connection, [row])[row.no])
        if stored.damage:
            return 0
        write_large(connection, base, "snapshot", encode(stored.task))
        row.folded = row.head.version
    connection.execute(QUERIES["trim_events"], (base + row.trimmed + 1, base + upto + 1))
    connection.execute(QUERIES["trim"], (upto, row.folded, row.no))
    return 1
