"""Waiting for what must happen. The wait is the assertion: what does not happen soon fails the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

#: Seconds, of which a test that passes needs few.
SOON = 30.0


async def happens(*events: asyncio.Event) -> None:
    async with asyncio.timeout(SOON):
        for event in events:
            await event.wait()


async def until(condition: Callable[..., object]) -> None:
    """Until it is so; for what can only be looked at."""
    async with asyncio.timeout(SOON):
        while not condition():
            await asyncio.sleep(0.001)
