"""JSON values and times as protobuf has them.

Its numbers are doubles. One without a fraction is read back as an int as far as doubles count exactly, up to 2**53;
a larger int arrives as the nearest double. That is the protocol's loss, not ours, and the docs say so. Readers of
protobuf follow a message for a hundred levels, of which a level of JSON takes three.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from google.protobuf import struct_pb2, timestamp_pb2

from errands.clock import from_iso, to_iso
from errands.model.base import Model, encode
from errands.wire.bounds import is_too_deep

Struct = struct_pb2.Struct
Timestamp = timestamp_pb2.Timestamp

#: Beyond this not every int has a double of its own.
MAX_EXACT = 2**53
#: Levels of JSON that are left for it inside of a task.
MAX_DEPTH = 30
_MS_ISO_LENGTH = len("2026-01-31T12:00:00.000Z")
_NANOS_PER_MS = 1_000_000


#: Levels of a request around its values.
_LEVELS_AROUND = 4


class TooDeepError(ValueError):
    """A request that no reader of protobuf could follow."""

    def __init__(self) -> None:
        super().__init__(f"JSON nested more than {MAX_DEPTH} levels deep cannot be sent over gRPC; use HTTP for it")


def check_levels(request: Model) -> None:
    """Raise `TooDeepError` for a request whose values are nested too deeply to arrive as they are."""
    if is_too_deep(encode(request), MAX_DEPTH + _LEVELS_AROUND):
        raise TooDeepError


def write_struct(values: dict[str, Any] | None) -> Any:
    """Return the object as a Struct; None stays None, which protobuf's constructors take as absent."""
    if values is None:
        return None
    struct = Struct()
    fill_struct(struct, values)
    return struct


def fill_struct(struct: Any, values: dict[str, Any], depth: int = 1) -> None:
    """Sets a Struct in place; an empty one is there as well."""
    struct.SetInParent()
    fields = struct.fields
    for key, value in values.items():
        fill_value(fields[key], value, depth)


def fill_value(target: Any, value: Any, depth: int = 0) -> None:
    """Set a Value in place: nested messages are built where they belong and never copied.

    What is nested deeper than `MAX_DEPTH` is written as JSON text, so that it does not make a whole listing unreadable.
    """
    if isinstance(value, str):
        target.string_value = value
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, int | float):
        _fill_number(target, value)
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


def _fill_number(target: Any, value: float) -> None:
    try:
        target.number_value = float(value)
    except OverflowError:
        # More than 300 digits: a string keeps them all, and nothing else could.
        target.string_value = str(value)


def read_struct(struct: Any) -> dict[str, Any]:
    """Raises ValueError for a number that JSON does not have."""
    return {key: read_value(value) for key, value in struct.fields.items()}


def read_value(value: Any) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        return value.string_value
    if kind == "number_value":
        return _read_number(value.number_value)
    if kind == "bool_value":
        return value.bool_value
    if kind == "struct_value":
        return read_struct(value.struct_value)
    if kind == "list_value":
        return [read_value(item) for item in value.list_value.values]
    return None


def _read_number(number: float) -> int | float:
    if not math.isfinite(number):
        raise ValueError(f"{number} is no JSON number")
    return int(number) if number.is_integer() and abs(number) <= MAX_EXACT else number


# The events of one moment have the same time; whoever takes a Timestamp copies it.
@lru_cache(maxsize=64)
def write_time(text: str | None) -> Any:
    """The time as a Timestamp, or None when there is none or it cannot be read."""
    if not text:
        return None
    timestamp = Timestamp()
    try:
        if len(text) == _MS_ISO_LENGTH:
            timestamp.seconds, ms = divmod(from_iso(text), 1000)
            timestamp.nanos = ms * _NANOS_PER_MS
        else:
            # Another agent's time may have nanoseconds, or a zone of its own.
            timestamp.FromJsonString(text)
    except (ValueError, OverflowError):
        return None
    return timestamp


def read_time(timestamp: Any) -> str:
    """Raises ValueError for a time outside of the years 1 to 9999."""
    ms, rest = divmod(timestamp.nanos, _NANOS_PER_MS)
    if rest or not 0 <= timestamp.seconds < 253_402_300_800:
        text: str = timestamp.ToJsonString()
        return text
    return to_iso(timestamp.seconds * 1000 + ms)
