"""`BlockingTaskContext`: the context for handlers that are plain functions, with the same members but blocking methods.

Such handlers run in a thread. Each call runs in the event loop, and only the thread waits for it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import Any, Self

from errands.runtime.context import TaskContext


class Blocking:
    """An object for one thread: its coroutine methods block, and `with` takes the place of `async with`."""

    def __init__(self, wrapped: Any, loop: asyncio.AbstractEventLoop) -> None:
        vars(self).update(_wrapped=wrapped, _loop=loop)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._wrapped, name)
        return functools.partial(self._call, value) if inspect.iscoroutinefunction(value) else value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._wrapped, name, value)

    def __enter__(self) -> Self:
        self._call(self._wrapped.__aenter__)
        return self

    def __exit__(self, *error: object) -> None:
        self._call(self._wrapped.__aexit__, *error)

    def _call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(method(*args, **kwargs), self._loop).result()


class BlockingTaskContext(Blocking):
    """A `TaskContext` for one thread."""

    def __init__(self, ctx: TaskContext, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(ctx, loop)

    def artifact(self, *args: Any, **kwargs: Any) -> Blocking:
        return Blocking(self._wrapped.artifact(*args, **kwargs), self._loop)

    def capability(self, *args: Any, **kwargs: Any) -> Blocking:
        return Blocking(self._wrapped.capability(*args, **kwargs), self._loop)
