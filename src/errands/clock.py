"""Time: one injected clock, milliseconds inside, ISO 8601 with `Z` on the wire."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from functools import lru_cache

#: Milliseconds since the epoch. Tests pass their own.
Clock = Callable[[], int]

#: The end of the year 9999.
_LATEST = 253_402_300_799_999


def system_clock() -> int:
    """Return the time of this machine."""
    return time.time_ns() // 1_000_000


# Every event has a time, and under load many have the same.
@lru_cache(maxsize=64)
def to_iso(ms: int) -> str:
    """Return a time as the specification asks for it, such as `2026-01-31T12:00:00.000Z`."""
    seconds, rest = divmod(ms, 1000)
    return f"{_iso_second(seconds)}.{rest:03d}Z"


def stored_to_iso(ms: int) -> str:
    """Return the same for a time in a store, which may be any number in a damaged one."""
    return to_iso(min(max(ms, 0), _LATEST))


@lru_cache(maxsize=64)
def _iso_second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def exact_iso(ms: int) -> str:
    """Return the same, but raise `ValueError` for a time that `from_iso` would not read back unchanged."""
    if not 0 <= ms <= _LATEST:
        raise ValueError(f"{ms} is not a time between the years 1970 and 9999")
    return to_iso(ms)


def from_iso(text: str) -> int:
    """Return the milliseconds of an ISO 8601 time; a time without a zone is UTC. Raises `ValueError`."""
    moment = datetime.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    # Whole microseconds: float timestamps lose the last millisecond.
    delta = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return delta // datetime.timedelta(milliseconds=1)
