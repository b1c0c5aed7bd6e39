"""Rows of the database as structs, and texts as PostgreSQL can hold them."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import msgspec

from errands.engines.stored import stored_task
from errands.model.core import UNSPECIFIED, TaskState
from errands.model.log import Event, Head, Scope, StoredTask

#: What an integer column holds; a log has no more events.
MAX_VERSION = 2**31 - 1

#: PostgreSQL's texts hold every character but NUL; it is written as this one and a digit.
_ESCAPE = "\x1a"

#: asyncpg's record.
Row = Any

#: By their names; another release may know more.
_STATES = {state.value: state for state in TaskState}


def storable(text: str) -> str:
    """The text as it is stored; what `readable` gets."""
    if "\0" in text or _ESCAPE in text:
        return text.replace(_ESCAPE, _ESCAPE + "1").replace("\0", _ESCAPE + "0")
    return text


def readable(text: str) -> str:
    if _ESCAPE in text:
        return text.replace(_ESCAPE + "0", "\0").replace(_ESCAPE + "1", _ESCAPE)
    return text


def is_text(text: str) -> bool:
    """Whether it can be stored at all: half a surrogate pair cannot."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


class Record(msgspec.Struct, gc=False):
    """A row of `tasks`, in the order of the fragment `record`."""

    id: str
    no: int
    scope: Scope
    context_id: str
    folded: int
    trimmed: int
    watcher: str
    head: Head


def read_record(row: Row) -> Record:
    return Record(
        readable(row[0]),
        row[1],
        Scope(readable(row[2]), readable(row[3]), readable(row[4])),
        readable(row[5]),
        row[6],
        row[7],
        row[8],
        Head(
            version=row[9],
            state=_STATES.get(row[10], UNSPECIFIED),
            attempt=row[11],
            attempt_base=row[12],
            worker=readable(row[13]),
            due_at=row[14],
            unread=row[15],
            cancel_requested=row[16],
            direct=row[17],
            created_at=row[18],
            updated_at=row[19],
            status_at=row[20],
            asks=readable(row[21]),
            given_back=row[22],
        ),
    )


def read_events(row: Row) -> list[Event]:
    """The arrays at the end of a row, after its record; a snapshot, of version 0, comes first."""
    versions = row[23]
    return [] if versions is None else list(map(Event, versions, row[24], row[25]))


def read_stored(row: Row) -> StoredTask:
    record = read_record(row)
    return stored_task(record.id, record.context_id, record.scope, record.head, read_events(row))


@lru_cache(maxsize=4096)
def scope_key(scope: Scope) -> int:
    """The scope as one number, for indexes."""
    return int.from_bytes(_digest(scope, 8), "big", signed=True)


def receipt_key(scope: Scope, receipt: bytes) -> bytes:
    """The scope and the digest of a message as one."""
    return _digest(scope, 16, receipt)


def _digest(scope: Scope, size: int, more: bytes = b"") -> bytes:
    # The lengths keep apart what would read the same when put together.
    head = f"{len(scope.tenant)},{len(scope.owner)},{len(scope.agent)}:{scope.tenant}{scope.owner}{scope.agent}"
    return hashlib.blake2b(head.encode("utf-8", "surrogatepass") + b"\0" + more, digest_size=size).digest()
