"""What the writer does beside changes: leases and deletion.

Each function is one job: it runs in the writer's transaction and leaves committing to the writer.
"""

from __future__ import annotations

from collections.abc import Sequence

from errands.engines.postgres.connection import Connection
from errands.engines.postgres.reading import contents
from errands.engines.postgres.records import read_record, readable, storable
from errands.engines.postgres.retention import forget
from errands.engines.postgres.sql import QUERIES
from errands.errors import ConcurrencyError, TaskNotFoundError
from errands.model.core import TERMINAL_STATES, UNSPECIFIED
from errands.model.log import Lease, LeaseSignal, Scope, StoredTask


async def claim(
    connection: Connection, worker: str, agents: Sequence[str], limit: int, now: int, until: int
) -> list[StoredTask]:
    due: list[tuple[int, str]] = []
    for agent in sorted(set(agents)):
        due += [(at, key) for key, at in await connection.fetch(QUERIES["due"], storable(agent), now, limit)]
    ids = [key for _, key in sorted(due)[:limit]]
    if not ids:
        return []
    await connection.execute(QUERIES["lease"], ids, storable(worker), until)
    found = await contents(connection, ids)
    return [found[key] for key in ids]


async def extend(connection: Connection, worker: str, leases: Sequence[Lease], until: int) -> list[LeaseSignal]:
    ids = [storable(lease.task_id) for lease in leases]
    attempts = [lease.attempt for lease in leases]
    rows = await connection.fetch(QUERIES["extend"], ids, attempts, storable(worker), until) if leases else []
    cancels = {Lease(readable(key), attempt): cancel for key, attempt, cancel in rows}
    return [
        LeaseSignal(lease.task_id, lost=lease not in cancels, cancel_requested=cancels.get(lease, False))
        for lease in leases
        if cancels.get(lease, True)
    ]


async def delete(connection: Connection, task_id: str, scope: Scope) -> None:
    rows = await connection.fetch(QUERIES["lock"], [storable(task_id)])
    record = read_record(rows[0]) if rows else None
    if record is None or record.scope != scope:
        raise TaskNotFoundError(taskId=task_id)
    if record.head.state not in TERMINAL_STATES | {UNSPECIFIED}:
        raise ConcurrencyError(f"task {task_id} is {record.head.state.short}: only ended tasks can be deleted")
    await forget(connection, [storable(task_id)])
