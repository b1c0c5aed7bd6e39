"""Time that passes when a test says so."""

from __future__ import annotations

import asyncio


def let_pass(seconds: float) -> None:
    """Moves the clock of the running event loop on: the timers that are due by then go off at once."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]
