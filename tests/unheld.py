"""Asserting that something does not hold the event loop, on a machine of any speed and load."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

#: Seconds of processor time.
BEARABLE = 0.25


@contextmanager
def unheld() -> Iterator[None]:
    """Asserts that the block takes little processor time in this thread; another process may be at work meanwhile."""
    before = time.thread_time()
    yield
    assert time.thread_time() - before < BEARABLE
