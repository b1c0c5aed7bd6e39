"""Notices when code holds the event loop, and names it.

The loop notes several times a second that it is alive, and a thread looks at these notes. While one is overdue, the
thread looks at the stack of the loop's thread: the frames that stay there from one look to the next belong to the code
that holds the loop. Native code that keeps the interpreter to itself stops the watching thread as well; when that
thread can run again, the frame that made the call is still on the stack.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType
from typing import NamedTuple, Self

logger = logging.getLogger(__name__)

#: Seconds between two warnings.
_PAUSE = 10.0
#: Looks in the time that is allowed.
_LOOKS = 4
#: Frames that are named.
_NAMED = 3
#: The frame from which asyncio calls a callback. uvloop has none.
_CALLING = asyncio.Handle._run.__code__


class Frame(NamedTuple):
    """A call on a stack; the same call is equal at every look."""

    identity: int
    code: CodeType


class Hold(NamedTuple):
    """The event loop was held for so long, so far, and by whom."""

    seconds: float
    #: Seconds of processor time of the loop's thread, which a busy machine does not make longer.
    processor: float
    #: The calls that hold it, the innermost last, with the lines they are at.
    frames: dict[Frame, int]

    @property
    def place(self) -> str:
        named = list(self.frames.items())[-_NAMED:]
        return " > ".join(f"{code.co_qualname} ({code.co_filename}:{line})" for (_, code), line in named)


class _Beat(NamedTuple):
    """When the loop was last alive, and how much processor time its thread had used."""

    at: float
    used: float


class Watchdog:
    """Watches the loop that runs where it is entered, until it is left."""

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
        self._stopped = threading.Event()
        #: Frames below every callback, those that run the loop, for loops that have no frame of `_CALLING`.
        self._below = 0

    def __enter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._clock = _processor_clock()
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
        """Runs in the loop."""
        if not self._below:
            frame = sys._getframe().f_back
            while frame is not None:
                self._below, frame = self._below + 1, frame.f_back
        self._beat = _Beat(time.monotonic(), self._processor())
        self._next = self._loop.call_later(self._tick, self._live)

    def _watch(self) -> None:
        last, frames, is_told = self._beat, None, False
        while not self._stopped.wait(self._tick) and not self._loop.is_closed():
            beat, now = self._beat, time.monotonic()
            if beat is not last:
                last, frames, is_told = beat, None, False
            # The next one is due after a tick.
            held, processor = now - beat.at - self._tick, self._processor() - beat.used - self._tick
            if held < self._tick or is_told:
                continue
            stack = self._stack()
            frames = stack if frames is None else {frame: stack[frame] for frame in frames if frame in stack}
            # Without a frame that stayed, there are many short callbacks.
            if frames and (processor if self._by_processor else held) >= self._longest:
                is_told = True
                self._on_hold(Hold(held, max(processor, 0.0), frames))

    def _stack(self) -> dict[Frame, int]:
        """Return the calls of the callback that runs now, the innermost last, with their lines."""
        frame = sys._current_frames().get(self._loop_thread)
        found: list[tuple[Frame, int]] = []
        while frame is not None and frame.f_code is not _CALLING:
            found.append((Frame(id(frame), frame.f_code), frame.f_lineno))
            frame = frame.f_back
        return dict(found[::-1][self._below if frame is None else 0 :])

    def _processor(self) -> float:
        """Return the processor time of the loop's thread, or what there is instead."""
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


def _processor_clock() -> int | None:
    """Return the clock of the current thread, where the system has one."""
    return time.pthread_getcpuclockid(threading.get_ident()) if hasattr(time, "pthread_getcpuclockid") else None
