"""What is begun or ended elsewhere is seen through, whoever wants to stop meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def unbroken(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. When the caller is canceled meanwhile, that holds once the work is over.

    So beginning something and noting it belong together.
    """
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()
        raise


class Cancels:
    """Cancels of children. A parent's time may be up before they are through; then they go on without it."""

    def __init__(self) -> None:
        self._running: set[asyncio.Future[None]] = set()

    async def wait_for(self, canceling: Coroutine[Any, Any, None]) -> None:
        running = asyncio.ensure_future(canceling)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        await asyncio.shield(running)
