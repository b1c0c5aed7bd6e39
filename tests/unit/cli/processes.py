"""`errands` as people run it: a process of its own, with pipes and signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from tests.forking import popen

#: Seconds after which a process that does not do what it should is killed, and its test fails.
_DEADLINE = 170.0


def errands(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    process = popen("errands", *arguments, env=dict(os.environ), cwd=cwd, piped=True)
    deadline = threading.Timer(_DEADLINE, process.kill)
    deadline.start()
    stdout, stderr = process.communicate()
    deadline.cancel()
    return subprocess.CompletedProcess(process.args, process.wait(), stdout, stderr)


class Running:
    """A command that is still running. With `python`, it has a new interpreter instead of a fork of one."""

    #: Seconds after which it is killed.
    deadline = _DEADLINE

    def __init__(
        self, *arguments: str, cwd: Path, settings: dict[str, str] | None = None, python: str | None = None
    ) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ERRANDS_")}
        environment.update(settings or {})
        # As a shell starts it: Ctrl-C would go to it and to the processes it starts, and to no others.
        self._process = popen(
            "errands", *arguments, env=environment, cwd=cwd, piped=True, own_group=True, python=python
        )
        self._deadline = threading.Timer(self.deadline, self._process.kill)
        self._deadline.start()
        self.stdout = ""
        # Read while it runs: a process whose pipe is full waits with its next line for the log.
        self._errors: list[str] = []
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def read(self, size: int) -> str:
        """So many characters of what it writes, as soon as they are there."""
        assert self._process.stdout is not None
        return self._process.stdout.read(size)

    def read_until(self, text: str) -> str:
        """What it has written so far, once it has written `text`."""
        assert self._process.stdout is not None
        seen = ""
        while text not in seen:
            line = self._process.stdout.readline()
            if not line:
                raise AssertionError(f"ended without {text!r}: {seen}{self.finish().stderr}")
            seen += line
        self.stdout += seen
        return seen

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            self._errors.append(stream.read())

    def finish(self) -> subprocess.CompletedProcess[str]:
        """Waits for its end."""
        assert self._process.stdout is not None
        if not self._process.stdout.closed:
            with self._process.stdout as stream:
                self.stdout += stream.read()
        self._reader.join()
        self._deadline.cancel()
        return subprocess.CompletedProcess(self._process.args, self._process.wait(), self.stdout, "".join(self._errors))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self.finish()


class Served(Running):
    """`errands serve`, from when it takes requests. Without a target it serves the project in the folder."""

    def __init__(
        self,
        target: Path | str | None,
        *options: str,
        cwd: Path,
        python: str | None = None,
        python_path: str | None = None,
        port: int = 0,
        **settings: str,
    ) -> None:
        environment = {f"ERRANDS_{name.upper()}": value for name, value in settings.items()}
        if python_path is not None:
            environment["PYTHONPATH"] = python_path
        command = ("serve", *([] if target is None else [str(target)]), "--port", str(port), *options)
        super().__init__(*command, cwd=cwd, settings=environment, python=python)
        self.greeting = self.read_until("Ctrl-C stops it.")
        [self.url] = re.findall(r"^url +(\S+)$", self.greeting, re.MULTILINE)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> subprocess.CompletedProcess[str]:
        self.signal(number)
        return self.finish()

    def until_draining(self) -> None:
        """Asks until it says that it takes nothing new."""
        while not self._is_draining():
            pass

    def _is_draining(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health/ready", timeout=None).status_code == 503
        except httpx.TransportError:
            # Of several processes one with nothing to do ends at once, with a connection that it has just accepted.
            assert self._process.poll() is None
            return False


class LongServed(Served):
    """For several tests."""

    deadline = 1800.0
