"""Deleting what is old, step by step: each step is a transaction of its own, and other writes come between."""

from __future__ import annotations

from collections.abc import AsyncIterator

from errands.engines.base import Retention
from errands.engines.postgres.connection import Connection
from errands.engines.postgres.queries import QUERIES, contents, read_row, storable
from errands.engines.postgres.store import LONG_LOG
from errands.engines.retention import apply_retention
from errands.errors import TaskNotFoundError
from errands.model.base import encode
from errands.model.core import TaskState
from errands.model.log import Scope

#: What one step removes at most.
SWEEP_TASKS = 200
SWEEP_EVENTS = 10_000
#: How many tasks one step looks at when no index knows which of them are long.
LOOK = 10_000


async def sweep(connection: Connection, retention: Retention, now: int, every: int) -> int:
    """Apply the policy once, unless another replica does, or has begun to in the last `every` milliseconds.

    Returns how many tasks were deleted.
    """
    if not await connection.fetchval(QUERIES["sweeper"]):
        return 0
    try:
        if not await connection.fetchval(QUERIES["begin_sweep"], now, every):
            return 0
        await connection.execute(QUERIES["delete_writers"])
        return await apply_retention(PostgresSweep(connection), retention, now)
    finally:
        try:
            await connection.fetchval(QUERIES["swept"])
        except Exception:
            # The lock ends with the connection.
            connection.terminate()


async def delete(connection: Connection, task_id: str, scope: Scope) -> None:
    """Delete one task, as `Storage.delete` says. The caller holds the transaction."""
    rows = await connection.fetch(QUERIES["lock"], [storable(task_id)])
    if not rows:
        raise TaskNotFoundError(taskId=task_id)
    read_row(rows[0]).check_ended(scope)
    await connection.fetchval(QUERIES["delete_tasks"], [storable(task_id)], SWEEP_EVENTS)


class PostgresSweep:
    """The steps of `errands.engines.retention.Sweep`. Ids are as they are stored."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def delete_ended(self, state: TaskState, before: int) -> int:
        return await self._delete_some("ended_before", state.value, before, SWEEP_TASKS)

    async def delete_excess(self, at_most: int) -> int:
        excess = await self._connection.fetchval(QUERIES["count_ended"]) - at_most
        return await self._delete_some("longest_ended", min(excess, SWEEP_TASKS)) if excess > 0 else 0

    async def _delete_some(self, query: str, *values: object) -> int:
        """Delete some of the tasks that a query finds."""
        async with self._connection.transaction():
            ids: list[str] = []
            events = 0
            for key, length in await self._connection.fetch(QUERIES[query], *values):
                ids.append(key)
                events += length
                if events >= SWEEP_EVENTS:
                    break
            # Readers see them no more; `clear_remains` removes what is left of long logs.
            count: int = await self._connection.fetchval(QUERIES["delete_tasks"], ids, SWEEP_EVENTS) if ids else 0
            return count

    async def clear_remains(self) -> int:
        async with self._connection.transaction():
            found = await self._connection.fetchrow(QUERIES["some_remains"])
            if found is None:
                return 0
            no, version = found
            await self._connection.execute(QUERIES["delete_events"], no, version - SWEEP_EVENTS, version)
            if version >= SWEEP_EVENTS:
                await self._connection.execute(QUERIES["note_remains"], no, version - SWEEP_EVENTS)
            else:
                await self._connection.execute(QUERIES["delete_remains"], no)
            return 1

    async def delete_receipts(self, now: int) -> int:
        async with self._connection.transaction():
            # The planner assumes that expired receipts are many, and would look for some in the whole table.
            await self._connection.execute(QUERIES["only_bitmaps"])
            count: int = await self._connection.fetchval(QUERIES["delete_receipts"], now, SWEEP_EVENTS)
            return count

    async def delete_contexts(self, before: int) -> int:
        count: int = await self._connection.fetchval(QUERIES["delete_contexts"], before, SWEEP_TASKS)
        return count

    async def delete_accesses(self, before: int) -> int:
        count: int = await self._connection.fetchval(QUERIES["delete_accesses"], before, SWEEP_EVENTS)
        return count

    async def overgrown(self, events: int) -> AsyncIterator[str]:
        if events >= LONG_LOG:
            for row in await self._connection.fetch(QUERIES["overgrown_long"], events):
                yield row[0]
            return
        # In steps: all tasks are looked at, which in one statement may take longer than one may.
        last = ""
        while last is not None:
            last, found = await self._connection.fetchrow(QUERIES["overgrown"], events, last, LOOK)
            for key in found or ():
                yield key

    async def trim(self, task_id: str, keep: int) -> int:
        async with self._connection.transaction():
            rows = await self._connection.fetch(QUERIES["lock"], [task_id])
            row = read_row(rows[0]) if rows else None
            if row is None or row.head.version - row.trimmed <= keep:
                return 0
            upto = min(row.head.version - keep, row.trimmed + SWEEP_EVENTS)
            if row.folded < upto:
                # What is removed must be in the snapshot.
                stored = (await contents(self._connection, [task_id]))[task_id]
                if stored.damage:
                    return 0
                await self._connection.execute(QUERIES["save_snapshot"], row.no, encode(stored.task))
                row.folded = row.head.version
            await self._connection.execute(QUERIES["trim_events"], row.no, row.trimmed, upto)
            await self._connection.execute(QUERIES["trim"], task_id, upto, row.folded)
            return 1
