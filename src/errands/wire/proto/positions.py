"""The position of an event in its task's log, which the schema has no place for.

A client that wants it asks for it with a metadata entry, and gets it as one field more at the end of each event: the
last number that protobuf allows, which readers that do not know it pass over. Nobody else ever sees it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from google.protobuf import empty_pb2
from google.protobuf.unknown_fields import UnknownFieldSet

#: The entry: `errands-event-ids: 1`.
ASKING = ("errands-event-ids", "1")

_NUMBER = 2**29 - 1
_VARINT = 0


class Position(NamedTuple):
    version: int
    #: The event stands for others that are no longer kept.
    gap: bool


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


_TAG = _varint(_NUMBER << 3 | _VARINT)


def mark(event: bytes, position: Position) -> bytes:
    """The event with its position behind it."""
    return event + _TAG + _varint(position.version << 1 | position.gap)


def position_of(event: bytes) -> Position | None:
    """What `mark` wrote, or None. Raises `DecodeError`."""
    # To an empty message every field is unknown.
    fields: Any = UnknownFieldSet(empty_pb2.Empty.FromString(event))
    for field in fields:
        if field.field_number == _NUMBER and field.wire_type == _VARINT:
            return Position(field.data >> 1, bool(field.data & 1))
    return None
