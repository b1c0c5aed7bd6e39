"""Check that a store answers and takes writes within a second: what readiness asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from errands.errors import StorageError

#: Seconds after which a store that has not answered is not well.
SOON = 1.0
#: Seconds that a successful write counts for: strangers may ask as often as they like.
_WRITE_EVERY = 0.2

Question = Callable[[], Coroutine[Any, Any, Any]]


class Probe:
    """Asks one question at a time, however many callers there are: silence must not cost a connection for each.

    `look` reads from the store. `write` writes something that leaves no trace: a store that is full or read-only can
    still be read.
    """

    def __init__(self, name: str, look: Question, write: Question) -> None:
        self._name = name
        self._look = look
        self._write = write
        self._written_at = float("-inf")
        self._asking: asyncio.Task[Any] | None = None

    async def __call__(self) -> None:
        """Raises `StorageError`: what the question raises, or that there was no answer in time."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="errands-probe")
            self._asking.add_done_callback(_retrieve)
        # It is not given up: a broken question would have to be broken off with the store that keeps silent.
        done, _ = await asyncio.wait({self._asking}, timeout=SOON)
        if not done:
            raise StorageError(f"{self._name} does not answer. Check what it is busy with, and the way to it")
        done.pop().result()

    async def _ask(self) -> None:
        await self._look()
        loop = asyncio.get_running_loop()
        if loop.time() - self._written_at >= _WRITE_EVERY:
            await self._write()
            self._written_at = loop.time()

    async def stop(self) -> None:
        """Once the connections are closed: waits for the end of what is still asked."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking})


def _retrieve(asking: asyncio.Task[Any]) -> None:
    if not asking.cancelled():
        asking.exception()
