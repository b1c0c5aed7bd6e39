"""How much one request may hold: levels of JSON, values and parts. Checked before a request is decoded."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from errands.errors import InvalidRequestError, PayloadTooLargeError

#: Levels of arrays and objects inside each other: what is read here must be readable wherever it is read again.
MAX_DEPTH = 100

#: Bytes that are looked at together: what has too many values is refused after a few of them.
_PIECE = 64 * 1024
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'[]{}",'))
#: From brackets to what they do to the depth, as signed bytes.
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")


def check_json(body: bytes, max_values: int) -> None:
    """Raise `InvalidRequestError` if the JSON in `body` is nested too deeply or holds more than `max_values` values.

    Every member of an object and every item of an array counts as one value. The time is linear in the size of the
    body, whatever it contains, and ends with the first piece that has too much.
    """
    if _has_little_structure(body, max_values):
        return  # nearly always
    values = 0
    for outside, depth in _pieces(body, max_values):
        values += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        check_values(values, max_values)
        if depth > MAX_DEPTH:
            raise InvalidRequestError(f"The request is nested too deeply: {MAX_DEPTH} levels are possible")


def _has_little_structure(body: bytes, max_values: int) -> bool:
    """Return whether there are not even enough brackets and commas, those inside of strings included."""
    opened = commas = 0
    for start in range(0, len(body), _PIECE):
        end = start + _PIECE
        opened += body.count(b"{", start, end) + body.count(b"[", start, end)
        commas += body.count(b",", start, end)
        if opened > MAX_DEPTH or opened + commas > max_values:
            return False
    return True


def is_too_deep(body: bytes, levels: int) -> bool:
    """Return whether the JSON in `body` has more levels than that. The time is linear in its size."""
    if body.count(b"{") + body.count(b"[") <= levels:
        return False  # nearly always
    return any(depth > levels for _, depth in _pieces(body, len(body)))


def _pieces(body: bytes, max_values: int) -> Iterator[tuple[bytes, int]]:
    """Yield the brackets and commas outside of strings, piece by piece, and the deepest level of each piece.

    Ends where more is closed than was opened: that is not JSON, and its decoder says so.
    """
    level = quotes = 0
    is_in_string = False
    escape = b""
    for start in range(0, len(body), _PIECE):
        piece = (escape + body[start : start + _PIECE]).replace(b"\\\\", b"")
        escape = b"\\" if piece.endswith(b"\\") else b""
        texts = piece.replace(b'\\"', b"").translate(None, _NOT_STRUCTURE).split(b'"')
        outside = b"".join(texts[is_in_string::2])
        is_in_string ^= len(texts) % 2 == 0
        # A value is at most two strings, a member's name and itself. More quotes cannot be JSON.
        quotes += len(texts) - 1
        check_values(quotes // 4, max_values)
        levels = list(accumulate(memoryview(outside.translate(_STEPS, b",")).cast("b"), initial=level))
        if min(levels) < 0:
            return
        level = levels[-1]
        yield outside, max(levels)


def check_values(count: int, most: int) -> None:
    """Raise `PayloadTooLargeError` if a request with `count` JSON values may only have `most`."""
    if count > most:
        raise PayloadTooLargeError(
            f"The request holds more than {most} JSON values; send fewer, or large data as a file (max_message_values)"
        )


def check_parts(count: int, most: int) -> None:
    """Raise `PayloadTooLargeError` if a message with `count` parts may only have `most`."""
    if count > most:
        raise PayloadTooLargeError(
            f"The message has {count} parts and may have {most}; send several messages (max_message_parts)"
        )
