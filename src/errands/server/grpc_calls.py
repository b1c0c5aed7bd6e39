"""The open gRPC calls of a process: how many there may be, how much they may hold, and where messages are converted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import grpc.aio

from errands.errors import OverloadedError
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


class OpenCalls:
    """Bounds what the open calls hold: messages that arrive, requests that are handled, answers that are not read.

    gRPC does not tell how much it holds of a message that is arriving, so a slow one counts as if it were as large as a
    message may be; if there are too many, the oldest is refused.
    """

    def __init__(self, settings: Settings, large_work: LargeWork) -> None:
        self.large_work = large_work
        self._most_slow = max(settings.max_buffered_bytes // settings.max_body_bytes, 1)
        self._patience = _ARRIVAL + settings.max_body_bytes / _PACE
        self.count = 0
        #: The calls whose message has not arrived, the one that began first at the beginning.
        self.arriving: dict[OpenCall, None] = {}
        self._look: asyncio.TimerHandle | None = None

    def open(self) -> OpenCall:
        """Count the call of the current task until it has been answered. Raises `OverloadedError`."""
        if self.count >= MOST_CALLS:
            raise OverloadedError(f"{MOST_CALLS} calls are open; call again when some have ended")
        return OpenCall(self)

    def look_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look at slow messages within a second. One look costs less than a timer for each message."""
        if self._look is None:
            self._look = loop.call_later(_QUICK, self._look_at_slow, loop)

    def _look_at_slow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Refuse messages that have been arriving for too long."""
        now = loop.time()
        self._look = loop.call_later(_QUICK, self._look_at_slow, loop) if self.arriving else None
        slow = [call for call in self.arriving if call.began < now - _QUICK and not call.is_refused]
        too_many = len(slow) - self._most_slow
        for number, call in enumerate(slow):
            if number < too_many or call.began < now - self._patience:
                call.refuse()

    async def convert(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` to convert a message that is not `SMALL`: in a thread, and one at a time."""
        async with self.large_work.one_at_a_time(0):
            return await asyncio.to_thread(function, *args, **kwargs)


class OpenCall:
    """A call that is open, with its task."""

    __slots__ = ("_calls", "_held", "_task", "began", "is_refused")

    def __init__(self, calls: OpenCalls) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._calls = calls
        self._task = task
        self._held = 0
        #: When its message began to arrive, and whether that took too long.
        self.began = 0.0
        self.is_refused = False
        calls.count += 1
        task.add_done_callback(self._close)

    def _close(self, _: object) -> None:
        self._calls.count -= 1
        if self._held:
            self._calls.large_work.budget.give_back(self._held)

    def refuse(self) -> None:
        self.is_refused = True
        self._task.cancel()

    async def receive(self, context: Any) -> bytes | None:
        """Return the next message of the call, None at their end. Raises `OverloadedError` if it arrives too slowly."""
        calls, loop = self._calls, asyncio.get_running_loop()
        self.began = loop.time()
        calls.arriving[self] = None
        calls.look_soon(loop)
        try:
            raw = await context.read()
        except asyncio.CancelledError:
            if not self.is_refused:
                raise
            self._task.uncancel()
            raise OverloadedError("The message took too long to arrive; send it again, or a smaller one") from None
        finally:
            del calls.arriving[self]
        if raw is grpc.aio.EOF:
            return None
        message: bytes = raw
        self.hold(len(message))
        return message

    def hold(self, size: int) -> None:
        """Note that the call holds `size` bytes now. Raises `OverloadedError` if it may not.

        A call may hold any number of bytes while others hold none.
        """
        if size <= SMALL:
            if not self._held:
                return
            size = 0
        self._calls.large_work.budget.reserve(size, self._held)
        self._held = size
