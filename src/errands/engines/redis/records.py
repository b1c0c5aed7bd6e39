"""A task's hash as structs: where it stands, and how the fields that are compared are spelled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from errands.engines.stored import salvaged_head, stored_task
from errands.model.base import UNREADABLE, encode
from errands.model.log import Event, Head, Scope, StoredTask

#: Bytes on their way: as MessagePack's text, which Lua takes for any bytes. It does not know the type for bytes.
Blob = msgspec.Raw

Fields = list[str | Blob]

#: What a commit is judged against and compared with, in the order of `stand_of` in `lua/1_keys.lua`.
FIELDS = ("record", "attempt", "worker", "due_at")
#: The same for a task that does not exist.
ABSENT: Fields = ["", "", "", ""]
#: Of a task whose record cannot be read at all: no agent has this name. The listings still know whose it is.
LOST = Scope()


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


def read_record(fields: Sequence[bytes]) -> Record | None:
    """Return where a task stands; without a state when that cannot be read."""
    if not fields or not fields[0]:
        return None
    try:
        record = _read_record(fields[0])
        record.head.attempt = int(fields[1] or 0)
        record.head.worker = fields[2].decode()
        record.head.due_at = int(fields[3]) if fields[3] else None
    except UNREADABLE:
        return _salvaged(fields)
    return record


def _salvaged(fields: Sequence[bytes]) -> Record:
    try:
        found = msgspec.json.decode(fields[0], type=dict[str, Any])
        scope, context_id = msgspec.convert((found["scope"], found["context_id"]), tuple[Scope, str])
    except (KeyError, *UNREADABLE):
        found, scope, context_id = {}, LOST, ""
    names = (field.decode(errors="replace") for field in fields[1:4])
    lease = dict(zip(("attempt", "worker", "due_at"), names, strict=True))
    return Record(scope, context_id, 0, salvaged_head({**_as_dict(found.get("head")), **lease}))


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def read_trimmed(field: bytes) -> Record:
    """The record alone, when its lease does not matter."""
    record = read_record((field, b"", b"", b""))
    assert record is not None
    return record


def read_stand(fields: Sequence[bytes]) -> Stand:
    return Stand(read_record(fields), list(map(_comparable, fields)))


def _comparable(field: bytes) -> str | Blob:
    try:
        return field.decode()
    except UnicodeDecodeError:
        return blob(field)


def blob(data: bytes) -> Blob:
    return Blob(b"\xdb" + len(data).to_bytes(4, "big") + data)


def read_events(entries: Sequence[Any]) -> list[Event]:
    """The entries of a stream as events."""
    return [Event(int(entry[0][:-2]), entry[1][0].decode(errors="replace"), entry[1][1]) for entry in entries]


def read_stored(task_id: str, record: Record, loaded: Sequence[Any]) -> StoredTask:
    """A task as the job `load` answers it."""
    content = read_events(loaded[5])
    if loaded[4]:
        content.insert(0, Event(0, "task", loaded[4]))
    return stored_task(task_id, record.context_id, record.scope, record.head, content)
