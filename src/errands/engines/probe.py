"""Whether a store is well, for whoever wants to know soon: a store that keeps silent is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from errands.errors import StorageError

#: Seconds after which a store that has not answered is not well.
SOON = 1.0


class Probe:
    """One question at a time, however many ask: silence must not cost a connection for each of them."""

    def __init__(self, name: str, ask: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._name = name
        self._ask = ask
        self._asking: asyncio.Task[Any] | None = None

    async def __call__(self) -> None:
        """Raises `StorageError`: what the question raises, or that there was no answer in time."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="errands-probe")
            self._asking.add_done_callback(_retrieve)
        # It is not given up: a broken question would have to be broken off with the store that keeps silent.
        done, _ = await asyncio.wait({self._asking}, timeout=SOON)
        if not done:
            raise StorageError(f"{self._name} does not answer. Check that it runs, and the network")
        done.pop().result()

    async def stop(self) -> None:
        """Once the connections are closed: waits for the end of what is still asked."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking})


def _retrieve(asking: asyncio.Task[Any]) -> None:
    if not asking.cancelled():
        asking.exception()
