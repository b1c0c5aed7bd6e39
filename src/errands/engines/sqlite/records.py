"""Rows of the database as structs: a task's row, and its place among the logs."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

import msgspec

from errands import lifecycle
from errands.model.core import Task
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

    @property
    def scope(self) -> Scope:
        return Scope(self.tenant, self.owner, self.agent)

    @property
    def base(self) -> int:
        """Where the task's log begins in `events`."""
        return self.no << VERSION_BITS


# Not strict: SQLite has no booleans, 0 and 1 stand for them.
read_record = msgspec.json.Decoder(Record, strict=False).decode
read_records = msgspec.json.Decoder(list[Record], strict=False).decode
_read_task = msgspec.json.Decoder(Task).decode
_read_labels = msgspec.json.Decoder(list[tuple[int, str, int]]).decode

#: A row of the fragment `packed`: several events at once.
Pack = tuple[int, str, bytes]


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


def stored_task(record: Record, content: Iterable[Pack]) -> StoredTask:
    return StoredTask(task=folded_task(content), head=record.head, scope=record.scope)


def folded_task(content: Iterable[Pack]) -> Task:
    """A task from its snapshot, if there is one, and the tail of its log."""
    events = unpack(content)
    if not events or events[0].version:
        return lifecycle.fold(None, events)
    snapshot, *tail = events
    task = _read_task(snapshot.data)
    return lifecycle.fold(task, tail) if tail else task
