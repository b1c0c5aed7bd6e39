"""JSON values and times as protobuf has them, and how many of them a message may hold.

Its numbers are doubles. One without a fraction is read back as an int as far as doubles count exactly, up to 2**53;
a larger int arrives as the nearest double. That is a limit of the protocol, and the docs say so. Readers of protobuf
follow a message for a hundred levels, of which a level of JSON takes three.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from google.protobuf import struct_pb2, timestamp_pb2

from errands.clock import from_iso, to_iso
from errands.errors import InvalidParamsError
from errands.model.base import A2AObject, encode
from errands.wire.bounds import check_values, is_too_deep

#: Beyond this not every int has a double of its own.
MAX_EXACT = 2**53
#: Levels of JSON that are left for it inside of a task.
MAX_DEPTH = 30
#: Levels of a request around its values.
_LEVELS_AROUND = 4
_MS_ISO_LENGTH = len("2026-01-31T12:00:00.000Z")
_NANOS_PER_MS = 1_000_000
_YEAR_10000 = 253_402_300_800


class TooDeepError(ValueError):
    """A request that no reader of protobuf could follow."""

    def __init__(self) -> None:
        super().__init__(f"JSON nested more than {MAX_DEPTH} levels deep cannot be sent over gRPC; use HTTP for it")


def check_levels(request: A2AObject) -> None:
    """Raise `TooDeepError` for a request whose values are nested too deeply to arrive as they are."""
    if is_too_deep(encode(request), MAX_DEPTH + _LEVELS_AROUND):
        raise TooDeepError


def fill_struct(struct: Any, values: dict[str, Any], depth: int = 1) -> None:
    """Fill a Struct with an object. An empty one is present, too."""
    struct.SetInParent()
    fields = struct.fields
    for key, value in values.items():
        fill_value(fields[key], value, depth)


def fill_value(target: Any, value: Any, depth: int = 0) -> None:
    """Fill a Value. Nested messages are filled in place and never copied.

    What is nested deeper than `MAX_DEPTH` is written as JSON text, so that it does not make a whole listing unreadable.
    """
    if isinstance(value, str):
        target.string_value = value
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, int | float):
        try:
            target.number_value = float(value)
        except OverflowError:
            # More than 300 digits: only a string can keep them.
            target.string_value = str(value)
    elif value is None:
        target.null_value = struct_pb2.NULL_VALUE
    elif depth >= MAX_DEPTH:
        target.string_value = encode(value).decode()
    elif isinstance(value, dict):
        fill_struct(target.struct_value, value, depth + 1)
    else:
        target.list_value.SetInParent()
        values = target.list_value.values
        for item in value:
            fill_value(values.add(), item, depth + 1)


def read_struct(struct: Any) -> dict[str, Any]:
    """Return the object in a Struct. Raises ValueError for a number that JSON does not have."""
    return {key: read_value(value) for key, value in struct.fields.items()}


def read_value(value: Any) -> Any:
    """Return the JSON value in a Value. Raises ValueError as `read_struct` does."""
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        return value.string_value
    if kind == "number_value":
        number = value.number_value
        if not math.isfinite(number):
            raise ValueError(f"{number} is not a JSON number")
        return int(number) if number.is_integer() and abs(number) <= MAX_EXACT else number
    if kind == "bool_value":
        return value.bool_value
    if kind == "struct_value":
        return read_struct(value.struct_value)
    if kind == "list_value":
        return [read_value(item) for item in value.list_value.values]
    return None


def fill_time(target: Any, text: str) -> None:
    """Fill a Timestamp. A text that is not a time is left out."""
    if (timestamp := write_time(text)) is not None:
        target.CopyFrom(timestamp)


# The events of one moment have the same time.
@lru_cache(maxsize=64)
def write_time(text: str) -> Any:
    """Return the time as a Timestamp, or None when the text cannot be read as one."""
    timestamp = timestamp_pb2.Timestamp()
    try:
        if len(text) == _MS_ISO_LENGTH:
            timestamp.seconds, ms = divmod(from_iso(text), 1000)
            timestamp.nanos = ms * _NANOS_PER_MS
        else:
            # The time of another agent may have nanoseconds, or a zone of its own.
            timestamp.FromJsonString(text)
    except (ValueError, OverflowError):
        return None
    return timestamp


def read_time(timestamp: Any) -> str:
    """Return the time in ISO 8601. Raises ValueError for one outside of the years 1 to 9999."""
    ms, rest = divmod(timestamp.nanos, _NANOS_PER_MS)
    if rest or not 0 <= timestamp.seconds < _YEAR_10000:
        text: str = timestamp.ToJsonString()
        return text
    return to_iso(timestamp.seconds * 1000 + ms)


# Counting values in the bytes of a message: decoded, it takes many times their memory

#: The fewest bytes that a value takes: its tag, and its length or value.
BYTES_PER_VALUE = 2
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


class _Shape:
    """The messages inside a message, by the numbers of their fields."""

    _known: dict[str, _Shape] = {}

    def __init__(self, descriptor: Any) -> None:
        self._known[descriptor.full_name] = self
        #: Fields that are not values by themselves: the two of a map's entry, the one of a `Value`.
        self.free = 2 if descriptor.GetOptions().map_entry else int(descriptor.full_name == "google.protobuf.Value")
        self.inner = {
            field.number: self.of(field.message_type) for field in descriptor.fields if field.message_type is not None
        }

    @classmethod
    def of(cls, descriptor: Any) -> _Shape:
        return cls._known.get(descriptor.full_name) or cls(descriptor)


def check_message(descriptor: Any, raw: bytes, max_values: int) -> None:
    """Raise `PayloadTooLargeError` if the message in `raw` holds more than `max_values` values.

    Values are counted as in its JSON form: fields of messages, members of objects and items of arrays. Raises
    `InvalidParamsError` for bytes that are not a message.
    """
    count = 0
    waiting = [(_Shape.of(descriptor), 0, len(raw))]
    try:
        while waiting:
            shape, at, end = waiting.pop()
            free = shape.free
            while at < end:
                tag, at = raw[at], at + 1
                if tag > 0x7F:
                    tag, at = _varint(raw, at - 1)
                if free:
                    free -= 1
                else:
                    count += 1
                    if count > max_values:
                        check_values(count, max_values)
                kind = tag & 7
                if kind == _LENGTH:
                    size, at = raw[at], at + 1
                    if size > 0x7F:
                        size, at = _varint(raw, at - 1)
                    if (inner := shape.inner.get(tag >> 3)) is not None:
                        waiting.append((inner, at, at + size))
                    at += size
                elif kind == _VARINT:
                    _, at = _varint(raw, at)
                elif kind in (_FIXED32, _FIXED64):
                    at += 4 if kind == _FIXED32 else 8
                else:  # groups, which no version of the protocol has
                    raise IndexError
            if at > end:
                raise IndexError
    except IndexError:
        raise InvalidParamsError(f"The request is not a valid {descriptor.full_name}") from None


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at `at`, and where it ends. Raises IndexError if it does not."""
    number = 0
    for index, byte in enumerate(raw[at : at + 10]):
        number |= (byte & 0x7F) << (7 * index)
        if byte <= 0x7F:
            return number, at + index + 1
    raise IndexError
