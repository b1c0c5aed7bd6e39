"""Deleting what is old, step by step: each step is a job of the thread that writes."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

from errands.engines.sqlite import queries
from errands.engines.sqlite.connection import ReaderThreads
from errands.engines.sqlite.queries import MAX_VERSION, QUERIES, VERSION_BITS
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

    def __init__(self, store: SQLiteStore, readers: ReaderThreads) -> None:
        self._store = store
        self._readers = readers

    async def _do(self, step: Callable[..., int], **arguments: Any) -> int:
        count: int = await self._store.submit(partial(step, **arguments))
        return count

    async def begin(self, now: int, every: int) -> int:
        """Return whether retention is to be applied now; then it is not begun again within `every` milliseconds."""
        return await self._do(_execute, query="begin_sweep", values=(now, every))

    async def delete_ended(self, state: TaskState, before: int) -> int:
        return await self._do(_delete_some, query="ended_before", values=(state.value, before, SWEEP_TASKS))

    async def delete_excess(self, at_most: int) -> int:
        return await self._do(_delete_excess, at_most=at_most)

    async def clear_remains(self) -> int:
        return await self._do(clear_remains)

    async def delete_receipts(self, now: int) -> int:
        return await self._do(_execute, query="delete_receipts", values=(now, SWEEP_EVENTS))

    async def delete_contexts(self, before: int) -> int:
        return await self._do(_execute, query="delete_contexts", values=(before, SWEEP_TASKS))

    async def overgrown(self, events: int) -> AsyncIterator[str]:
        for task_id in await self._readers.submit(queries.overgrown, events):
            yield task_id

    async def trim(self, task_id: str, keep: int) -> int:
        return await self._do(trim, task_id=task_id, keep=keep)


def _execute(connection: sqlite3.Connection, query: str, values: Sequence[Any]) -> int:
    return connection.execute(QUERIES[query], values).rowcount


def delete(connection: sqlite3.Connection, task_id: str, scope: Scope) -> None:
    """Delete one task, as `Storage.delete` says."""
    row = queries.task_row(connection, task_id)
    if row is None:
        raise TaskNotFoundError(taskId=task_id)
    row.check_ended(scope)
    _delete(connection, row.no)


def _delete_excess(connection: sqlite3.Connection, at_most: int) -> int:
    excess = connection.execute(QUERIES["count_ended"]).fetchone()[0] - at_most
    return _delete_some(connection, "longest_ended", {"limit": min(excess, SWEEP_TASKS)}) if excess > 0 else 0


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
