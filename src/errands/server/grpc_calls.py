"""The open gRPC calls of a process: how many there may be, how much they may hold, and where messages are converted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import grpc.aio

from errands.errors import InvalidRequestError, OverloadedError
from errands.runtime.settings import Settings
from errands.server.large_work import LargeWork

P = ParamSpec("P")
T = TypeVar("T")

#: Calls that are open at the same time: one connection can have any number of them.
MOST_CALLS = 10_000
#: Bytes of a message that is converted on the event loop, and that does not count.
SMALL = 16 * 1024
#: Seconds for a message to arrive, and bytes for which there is one second more: gRPC does not say how much has come.
_ARRIVAL, _PACE = 30.0, 16 * 1024
#: Seconds after which a message that has not arrived counts as slow.
_QUICK = 1.0
#: In place of the time at which a message began to arrive, once it has been refused.
_REFUSED = -1.0


class OpenCalls:
    """Bounds what the open calls hold: messages that arrive, requests that are handled, answers that are not read.

    A call is known by the task that serves it. gRPC does not tell how much it holds of a message that is arriving, so a
    slow one counts as if it were as large as a message may be; if there are too many, the oldest is refused.
    """

    def __init__(self, settings: Settings, large_work: LargeWork) -> None:
        self.large_work = large_work
        self._most_slow = max(settings.max_buffered_bytes // settings.max_body_bytes, 1)
        self._patience = _ARRIVAL + settings.max_body_bytes / _PACE
        self._held: dict[asyncio.Task[Any], int] = {}
        #: When each message that has not arrived began to arrive, the oldest first.
        self._arriving: dict[asyncio.Task[Any], float] = {}
        self._look: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Count the call of the current task until it has been answered. Raises `OverloadedError`."""
        if len(self._held) >= MOST_CALLS:
            raise OverloadedError(f"{MOST_CALLS} calls are open; call again when some have ended")
        task = _current_task()
        self._held[task] = 0
        task.add_done_callback(self._close)

    def _close(self, task: asyncio.Task[Any]) -> None:
        self.large_work.budget.give_back(self._held.pop(task))

    async def receive(self, context: Any) -> bytes:
        """Return the message of a call. Raises `InvalidRequestError` if it has none, and as `receive_next` does."""
        raw = await self.receive_next(context)
        if raw is None:
            raise InvalidRequestError("The call has no message")
        return raw

    async def receive_next(self, context: Any) -> bytes | None:
        """Return the next message of a call, None at their end. Raises `OverloadedError` if it arrives too slowly."""
        loop, task = asyncio.get_running_loop(), _current_task()
        self._arriving[task] = loop.time()
        if self._look is None:
            self._look = loop.call_later(_QUICK, self._look_at_slow, loop)
        try:
            raw = await context.read()
        except asyncio.CancelledError:
            if self._arriving[task] != _REFUSED:
                raise
            task.uncancel()
            raise OverloadedError("The message took too long to arrive; send it again, or a smaller one") from None
        finally:
            del self._arriving[task]
        if raw is grpc.aio.EOF:
            return None
        message: bytes = raw
        self.hold(len(message))
        return message

    def _look_at_slow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Refuse messages that have been arriving for too long. One look a second costs less than a timer each."""
        now = loop.time()
        self._look = loop.call_later(_QUICK, self._look_at_slow, loop) if self._arriving else None
        slow = [task for task, began in self._arriving.items() if began < now - _QUICK and began != _REFUSED]
        too_many = len(slow) - self._most_slow
        for number, task in enumerate(slow):
            if number < too_many or self._arriving[task] < now - self._patience:
                self._arriving[task] = _REFUSED
                task.cancel()

    def hold(self, size: int) -> None:
        """Note that the call of the current task holds `size` bytes now. Raises `OverloadedError` if it may not.

        A call may hold any number of bytes while others hold none.
        """
        if size <= SMALL:
            if not self.large_work.budget.total:
                return
            size = 0
        task = _current_task()
        self.large_work.budget.reserve(size, self._held[task])
        self._held[task] = size

    async def convert(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` to convert a message that is not `SMALL`: in a thread, and one at a time."""
        async with self.large_work.one_at_a_time(0):
            return await asyncio.to_thread(function, *args, **kwargs)


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task
