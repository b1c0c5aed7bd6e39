"""What the writer does beside changes: leases, contexts, deletion, retention.

Each function is one job: it runs in the writer's transaction and leaves committing to the writer.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from errands.engines.sqlite.changes import write_large
from errands.engines.sqlite.reading import contents
from errands.engines.sqlite.records import MAX_VERSION, VERSION_BITS, Record, read_record, read_stored
from errands.engines.sqlite.sql import QUERIES
from errands.errors import ConcurrencyError, TaskNotFoundError
from errands.model.base import encode
from errands.model.core import TERMINAL_STATES, UNSPECIFIED, TaskState
from errands.model.log import Lease, LeaseSignal, Scope, StoredTask

# The last two are numbers, unless the row is damaged.
_read_held = msgspec.json.Decoder(list[tuple[int, str, Any, Any]]).decode

#: What one job of retention removes at most: other writes wait that long.
SWEEP_TASKS = 200
SWEEP_EVENTS = 2000
#: More than fits one page of the file.
PROBE_BYTES = 8192


def claim(
    connection: sqlite3.Connection, worker: str, agents: Sequence[str], limit: int, now: int, until: int
) -> list[StoredTask]:
    due: list[Record] = []
    for agent in set(agents):
        rows = connection.execute(QUERIES["due"], (agent, now, limit)).fetchall()
        due += [read_record(row[0]) for row in rows]
    due.sort(key=lambda record: (record.head.due_at or 0, record.id))
    del due[limit:]
    if not due:
        return []
    numbers = encode([record.no for record in due]).decode()
    connection.execute(QUERIES["lease"], (worker, until, numbers))
    for record in due:
        record.head = msgspec.structs.replace(record.head, attempt=record.head.attempt + 1, worker=worker, due_at=until)
    found = contents(connection, due)
    return [read_stored(record, found[record.no]) for record in due]


def extend(connection: sqlite3.Connection, worker: str, leases: Sequence[Lease], until: int) -> list[LeaseSignal]:
    task_ids = encode([lease.task_id for lease in leases]).decode()
    held = _read_held(connection.execute(QUERIES["held"], (task_ids, worker)).fetchone()[0])
    wanted = set(leases)
    held = [row for row in held if Lease(row[1], row[2]) in wanted]
    if held:
        connection.execute(QUERIES["extend"], (until, encode([row[0] for row in held]).decode()))
    cancels = {Lease(task_id, attempt): bool(cancel) for _, task_id, attempt, cancel in held}
    return [
        LeaseSignal(lease.task_id, lost=lease not in cancels, cancel_requested=cancels.get(lease, False))
        for lease in leases
        if cancels.get(lease, True)
    ]


def delete(connection: sqlite3.Connection, task_id: str, scope: Scope) -> None:
    record = _record(connection, task_id)
    if record is None or record.scope != scope:
        raise TaskNotFoundError(taskId=task_id)
    if record.head.state not in TERMINAL_STATES | {UNSPECIFIED}:
        raise ConcurrencyError(f"task {task_id} is {record.head.state.short}: only ended tasks can be deleted")
    _forget(connection, record.no)


def probe(connection: sqlite3.Connection) -> None:
    """Writes an event that belongs to no task and removes it: fails where a small message could not be stored."""
    connection.execute(QUERIES["reserve_event"], (-1, "probe", PROBE_BYTES))
    connection.execute(QUERIES["forget_events"], (-1, 0))


def begin_sweep(connection: sqlite3.Connection, now: int, every: int) -> bool:
    """Whether retention is to be applied now; then nobody else is told so within `every` milliseconds."""
    return connection.execute(QUERIES["begin_sweep"], (now, every)).rowcount == 1


def forget_ended(connection: sqlite3.Connection, state: TaskState, before: int) -> int:
    """Deletes some tasks that ended so before a moment; 0 means that none is left."""
    found = connection.execute(QUERIES["ended_before"], (state.value, before, SWEEP_TASKS)).fetchall()
    return _forget_some(connection, found)


def forget_excess(connection: sqlite3.Connection, at_most: int) -> int:
    """Deletes some of the ended tasks that are too many; 0 means that none is left."""
    count: int = connection.execute(QUERIES["count_ended"]).fetchone()[0]
    excess = count - at_most
    if excess <= 0:
        return 0
    found = connection.execute(QUERIES["longest_ended"], {"limit": min(excess, SWEEP_TASKS)}).fetchall()
    return _forget_some(connection, found)


def forget_contexts(connection: sqlite3.Connection, before: int) -> int:
    """Deletes some contexts that have not changed since a moment; 0 means that none is left."""
    return connection.execute(QUERIES["forget_contexts"], (before, SWEEP_TASKS)).rowcount


def forget_receipts(connection: sqlite3.Connection, now: int) -> int:
    """Deletes some receipts whose window has passed; 0 means that none is left."""
    return connection.execute(QUERIES["forget_receipts"], (now, SWEEP_EVENTS)).rowcount


def _forget_some(connection: sqlite3.Connection, found: Sequence[tuple[int]]) -> int:
    """Deletes tasks, given by their numbers, until it is enough for one transaction."""
    forgotten = events = 0
    for (no,) in found:
        events += _forget(connection, no)
        forgotten += 1
        if events >= SWEEP_EVENTS:
            break
    return forgotten


def _forget(connection: sqlite3.Connection, no: int) -> int:
    """Deletes a task, and returns how long its log is. What is left of a long one is nobody's any more, and
    `clear_remains` goes on with it."""
    last = connection.execute(QUERIES["last_place"], (no << VERSION_BITS, (no + 1) << VERSION_BITS)).fetchone()[0]
    version = (last or 0) & MAX_VERSION
    connection.execute(QUERIES["forget_task"], (no,))
    _clear(connection, no, version)
    return version


def clear_remains(connection: sqlite3.Connection) -> bool:
    """Removes a piece of what a deleted task has left; false when nothing is left."""
    found = connection.execute(QUERIES["some_remains"]).fetchone()
    if found is not None:
        _clear(connection, *found)
    return found is not None


def _clear(connection: sqlite3.Connection, no: int, version: int) -> None:
    """Removes as much as one transaction may of what a deleted task has left up to a version, and notes the rest."""
    base, rest = no << VERSION_BITS, version - SWEEP_EVENTS
    connection.execute(QUERIES["forget_events"], (base + max(rest + 1, 0), base + version + 1))
    if rest >= 0:
        connection.execute(QUERIES["leave"], (no, rest))
    else:
        connection.execute(QUERIES["forget_remains"], (no,))


def trim(connection: sqlite3.Connection, task_id: str, keep: int) -> bool:
    """Cuts a piece off the beginning of a log; false when it is short enough, or cannot be read.

    What is cut off lives on in the snapshot, so that is brought up to date first.
    """
    record = _record(connection, task_id)
    if record is None or record.head.version - record.trimmed <= keep:
        return False
    upto = min(record.head.version - keep, record.trimmed + SWEEP_EVENTS)
    if record.folded < upto:
        stored = read_stored(record, contents(connection, [record])[record.no])
        if stored.damage:
            return False
        write_large(connection, record.base, "snapshot", encode(stored.task))
        record.folded = record.head.version
    connection.execute(QUERIES["trim_events"], (record.base + record.trimmed + 1, record.base + upto + 1))
    connection.execute(QUERIES["trim"], (upto, record.folded, record.no))
    return True


def _record(connection: sqlite3.Connection, task_id: str) -> Record | None:
    row = connection.execute(QUERIES["record"], (task_id,)).fetchone()
    return None if row is None else read_record(row[0])
