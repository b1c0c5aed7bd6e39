"""A task's hash as structs: where it stands, and how the fields that are compared are spelled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from errands import lifecycle
from errands.model.base import encode
from errands.model.core import Task
from errands.model.log import Event, Head, Scope, StoredTask

#: What a commit is judged against and compared with, in the order of `stand_of` in `lua/1_keys.lua`.
FIELDS = ("record", "attempt", "worker", "due_at")
#: The same for a task that does not exist.
ABSENT = ["", "", "", ""]

Fields = list[str]


class Record(msgspec.Struct, gc=False):
    """Where a task stands. Its head's lease is stored in fields of its own, the rest as JSON in `record`."""

    scope: Scope
    context_id: str
    #: The events up to this version are no longer kept.
    trimmed: int
    head: Head

    def fields(self) -> Fields:
        head = self.head
        bare = Record(
            self.scope, self.context_id, self.trimmed, msgspec.structs.replace(head, attempt=0, worker="", due_at=None)
        )
        due_at = "" if head.due_at is None else str(head.due_at)
        return [encode(bare).decode(), str(head.attempt), head.worker, due_at]


class Stand(msgspec.Struct, frozen=True, gc=False):
    """A record, None for a task that does not exist, together with its fields as they are compared."""

    record: Record | None
    fields: Fields


NOWHERE = Stand(None, ABSENT)

_read_record = msgspec.json.Decoder(Record).decode
_read_task = msgspec.json.Decoder(Task).decode


def read_record(fields: Sequence[bytes]) -> Record | None:
    if not fields or not fields[0]:
        return None
    record = _read_record(fields[0])
    record.head.attempt = int(fields[1] or 0)
    record.head.worker = fields[2].decode()
    record.head.due_at = int(fields[3]) if fields[3] else None
    return record


def read_trimmed(field: bytes) -> Record:
    """The record alone, when its lease does not matter."""
    return _read_record(field)


def read_stand(fields: Sequence[bytes]) -> Stand:
    return Stand(read_record(fields), [field.decode() for field in fields])


def read_events(entries: Sequence[Any]) -> list[Event]:
    """The entries of a stream as events."""
    return [Event(int(entry[0][:-2]), entry[1][0].decode(), entry[1][1]) for entry in entries]


def stored_task(loaded: Sequence[Any]) -> StoredTask | None:
    """A task as the job `load` answers it."""
    record = read_record(loaded)
    if record is None:
        return None
    snapshot = _read_task(loaded[4]) if loaded[4] else None
    tail = read_events(loaded[5])
    task = snapshot if snapshot is not None and not tail else lifecycle.fold(snapshot, tail)
    return StoredTask(task=task, head=record.head, scope=record.scope)
