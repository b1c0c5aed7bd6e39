"""Several processes that serve one agent on one listening socket, and the one that looks after them.

The supervisor serves nothing itself. It starts the processes, starts another one when one has died, and passes on the
wish to end. They accept from the same socket, so no connection is lost when one of them goes.
"""

from __future__ import annotations

import multiprocessing
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType

from errands.cli.failures import ExitCode, UsageError
from errands.cli.terminal import err

#: Seconds before a process is started again that died soon after its start: the first time none, then doubled.
_FIRST_DELAY = 0.5
_LONGEST_DELAY = 30.0
#: Seconds after which a process counts as having worked.
_SETTLED = 60.0

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

#: Runs one of the processes until its end: whether it is to greet, and where it says that it serves.
Serve = Callable[[bool, Connection], None]

# Each process imports the program anew: nothing that was made before is shared by accident.
_CONTEXT = multiprocessing.get_context("spawn")


class Place:
    """One of the processes, and whoever comes after it."""

    def __init__(self) -> None:
        self.process: SpawnProcess | None = None
        #: Becomes readable when the process serves; None when that has been heard.
        self.serving: Connection | None = None
        self._started_at = 0.0
        self._deaths = 0
        #: When the next process is to be started.
        self.due_at = 0.0

    def start(self, serve: Serve, *, greets: bool) -> None:
        self.serving, child_end = _CONTEXT.Pipe(duplex=False)
        self._started_at = time.monotonic()
        process = _CONTEXT.Process(target=serve, args=(greets, child_end))
        with _without_interrupts():
            process.start()
        self.process = process
        child_end.close()

    def bury(self) -> int:
        """What the process, which has ended, ended with: its code, or less than 0 for a signal."""
        assert self.process is not None
        self.process.join()
        code = self.process.exitcode or 0
        self.process.close()
        self.process = None
        self.heard()
        now = time.monotonic()
        self._deaths = 1 if now - self._started_at > _SETTLED else self._deaths + 1
        self.due_at = now + delay_after(self._deaths)
        return code

    def heard(self) -> None:
        if self.serving is not None:
            self.serving.close()
            self.serving = None


def delay_after(deaths: int) -> float:
    """Seconds to wait after so many early deaths in a row."""
    return 0.0 if deaths == 1 else min(_FIRST_DELAY * 2 ** min(deaths - 2, 30), _LONGEST_DELAY)


class Supervisor:
    def __init__(self, serve: Serve, count: int) -> None:
        if not hasattr(signal, "pthread_sigmask"):
            raise UsageError("--workers needs a POSIX system; start several servers on different ports instead")
        self._serve = serve
        self._places = [Place() for _ in range(count)]
        #: Whether any process has come so far as to serve: until then a failure is the program's, and is not repeated.
        self._has_served = False
        #: The signals that came.
        self._heard: list[int] = []
        self._is_stopping = False
        self._failed = False

    def run(self) -> int:
        """Serves until a signal comes; the exit code."""
        with self._signals() as woken:
            try:
                return self._look_after(woken)
            finally:
                # However it ends, nothing is left behind: Python would wait for the processes for ever.
                for process in self._processes:
                    process.terminate()

    def _look_after(self, woken: socket.socket) -> int:
        self._places[0].start(self._serve, greets=True)
        while self._running:
            self._wait(woken)
            self._obey()
            for place in self._running:
                if place.process is not None and place.process.exitcode is not None:
                    code = self._bury(place)
                    if not self._has_served:
                        return code if code >= 0 else 128 - code
            if self._has_served and not self._is_stopping:
                self._start_due()
        return ExitCode.FAILED if self._failed else ExitCode.OK

    @property
    def _processes(self) -> list[SpawnProcess]:
        return [place.process for place in self._places if place.process is not None]

    @property
    def _running(self) -> list[Place]:
        """The places with a process; all of them when others are still to come."""
        if self._has_served and not self._is_stopping:
            return self._places
        return [place for place in self._places if place.process is not None]

    def _wait(self, woken: socket.socket) -> None:
        """Until a process has ended or serves, a signal came, or a process is due to be started."""
        timeouts: list[float] = []
        awaited: list[socket.socket | int | Connection] = [woken]
        for place in self._running:
            if place.process is None:
                timeouts.append(max(0.0, place.due_at - time.monotonic()))
            else:
                awaited.append(place.process.sentinel)
            if place.serving is not None:
                awaited.append(place.serving)
        ready = wait(awaited, min(timeouts, default=None))
        if woken in ready:
            woken.recv(4096)
        for place in self._places:
            if place.serving is not None and place.serving in ready:
                # A process that dies closes its end, too, without a word.
                with suppress(EOFError):
                    place.serving.recv()
                    self._has_served = True
                place.heard()

    def _obey(self) -> None:
        """Does what the signals want that came: the first asks the processes to end, another ends them."""
        if self._heard and not self._is_stopping:
            self._is_stopping = True
            for process in self._processes:
                process.terminate()
        if len(self._heard) > 1:
            for process in self._processes:
                process.kill()
            raise SystemExit(128 + self._heard[1])

    def _start_due(self) -> None:
        now = time.monotonic()
        for place in self._places:
            if place.process is None and place.due_at <= now:
                place.start(self._serve, greets=False)

    def _bury(self, place: Place) -> int:
        assert place.process is not None
        pid = place.process.pid
        code = place.bury()
        if self._is_stopping:
            # One that was not yet so far as to hear the signal is ended by it.
            self._failed = self._failed or code not in (0, -signal.SIGTERM)
        elif self._has_served:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            err().print(f"Process {pid} {how}; another one takes its place.")
        return code

    @contextmanager
    def _signals(self) -> Iterator[socket.socket]:
        """Hears the signals; what is given becomes readable when one came."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.setblocking(False)
            before = {number: signal.signal(number, self._hear) for number in _SIGNALS}
            old = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
            try:
                yield ours
            finally:
                signal.set_wakeup_fd(old)
                for number, handler in before.items():
                    signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._heard.append(number)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """For starting a process: Ctrl-C goes to all processes of a terminal, and here only the supervisor is to hear it.

    What is blocked stays blocked in the new process, from its first instruction on.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
