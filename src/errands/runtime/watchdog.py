"""`Watchdog`: reports code that blocks the event loop.

The loop records several times a second that it is alive, and a thread reads these heartbeats. While one is overdue, the
thread looks at the stack of the loop's thread: the frames that stay there from one look to the next belong to the code
that blocks the loop. Native code that holds the GIL stops the watching thread as well; when that thread can run again,
the frame that made the call is still on the stack.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Callable
from sys import _current_frames
from types import CodeType
from typing import NamedTuple, Self

logger = logging.getLogger(__name__)

#: Seconds between two warnings.
_PAUSE = 10.0
#: Looks at the heartbeat in the time that is allowed.
_LOOKS = 4
#: Frames that a warning names.
_NAMED = 3
#: The function from which asyncio calls callbacks. uvloop has none.
_CALLING = ("_run", asyncio.events.__file__)


class Frame(NamedTuple):
    """A call on a stack; the same call is equal at every look."""

    identity: int
    code: CodeType


class Hold(NamedTuple):
    """For how long the event loop has been held, and by which calls."""

    seconds: float
    #: Seconds of processor time of the loop's thread, which do not depend on how busy the machine is.
    processor: float
    #: The calls that hold it, the innermost last, with their current lines.
    frames: dict[Frame, int]

    @property
    def place(self) -> str:
        """The innermost calls as text."""
        named = list(self.frames.items())[-_NAMED:]
        return " > ".join(f"{code.co_qualname} ({code.co_filename}:{line})" for (_, code), line in named)


class _Beat(NamedTuple):
    """When the loop was last alive, and how much processor time its thread had used."""

    at: float
    used: float


class Watchdog:
    """Watches the running event loop. A context manager."""

    def __init__(
        self, longest: float, on_hold: Callable[[Hold], None] | None = None, *, by_processor: bool = False
    ) -> None:
        """`on_hold` is called in another thread, once for each time that the loop is held for `longest` seconds.

        Without it a warning is logged, at most once in 10 seconds. `by_processor` counts seconds of processor time.
        """
        self._longest = longest
        self._tick = longest / _LOOKS
        self._on_hold = on_hold or self._warn
        self._by_processor = by_processor
        self._warned = float("-inf")
        self._left_out = 0
        self._lag = 0.0
        self._stopped = threading.Event()
        #: Frames below every callback, for loops without a frame of `_CALLING`.
        self._below = 0

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        #: The clock of this thread's processor time, if the system has one.
        self._clock: int | None = None
        if hasattr(time, "pthread_getcpuclockid"):
            self._clock = time.pthread_getcpuclockid(self._loop_thread)
        self._beat = _Beat(time.monotonic(), self._processor())
        self._next = self._loop.call_soon(self._live)
        self._thread = threading.Thread(target=self._watch, name="errands-watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._next.cancel()
        self._stopped.set()
        self._thread.join()

    def _live(self) -> None:
        """Record that the loop is alive; called in the loop."""
        if not self._below:
            frame = inspect.currentframe()
            frame = frame and frame.f_back
            while frame is not None:
                self._below, frame = self._below + 1, frame.f_back
        now = time.monotonic()
        self._lag = max(self._lag, now - self._beat.at - self._tick)
        self._beat = _Beat(now, self._processor())
        self._next = self._loop.call_later(self._tick, self._live)

    def take_lag(self) -> float:
        """Return the longest time in seconds for which the loop was held since the last call."""
        lag, self._lag = self._lag, 0.0
        return lag

    def _watch(self) -> None:
        last, frames, is_reported = self._beat, None, False
        while not self._stopped.wait(self._tick) and not self._loop.is_closed():
            beat, now = self._beat, time.monotonic()
            if beat is not last:
                last, frames, is_reported = beat, None, False
            # The next one is due after a tick.
            held, processor = now - beat.at - self._tick, self._processor() - beat.used - self._tick
            if held < self._tick or is_reported:
                continue
            stack = self._stack()
            frames = stack if frames is None else {frame: stack[frame] for frame in frames if frame in stack}
            # If no frame has stayed, there are many short callbacks.
            if frames and (processor if self._by_processor else held) >= self._longest:
                is_reported = True
                self._on_hold(Hold(held, max(processor, 0.0), frames))

    def _stack(self) -> dict[Frame, int]:
        """Return the calls of the callback that runs now, the innermost last, with their lines."""
        frame = _current_frames().get(self._loop_thread)
        found: list[tuple[Frame, int]] = []
        while frame is not None and (frame.f_code.co_name, frame.f_code.co_filename) != _CALLING:
            found.append((Frame(id(frame), frame.f_code), frame.f_lineno))
            frame = frame.f_back
        return dict(found[::-1][self._below if frame is None else 0 :])

    def _processor(self) -> float:
        """Return the processor time of the loop's thread, or the time where the system does not measure it."""
        return time.monotonic() if self._clock is None else time.clock_gettime(self._clock)

    def _warn(self, hold: Hold) -> None:
        now = time.monotonic()
        if now - self._warned < _PAUSE:
            self._left_out += 1
            return
        more = f" ({self._left_out} more were not logged)" if self._left_out else ""
        self._warned, self._left_out = now, 0
        logger.warning(
            "the event loop was held for %.2f s (%.2f s of processor time) by %s: every request had to wait%s",
            hold.seconds,
            hold.processor,
            hold.place,
            more,
        )
