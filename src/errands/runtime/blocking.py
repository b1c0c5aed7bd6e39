"""`BlockingTaskContext`: the context for handlers that are plain functions, with the same members but blocking methods.

Such handlers run in a thread. Each call runs in the event loop, and only the thread waits for it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from types import TracebackType
from typing import Any, Self

from errands.runtime.context import ArtifactWriter, TaskContext
from errands.runtime.oversight import CapabilityCall


class BlockingTaskContext:
    """A `TaskContext` for one thread."""

    def __init__(self, ctx: TaskContext, loop: asyncio.AbstractEventLoop) -> None:
        self._ctx = ctx
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._ctx, name)
        if inspect.iscoroutinefunction(value):
            return functools.partial(_call, self._loop, value)
        return value

    def artifact(self, *args: Any, **kwargs: Any) -> BlockingArtifactWriter:
        return BlockingArtifactWriter(self._ctx.artifact(*args, **kwargs), self._loop)

    def capability(self, *args: Any, **kwargs: Any) -> BlockingCapabilityCall:
        return BlockingCapabilityCall(self._ctx.capability(*args, **kwargs), self._loop)


class BlockingArtifactWriter:
    def __init__(self, writer: ArtifactWriter, loop: asyncio.AbstractEventLoop) -> None:
        self._writer = writer
        self._loop = loop
        self.artifact_id = writer.artifact_id

    def write(self, *args: Any, **kwargs: Any) -> None:
        _call(self._loop, self._writer.write, *args, **kwargs)

    def seal(self) -> None:
        _call(self._loop, self._writer.seal)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _call(self._loop, self._writer.__aexit__, kind, error, trace)


class BlockingCapabilityCall:
    def __init__(self, call: CapabilityCall, loop: asyncio.AbstractEventLoop) -> None:
        self._call = call
        self._loop = loop
        self.name = call.name

    @property
    def arguments(self) -> dict[str, Any]:
        return self._call.arguments

    @property
    def output(self) -> Any:
        return self._call.output

    @output.setter
    def output(self, value: Any) -> None:
        self._call.output = value

    def result(self, value: Any) -> Any:
        return self._call.result(value)

    def __enter__(self) -> Self:
        _call(self._loop, self._call.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _call(self._loop, self._call.__aexit__, kind, error, trace)


def _call(loop: asyncio.AbstractEventLoop, method: Any, *args: Any, **kwargs: Any) -> Any:
    return asyncio.run_coroutine_threadsafe(method(*args, **kwargs), loop).result()
