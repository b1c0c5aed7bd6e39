"""Things that are found out once per process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class Once:
    """Remembers values by key. Those who ask at the same time share one attempt; one that failed is made again."""

    def __init__(self) -> None:
        self._found: dict[Hashable, asyncio.Task[Any]] = {}

    async def get(self, key: Hashable, find: Callable[[], Awaitable[T]]) -> T:
        """The value, or what `find` raises. Whoever stops waiting stops nobody else."""
        task = self._found.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.ensure_future(_awaited(find))
            task.add_done_callback(_seen)
            self._found[key] = task
        found: T = await asyncio.shield(task)
        return found


async def _awaited(find: Callable[[], Awaitable[T]]) -> T:
    return await find()


def _seen(task: asyncio.Task[Any]) -> None:
    """A failure is no loose end, also when those who asked have gone."""
    if not task.cancelled():
        task.exception()
