"""Durations such as `2h`, `1m30s` and `1.5h`, as Go writes them."""

from __future__ import annotations

import re

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PIECE = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(ns|us|µs|ms|s|m|h)", re.ASCII)


def seconds(text: str) -> float:
    """Raises `ValueError` when the text is no duration, or one of no length."""
    pieces = _PIECE.findall(text)
    if not pieces or "".join(number + unit for number, unit in pieces) != text:
        raise ValueError(f"{text[:80]!r} is no duration")
    total = sum(float(number) * _UNITS[unit] for number, unit in pieces)
    if total <= 0:
        raise ValueError(f"{text[:80]!r} has no length")
    return total
