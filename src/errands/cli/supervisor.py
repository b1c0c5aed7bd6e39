"""The parent of `errands serve --workers`: it starts the processes, replaces those that die, and stops them.

The processes accept from one listening socket, so no connection is lost when one of them exits. uvicorn's own
supervisor starts a program that fails again and again in all processes at the same time, kills a process whose
handler holds Python for five seconds, and has no second Ctrl-C.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from errands.cli.failures import ExitCode, UsageError
from errands.cli.printing import note

#: Seconds before a process that died soon after its start is started again: none the first time, then doubled.
_FIRST_DELAY = 0.5
_LONGEST_DELAY = 30.0
#: Seconds after which a process counts as having worked.
_SETTLED = 60.0

#: Runs one process until its end. The arguments are whether it prints the greeting, and the pipe to which it writes a
#: message when it serves.
Serve = Callable[[bool, Connection], None]

# Each process imports the program anew, so nothing is shared by accident.
_CONTEXT = multiprocessing.get_context("spawn")


@dataclass
class ServerProcess:
    """One of the processes, and those that replace it."""

    process: SpawnProcess | None = None
    #: Becomes readable when the process serves or has died; None when it has been read.
    ready: Connection | None = None
    #: When to start the next process.
    due_at: float = 0.0
    started_at: float = 0.0
    early_deaths: int = 0

    def start(self, serve: Serve, *, greets: bool) -> None:
        self.ready, child_end = _CONTEXT.Pipe(duplex=False)
        self.started_at = time.monotonic()
        process = _CONTEXT.Process(target=serve, args=(greets, child_end))
        # A terminal sends Ctrl-C to all its processes, but only the supervisor should handle it. A process inherits
        # blocked signals, so SIGINT is blocked from its first instruction on.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        self.process = process
        child_end.close()

    def read_ready(self) -> bool:
        """Return whether the process has reported that it serves. One that dies closes the pipe without a message."""
        assert self.ready is not None
        pipe, self.ready = self.ready, None
        with pipe:
            try:
                pipe.recv()
            except EOFError:
                return False
        return True

    def reap(self) -> int:
        """Return the exit code of the process, which has ended, negative for a signal, and set when to replace it."""
        assert self.process is not None
        self.process.join()
        code = self.process.exitcode or 0
        self.process.close()
        self.process = None
        if self.ready is not None:
            self.ready.close()
            self.ready = None
        now = time.monotonic()
        self.early_deaths = 1 if now - self.started_at > _SETTLED else self.early_deaths + 1
        self.due_at = now + restart_delay(self.early_deaths)
        return code


def restart_delay(deaths: int) -> float:
    """Return the seconds to wait after this number of early deaths in a row."""
    return 0.0 if deaths == 1 else min(_FIRST_DELAY * 2 ** min(deaths - 2, 30), _LONGEST_DELAY)


class Supervisor:
    """Runs `count` processes until a signal arrives."""

    def __init__(self, serve: Serve, count: int) -> None:
        if not hasattr(signal, "pthread_sigmask"):
            raise UsageError("--workers needs a POSIX system; start several servers on different ports instead")
        self._serve = serve
        self._children = [ServerProcess() for _ in range(count)]
        #: Whether any process has served. Until then, a failure is one of the program, which is not started again.
        self._has_served = False
        self._is_stopping = False

    def run(self) -> int:
        """Serve until a signal arrives, and return the exit code."""
        received, sender = _CONTEXT.Pipe(duplex=False)
        previous = {
            number: signal.signal(number, lambda number, _: sender.send(number))
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        has_failed = False
        try:
            # The others are started when the first one serves, so that a failing program fails once.
            self._children[0].start(self._serve, greets=True)
            while self._processes or self._replaces:
                self._wait(received)
                for child in self._children:
                    if child.process is not None and child.process.exitcode is not None:
                        pid, code = child.process.pid, child.reap()
                        if not self._has_served:
                            return code if code >= 0 else 128 - code
                        if self._is_stopping:
                            # SIGTERM ends a process that has not installed its handler yet.
                            has_failed = has_failed or code not in (0, -signal.SIGTERM)
                        else:
                            name = signal.Signals(-code).name if code < 0 else ""
                            how = f"was ended by {name}" if name else f"exited with code {code}"
                            note(f"Process {pid} {how}; it is replaced.")
                    if child.process is None and self._replaces and child.due_at <= time.monotonic():
                        child.start(self._serve, greets=False)
            return ExitCode.FAILED if has_failed else ExitCode.OK
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            # Python would wait forever for processes that are left.
            for process in self._processes:
                process.terminate()

    @property
    def _processes(self) -> list[SpawnProcess]:
        return [child.process for child in self._children if child.process is not None]

    @property
    def _replaces(self) -> bool:
        return self._has_served and not self._is_stopping

    def _wait(self, signals: Connection) -> None:
        """Wait until a process serves or has ended, a signal arrives, or a process is due to be started."""
        due = [child.due_at for child in self._children if child.process is None and self._replaces]
        pipes = [child.ready for child in self._children if child.ready is not None]
        timeout = max(0.0, min(due) - time.monotonic()) if due else None
        ready = wait([signals, *pipes, *(process.sentinel for process in self._processes)], timeout)
        for child in self._children:
            if child.ready is not None and child.ready in ready and child.read_ready():
                self._has_served = True
        if signals in ready:
            number = signals.recv()
            if self._is_stopping:
                for process in self._processes:
                    process.kill()
                raise SystemExit(128 + number)
            self._is_stopping = True
            for process in self._processes:
                process.terminate()
