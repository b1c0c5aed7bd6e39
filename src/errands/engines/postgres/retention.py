"""Applying the retention policy, in small steps: each is a transaction of its own, and other writes come between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from errands.engines.base import Retention
from errands.engines.postgres.connection import Connection
from errands.engines.postgres.reading import contents
from errands.engines.postgres.records import read_record
from errands.engines.postgres.sql import QUERIES
from errands.model.base import encode

#: What one step removes at most.
SWEEP_TASKS = 200
SWEEP_EVENTS = 10_000
#: Tasks with more events than this are in an index of their own.
_LONG = 1000
#: How many tasks one step looks at when no index knows which of them are long.
_LOOK = 10_000


async def sweep(connection: Connection, retention: Retention, now: int, every: int) -> int:
    """Applies the policy once, unless another replica is at it, or has begun in the last `every` milliseconds.

    Returns how many tasks were deleted.
    """
    if not await connection.fetchval(QUERIES["sweeper"]):
        return 0
    try:
        if not await connection.fetchval(QUERIES["begin_sweep"], now, every):
            return 0
        return await _sweep(connection, retention, now)
    finally:
        try:
            await connection.fetchval(QUERIES["swept"])
        except Exception:
            # The lock goes with the connection.
            connection.terminate()


async def _sweep(connection: Connection, retention: Retention, now: int) -> int:
    deleted = 0
    await connection.execute(QUERIES["forget_writers"])
    for state, before in retention.moments(now).items():
        while count := await _forget_some(connection, "ended_before", state.value, before, SWEEP_TASKS):
            deleted += count
    if retention.ended_at_most is not None:
        while count := await _forget_excess(connection, retention.ended_at_most):
            deleted += count
    while await _clear(connection):
        pass
    while await _forget_receipts(connection, now):
        pass
    if (untouched_since := retention.contexts_before(now)) is not None:
        while await connection.fetchval(QUERIES["forget_contexts"], untouched_since, SWEEP_TASKS):
            pass
    if retention.events_per_task is not None:
        await _trim_all(connection, retention.events_per_task)
    return deleted


async def _forget_receipts(connection: Connection, now: int) -> int:
    """Delete some receipts whose window has passed, and return how many."""
    async with connection.transaction():
        # The planner takes it that expired receipts are many, and would look for some in the whole table.
        await connection.execute(QUERIES["only_bitmaps"])
        count: int = await connection.fetchval(QUERIES["forget_expired_receipts"], now, SWEEP_EVENTS)
        return count


async def _forget_excess(connection: Connection, at_most: int) -> int:
    """Deletes some of the ended tasks that are too many; 0 means that none is left."""
    excess = await connection.fetchval(QUERIES["count_ended"]) - at_most
    return await _forget_some(connection, "longest_ended", min(excess, SWEEP_TASKS)) if excess > 0 else 0


async def _forget_some(connection: Connection, query: str, *values: object) -> int:
    """Deletes some of the tasks that a query finds; 0 means that it finds none."""
    async with connection.transaction():
        ids: list[str] = []
        events = 0
        for key, length in await connection.fetch(QUERIES[query], *values):
            ids.append(key)
            events += length
            if events >= SWEEP_EVENTS:
                break
        return await forget(connection, ids) if ids else 0


async def forget(connection: Connection, ids: Sequence[str]) -> int:
    """Deletes ended tasks; says how many. What is left of a long log is nobody's any more, and `sweep` removes it."""
    count: int = await connection.fetchval(QUERIES["forget_tasks"], ids, SWEEP_EVENTS)
    return count


async def _clear(connection: Connection) -> bool:
    """Removes a piece of what a deleted task has left; false when nothing is left."""
    async with connection.transaction():
        found = await connection.fetchrow(QUERIES["some_remains"])
        if found is None:
            return False
        no, version = found
        await connection.execute(QUERIES["clear_events"], no, version - SWEEP_EVENTS, version)
        if version >= SWEEP_EVENTS:
            await connection.execute(QUERIES["note_remains"], no, version - SWEEP_EVENTS)
        else:
            await connection.execute(QUERIES["forget_remains"], no)
        return True


async def _trim_all(connection: Connection, keep: int) -> None:
    # A tenth over the bound before trimming, so that a growing log is cut rarely.
    most = keep + keep // 10
    async for key in _overgrown_long(connection, most) if most >= _LONG else _overgrown(connection, most):
        while await _trim(connection, key, keep):
            pass


async def _overgrown_long(connection: Connection, most: int) -> AsyncIterator[str]:
    for row in await connection.fetch(QUERIES["overgrown_long"], most):
        yield row[0]


async def _overgrown(connection: Connection, most: int) -> AsyncIterator[str]:
    """In steps: all tasks are looked at, which in one go may take longer than a statement may."""
    last = ""
    while last is not None:
        last, found = await connection.fetchrow(QUERIES["overgrown"], most, last, _LOOK)
        for key in found or ():
            yield key


async def _trim(connection: Connection, key: str, keep: int) -> bool:
    """Cuts a piece off the beginning of a log; false when it is short enough, or cannot be read.

    What is cut off lives on in the snapshot, so that is brought up to date first.
    """
    async with connection.transaction():
        rows = await connection.fetch(QUERIES["lock"], [key])
        record = read_record(rows[0]) if rows else None
        if record is None or record.head.version - record.trimmed <= keep:
            return False
        upto = min(record.head.version - keep, record.trimmed + SWEEP_EVENTS)
        if record.folded < upto:
            stored = (await contents(connection, [key]))[key]
            if stored.damage:
                return False
            await connection.execute(QUERIES["save_snapshot"], record.no, encode(stored.task))
            record.folded = record.head.version
        await connection.execute(QUERIES["trim_events"], record.no, record.trimmed, upto)
        await connection.execute(QUERIES["trim"], key, upto, record.folded)
        return True
