"""Time as the runtime sees it: one injected source, milliseconds inside, ISO 8601 with `Z` outside."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable

#: Milliseconds since the epoch. Tests pass their own.
Clock = Callable[[], int]


def system_clock() -> int:
    return time.time_ns() // 1_000_000


def to_iso(ms: int) -> str:
    """`2026-01-31T12:00:00.000Z`: the form the specification asks for."""
    seconds, rest = divmod(ms, 1000)
    moment = time.gmtime(seconds)
    return (
        f"{moment[0]:04d}-{moment[1]:02d}-{moment[2]:02d}"
        f"T{moment[3]:02d}:{moment[4]:02d}:{moment[5]:02d}.{rest:03d}Z"
    )


def from_iso(text: str) -> int:
    """Milliseconds of an ISO 8601 time; a time without a zone is UTC. ValueError when it is none."""
    moment = datetime.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    # Whole microseconds: float timestamps lose the last millisecond.
    delta = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return delta // datetime.timedelta(milliseconds=1)
