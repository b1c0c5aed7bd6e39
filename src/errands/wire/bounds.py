"""Limits on the levels, values and parts of a request, checked before it is decoded."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import msgspec

from errands.errors import InvalidRequestError, PayloadTooLargeError
from errands.model.base import UNREADABLE

#: Levels of arrays and objects inside each other. What is accepted must be readable wherever it is read again.
MAX_DEPTH = 100

#: Bytes that are looked at together, so that a body with too many values is refused early.
_PIECE = 64 * 1024
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'[]{}",'))
#: Maps brackets to their change of the depth, as signed bytes.
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")


def check_json(body: bytes, max_values: int) -> None:
    """Raise `InvalidRequestError` if the JSON in `body` is nested too deeply or holds more than `max_values` values.

    Every member of an object and every item of an array counts as one value. The time is linear in the size of the
    body, whatever it contains; the check ends at the first piece that exceeds a limit.
    """
    # A body with few brackets and commas, strings included, cannot exceed a limit. That is nearly every one.
    opened = commas = 0
    for start in range(0, len(body), _PIECE):
        end = start + _PIECE
        opened += body.count(b"{", start, end) + body.count(b"[", start, end)
        commas += body.count(b",", start, end)
        if opened > MAX_DEPTH or opened + commas > max_values:
            break
    else:
        return
    values = 0
    for outside, depth in _pieces(body, max_values):
        values += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        check_values(values, max_values)
        if depth > MAX_DEPTH:
            raise InvalidRequestError(f"The request is nested too deeply: at most {MAX_DEPTH} levels are allowed")


def is_too_deep(body: bytes, levels: int) -> bool:
    """Return whether the JSON in `body` has more than `levels` levels. The time is linear in its size."""
    if body.count(b"{") + body.count(b"[") <= levels:
        return False  # nearly always
    return any(depth > levels for _, depth in _pieces(body, len(body)))


def _pieces(body: bytes, max_values: int) -> Iterator[tuple[bytes, int]]:
    """Yield the brackets and commas outside of strings, piece by piece, and the deepest level of each piece.

    Ends where more brackets are closed than were opened: that is not JSON, and the decoder will say so.
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


class _Message(msgspec.Struct, frozen=True):
    """A message of any dialect; in the 0.3 of the official SDKs its parts are its `content`."""

    parts: list[msgspec.Raw] = []
    content: list[msgspec.Raw] = []


class _Params(msgspec.Struct, frozen=True):
    message: _Message = _Message()


_read_outline = msgspec.json.Decoder(_Params).decode


def check_outline(params: bytes, max_parts: int) -> None:
    """Raise `PayloadTooLargeError` if the message to send has too many parts, at a fraction of decoding them."""
    try:
        message = _read_outline(params).message
    except UNREADABLE:
        return  # the dialect will say what is wrong with it
    check_parts(max(len(message.parts), len(message.content)), max_parts)


def check_values(count: int, most: int) -> None:
    """Raise `PayloadTooLargeError` if a request has more than `most` JSON values."""
    if count > most:
        raise PayloadTooLargeError(
            f"The request holds more than {most} JSON values; send fewer, or large data as a file (max_message_values)"
        )


def check_parts(count: int, most: int) -> None:
    """Raise `PayloadTooLargeError` if a message has more than `most` parts."""
    if count > most:
        raise PayloadTooLargeError(
            f"The message has {count} parts, and at most {most} are allowed; send several messages (max_message_parts)"
        )
