"""A command in a pseudo-terminal, and what is on its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import pyte

#: Seconds after which a screen that does not show what it should fails the test.
_DEADLINE = 120.0
#: The child makes the terminal its own, so that Ctrl-C is a signal to it.
_PROGRAM = """
import fcntl, runpy, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.argv[0] = "errands"
runpy.run_module("errands", run_name="__main__", alter_sys=True)
"""

ENTER, CTRL_C, CTRL_D, UP = "\r", "\x03", "\x04", "\x1b[A"


class Terminal:
    """`errands` as a person runs it: what is typed goes in, and the screen shows what comes out."""

    def __init__(
        self, *arguments: str, cwd: Path, columns: int = 100, lines: int = 40, settings: dict[str, str] | None = None
    ) -> None:
        self._screen = pyte.HistoryScreen(columns, lines, history=2000)
        self._stream = pyte.ByteStream(self._screen)
        self._changed = threading.Condition(threading.RLock())
        self._ended = False
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ERRANDS_")}
        environment |= {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(lines), **(settings or {})}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # the other end is closed
                data = b""
            with self._changed:
                if data:
                    self._stream.feed(data)
                else:
                    self._ended = True
                self._changed.notify_all()
            if not data:
                return

    @property
    def text(self) -> str:
        """What is on the screen, and what has scrolled off it."""
        with self._changed:
            above = ["".join(line[x].data for x in range(self._screen.columns)) for line in self._screen.history.top]
            return "\n".join(line.rstrip() for line in [*above, *self._screen.display])

    @property
    def display(self) -> str:
        """What is on the screen right now."""
        with self._changed:
            return "\n".join(line.rstrip() for line in self._screen.display)

    def until(self, condition: Callable[[], object], what: str = "") -> None:
        """Wait until the screen is so; for what cannot be said as a text."""
        deadline = time.monotonic() + _DEADLINE
        with self._changed:
            while not condition():
                left = deadline - time.monotonic()
                if self._ended or left <= 0 or not self._changed.wait(left):
                    assert condition(), f"{what or 'it'} is not on the screen:\n{self.text}"
                    return

    def shows(self, *texts: str) -> str:
        """Wait until each of these has been on the screen, and return everything that was."""
        for text in texts:
            self.until(lambda text=text: text in self.text, text)  # type: ignore[misc]
        return self.text

    def enter(self, text: str) -> None:
        """Type a line."""
        self.press(text + ENTER)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def exit_code(self) -> int:
        """Wait for the end of the command."""
        code = self._process.wait(_DEADLINE)
        self._reader.join(_DEADLINE)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._reader.join(_DEADLINE)
        os.close(self._master)
