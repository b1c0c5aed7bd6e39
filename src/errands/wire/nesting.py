"""How deep a body may be nested: what is read here must be readable wherever it is read again."""

from __future__ import annotations

from itertools import accumulate

from errands.errors import InvalidRequestError

#: Levels of arrays and objects inside each other.
MAX_DEPTH = 100

_NOT_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"'))
#: From brackets to what they do to the depth, as signed bytes.
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")


def check_depth(body: bytes) -> None:
    """Raises `InvalidRequestError` when the JSON in `body` is nested too deeply.

    It takes time in proportion to the body and no more, whatever a stranger has put into it.
    """
    if body.count(b"{") + body.count(b"[") <= MAX_DEPTH:
        return  # nearly always
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    structure = unescaped.translate(None, _NOT_STRUCTURE)
    outside_of_strings = b"".join(structure.split(b'"')[::2])
    if max(accumulate(memoryview(outside_of_strings.translate(_STEPS)).cast("b")), default=0) > MAX_DEPTH:
        raise InvalidRequestError(f"The request is nested too deeply: {MAX_DEPTH} levels are possible")
