"""Start coroutines at once: one that ends without waiting never becomes an asyncio task of its own.

Python 3.12 has eager tasks for this; for 3.11, `EagerTasks` keeps spare tasks that go on with a coroutine if it waits.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.tasks import _enter_task, _leave_task  # documented under "Extending asyncio"
from collections.abc import Coroutine, Generator
from contextvars import copy_context
from typing import Any


class EagerTasks:
    """Starts coroutines that return nothing. Close it before its event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        #: Those that can be used, and the one that is being made.
        self._spares: list[_SpareTask] = []
        self._next: _SpareTask | None = None

    def start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """Run a coroutine until it ends or waits for the first time. Return the task that goes on with it, if any.

        While it runs, its task is the current one, as in any other task, and it sees a copy of the context.
        """
        try:
            if sys.version_info >= (3, 12):
                task = asyncio.Task(coroutine, loop=self._loop, eager_start=True)
                return task.result() if task.done() else task
            return self._start(coroutine)
        except asyncio.CancelledError:
            return None
        except (KeyboardInterrupt, SystemExit) as error:
            self._loop.call_soon(_raise, error)  # ends the event loop, as in any other task
            return None

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        loop = self._loop
        if not self._spares:
            if self._next is None:
                self._next = _SpareTask(loop, self._add)
            return loop.create_task(coroutine)
        spare = self._spares.pop()
        task, context = spare.task, spare.context
        if copy_context() != context:
            # It would see variables of the wrong context, for example another current span of a trace.
            self._spares.append(spare)
            return loop.create_task(coroutine)
        outer = asyncio.current_task(loop)
        if outer is not None:
            _leave_task(loop, outer)
        _enter_task(loop, task)
        try:
            awaited = context.run(coroutine.send, None)
        except StopIteration:
            if context == spare.unchanged and not spare.is_used:
                self._spares.append(spare)
            else:
                task.cancel()
            return None
        except BaseException:
            task.cancel()
            raise
        finally:
            _leave_task(loop, task)
            if outer is not None:
                _enter_task(loop, outer)
        spare.go_on(coroutine, awaited)
        return task

    def _add(self, spare: _SpareTask) -> None:
        self._spares.append(spare)
        self._next = None

    def close(self) -> None:
        for spare in (*self._spares, *([] if self._next is None else [self._next])):
            spare.task.cancel()
        self._spares, self._next = [], None


class _SpareTask:
    """A task that waits for a coroutine with which it goes on."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_ready: Any) -> None:
        self._on_ready = on_ready
        #: What a coroutine sees, and a copy: what one has set must not reach the next.
        self.context = copy_context()
        self.unchanged = self.context.copy()
        self._coroutine: Coroutine[Any, Any, None] | None = None
        #: What the coroutine waits for: a future, or None if only for the loop's next iteration.
        self._awaited: Any = None
        self._handed_over: asyncio.Future[None] = loop.create_future()
        self.task: asyncio.Task[None] = loop.create_task(self._go_on(), context=self.context)

    @property
    def is_used(self) -> bool:
        """True when the task goes on with a coroutine, or one has canceled it."""
        return self._handed_over.done()

    def go_on(self, coroutine: Coroutine[Any, Any, None], awaited: Any) -> None:
        """Have the task go on with a coroutine when what it waits for is there."""
        self._coroutine, self._awaited = coroutine, awaited
        if not self.is_used:
            self._handed_over.set_result(None)

    async def _go_on(self) -> None:
        self._on_ready(self)
        canceled = None
        try:
            await self._handed_over
        except asyncio.CancelledError as error:
            if self._coroutine is None:
                raise
            # As in any other task: what the coroutine waits for is canceled, and tells it. If that is not possible, the
            # task does.
            if self._awaited is None or not self._awaited.cancel():
                canceled = error
        coroutine, self._coroutine = self._coroutine, None
        assert coroutine is not None
        await _Rest(coroutine, self._awaited, canceled)


class _Rest:
    """The rest of a coroutine that was begun: what `await` does, from where the coroutine waits for something."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], awaited: Any, error: BaseException | None) -> None:
        self._coroutine = coroutine
        self._awaited = awaited
        #: To be raised where the coroutine waits.
        self._error = error

    def __await__(self) -> Generator[Any, Any, None]:
        coroutine, awaited, error = self._coroutine, self._awaited, self._error
        sent = None
        while True:
            if error is None:
                try:
                    sent = yield awaited
                except GeneratorExit:
                    coroutine.close()
                    raise
                except BaseException as raised:
                    error = raised
            try:
                awaited = coroutine.send(sent) if error is None else coroutine.throw(error)
            except StopIteration:
                return
            error = None


def _raise(error: BaseException) -> None:
    raise error
