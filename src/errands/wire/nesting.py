"""How deep a body may be nested: what is read here must be readable wherever it is read again."""

from __future__ import annotations

import re

from errands.errors import InvalidRequestError

#: Levels of arrays and objects inside each other.
MAX_DEPTH = 100

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def check_depth(body: bytes) -> None:
    """Raises `InvalidRequestError` when the JSON in `body` is nested too deeply."""
    brackets = _STRING.sub(b"", body).translate(None, _NOT_BRACKETS)
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    if brackets.count(b"[") + brackets.count(b"{"):
        raise InvalidRequestError(f"The request is nested too deeply: {MAX_DEPTH} levels are possible")
