"""How much one request may hold: levels of JSON, values and parts. Checked before a request is decoded."""

from __future__ import annotations

from itertools import accumulate

from errands.errors import InvalidRequestError, PayloadTooLargeError

#: Levels of arrays and objects inside each other: what is read here must be readable wherever it is read again.
MAX_DEPTH = 100

_NOT_STRUCTURE = bytes(set(range(256)) - set(b'[]{}",'))
#: From brackets to what they do to the depth, as signed bytes.
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")


def check_json(body: bytes, max_values: int) -> None:
    """Raise `InvalidRequestError` if the JSON in `body` is nested too deeply or holds more than `max_values` values.

    Every member of an object and every item of an array counts as one value. The time is linear in the size of the
    body, whatever it contains.
    """
    opened = body.count(b"{") + body.count(b"[")
    if opened <= MAX_DEPTH and opened + body.count(b",") <= max_values:
        return  # nearly always
    structure = _structure(body)
    # A value is at most two strings, a member's name and itself: stop before taking them apart costs more than that.
    if structure.count(b'"') > 4 * (max_values + 1):
        check_values(max_values + 1, max_values)
    structure = _without_strings(structure)
    check_values(structure.count(b",") + structure.count(b"[") + structure.count(b"{"), max_values)
    if _depth(structure) > MAX_DEPTH:
        raise InvalidRequestError(f"The request is nested too deeply: {MAX_DEPTH} levels are possible")


def is_too_deep(body: bytes, levels: int) -> bool:
    """Return whether the JSON in `body` has more levels than that. The time is linear in its size."""
    if body.count(b"{") + body.count(b"[") <= levels:
        return False  # nearly always
    return _depth(_without_strings(_structure(body))) > levels


def _structure(body: bytes) -> bytes:
    """Return the brackets, commas and quotes of `body`, those inside of strings included."""
    return body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NOT_STRUCTURE)


def _without_strings(structure: bytes) -> bytes:
    return b"".join(structure.split(b'"')[::2])


def _depth(structure: bytes) -> int:
    return max(accumulate(memoryview(structure.translate(_STEPS, b",")).cast("b")), default=0)


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
