"""How many values a protobuf message may hold, counted in its bytes: decoded, it takes many times their memory."""

from __future__ import annotations

from typing import Any

from errands.errors import InvalidParamsError
from errands.wire.bounds import check_values

#: A value takes at least so many bytes: its tag, and its length or value.
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
