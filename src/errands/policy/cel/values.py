"""Values on their way into an expression and out of it: plain JSON on both sides."""

from __future__ import annotations

import base64
import datetime
import math
from typing import Any

import msgspec

#: Plain JSON: dict, list, str, int, float, bool or None.
Json = Any

#: The levels of nesting that expressions can see.
MAX_LEVELS = 64
_CONTAINERS = frozenset({dict, list, tuple})
_INT64 = range(-(2**63), 2**63)
#: The values and characters of a result; a larger one is refused before it is built.
_MAX_VALUES = 100_000
_MAX_CHARACTERS = 10_000_000
#: The number of values in lists and maps that expressions can see.
MOST_SEEN = 200_000
#: What a value has that expressions cannot see as it is.
TOO_MUCH = f"more than {MOST_SEEN:,} values or {MAX_LEVELS} levels at once"


class ValueTooLarge(ValueError):
    """A result is too large."""


def normalise(value: Any, depth: int = MAX_LEVELS, left: list[int] | None = None) -> Json:
    """Return a value as plain JSON that the language can hold. Raises ValueError if it has no JSON form.

    Integers beyond 64 bits become floats, lone surrogates `?`, structs and dates their JSON form, and what is nested
    deeper than 64 levels becomes JSON text. Characters NUL become U+FFFD: the engine would end a text there, and
    `"admin\\0x"` would pass for `"admin"`. `left` counts the values that may still be seen, see `as_seen`.
    """
    if value is None or value is True or value is False or type(value) is float:
        return value
    if type(value) is str:
        return _text(value)
    if type(value) is int:
        if value in _INT64:
            return value
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if depth == 0:
        return _as_text(value)
    if type(value) in _CONTAINERS:
        if left is not None:
            left[0] -= len(value)
            if left[0] < 0:
                return _as_text(value)
        if type(value) is dict:
            return {_text(_key(key)): normalise(item, depth - 1, left) for key, item in value.items()}
        return [normalise(item, depth - 1, left) for item in value]
    try:
        return normalise(msgspec.to_builtins(value, str_keys=True), depth - 1)
    except TypeError as error:
        raise ValueError(f"not a JSON value: {error}") from None


def as_seen(value: Any) -> Json:
    """Return the value as expressions see it: lists and maps beyond the first 200,000 values are JSON text.

    Converting millions of values would take seconds. An expression that expects a list finds a text and fails.
    """
    return normalise(value, left=[MOST_SEEN])


def is_cut(value: Any) -> bool:
    """Return whether a value has `TOO_MUCH` to be seen as it is, so that comparing it would give a wrong result."""
    found, level = 0, [value] if type(value) in _CONTAINERS else []
    for _ in range(MAX_LEVELS):
        found += sum(map(len, level))
        if not level or found > MOST_SEEN:
            break
        inside = (one.values() if type(one) is dict else one for one in level)
        level = [item for items in inside for item in items if type(item) in _CONTAINERS]
    return bool(level)


class SeenContext(dict[str, Json]):
    """The context as expressions see it."""

    #: Where something in it is cut: `("input",)`, `("output",)`, or `("capabilities", "search")` for one function.
    cut: frozenset[tuple[str, ...]] = frozenset()


def _text(value: str) -> str:
    if not value.isascii():
        value = value.encode("utf-8", "replace").decode()
    return value.replace("\0", "\ufffd")


def _as_text(value: Any) -> str:
    try:
        return _text(msgspec.json.encode(value).decode())
    except (RecursionError, TypeError):
        return "…"


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    return str(key)


def as_text(value: Json) -> str:
    """Return a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def longest(value: Json) -> int:
    """Return the number of items of the longest list or map in a value."""
    if not isinstance(value, dict | list):
        return 0
    items = value.values() if isinstance(value, dict) else value
    return max(len(value), max(map(longest, items), default=0))


class Result:
    """Turns one result of the engine into JSON, within bounds: a small expression can have a huge value."""

    def __init__(self) -> None:
        self._values = 0
        self._characters = 0

    def plain(self, value: Any) -> Json:
        """Return the engine's value as JSON. Raises ValueError when it has no JSON form."""
        self._values += 1
        if self._values > _MAX_VALUES:
            raise ValueTooLarge(f"the result has more than {_MAX_VALUES:,} values")
        native = value.value()
        if isinstance(native, dict):
            # The engine's maps have no order; an order of our own makes results repeatable.
            return {_key(key): self.plain(native[key]) for key in sorted(native, key=_key)}
        if isinstance(native, list):
            return [self.plain(item) for item in native]
        if isinstance(native, str):
            self._characters += len(native)
            if self._characters > _MAX_CHARACTERS:
                raise ValueTooLarge(f"the result has more than {_MAX_CHARACTERS:,} characters")
        return scalar(native)


def scalar(native: Any) -> Json:
    """Return a value that JSON does not have in the form that protobuf uses for it in JSON."""
    if native is None or isinstance(native, bool | int | str):
        return native
    if isinstance(native, float):
        if not math.isfinite(native):
            raise ValueError(f"{native} is not a JSON number")
        return native
    if isinstance(native, bytes | bytearray):
        return base64.b64encode(native).decode()
    if isinstance(native, datetime.datetime):
        return native.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")
    if isinstance(native, datetime.timedelta):
        sign = "-" if native < datetime.timedelta(0) else ""
        seconds, micros = divmod(abs(native) // datetime.timedelta(microseconds=1), 1_000_000)
        return f"{sign}{seconds}" + (f".{micros:06d}".rstrip("0") if micros else "") + "s"
    return str(native)


def arguments_plain(value: Any) -> Json:
    """Return an argument of a function, which arrives as a Python value, as plain JSON."""
    if isinstance(value, dict):
        return {_key(key): arguments_plain(value[key]) for key in sorted(value, key=_key)}
    if isinstance(value, list):
        return [arguments_plain(item) for item in value]
    return scalar(value)
