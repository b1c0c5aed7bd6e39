"""Rows of the database as structs: a task's row, and its place among the logs."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import msgspec

from errands.engines.stored import salvaged_head, stored_task
from errands.model.log import Event, Head, Scope, StoredTask

#: How many bits of `events.place` are the version; the rest is the task's number.
VERSION_BITS = 28
MAX_VERSION = (1 << VERSION_BITS) - 1
#: The same for `pack`, which names a run of 64 places.
PACK_BITS = VERSION_BITS - 6

_version = attrgetter("version")


class Record(msgspec.Struct, array_like=True, gc=False):
    """A row of `tasks`, in the order of the fragment `record`."""

    no: int
    id: str
    tenant: str
    owner: str
    agent: str
    context_id: str
    folded: int
    trimmed: int
    head: Head

    def __post_init__(self) -> None:
        # Retention goes by these numbers, step by step.
        if not (0 <= self.trimmed <= self.head.version <= MAX_VERSION and 0 <= self.folded <= self.head.version):
            raise ValueError("these versions cannot be right")

    @property
    def scope(self) -> Scope:
        return Scope(self.tenant, self.owner, self.agent)

    @property
    def base(self) -> int:
        """Where the task's log begins in `events`."""
        return self.no << VERSION_BITS


# Not strict: SQLite has no booleans, 0 and 1 stand for them.
_read_record = msgspec.json.Decoder(Record, strict=False).decode
_read_records = msgspec.json.Decoder(list[Record], strict=False).decode
_read_labels = msgspec.json.Decoder(list[tuple[int, str, int]]).decode

#: A row of the fragment `packed`: several events at once.
Pack = tuple[int, str, bytes]


def read_record(row: str) -> Record:
    """Return the row as a struct; without a state when it cannot be read."""
    try:
        return _read_record(row)
    except msgspec.MsgspecError:
        return _salvaged(msgspec.json.decode(row))


def read_records(rows: str) -> list[Record]:
    try:
        return _read_records(rows)
    except msgspec.MsgspecError:
        return [_salvaged(row) for row in msgspec.json.decode(rows)]


def _salvaged(row: list[Any]) -> Record:
    """Return what can be read of a row whose columns hold what they should not."""
    no, task_id, tenant, owner, agent, context_id, *_, columns = row
    head = salvaged_head(columns)
    if not 0 <= head.version <= MAX_VERSION:
        head.version = 0
    return Record(no, task_id, tenant, owner, agent, context_id, 0, 0, head)


def unpack(packs: Iterable[Pack]) -> list[Event]:
    """The events of packed rows in the order of their places; a snapshot, of version 0, comes first."""
    events: list[Event] = []
    for _, labels, data in packs:
        end = 0
        for place, kind, length in _read_labels(labels):
            start, end = end, end + length
            events.append(Event(place & MAX_VERSION, kind, data[start:end]))  # type: ignore[arg-type]
    events.sort(key=_version)
    return events


def read_stored(record: Record, content: Iterable[Pack]) -> StoredTask:
    return stored_task(record.id, record.context_id, record.scope, record.head, unpack(content))
