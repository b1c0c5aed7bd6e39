"""Python programs that start within milliseconds: forks of a process that has imported errands and what it uses.

`Forked` runs `python -m MODULE ARGUMENTS` like `subprocess.Popen`. A new interpreter needs half a second of processor
time for the imports, two with a model's client, and the suite starts hundreds of servers. Where a program needs an
interpreter of its own (other variables that Python or the allocator read when they start, or no Linux), it gets one.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

#: What servers and commands import, as far as it is installed.
PRELOADED = (
    "errands.cli.main",
    "errands.engines.sqlite",
    "errands.engines.postgres",
    "errands.engines.redis",
    "errands.agents.models.any_llm",
    "any_llm.providers.openai",
    "openai.resources.chat.completions",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.httptools_impl",
)
_ROOT = Path(__file__).parents[1]


def popen(
    module: str,
    *arguments: str,
    env: dict[str, str],
    cwd: Path | None = None,
    piped: bool = False,
    own_group: bool = False,
    python: str | None = None,
) -> Forked | subprocess.Popen[str]:
    """Start `python -m MODULE ARGUMENTS`, in a new interpreter if `python` names one.

    Its output can be read as text if it is `piped`; else it goes where ours goes.
    """
    if python is None and sys.platform == "linux" and _read_at_start(env) == _AT_START:
        return Forked(module, *arguments, env=env, cwd=cwd or Path.cwd(), piped=piped, own_group=own_group)
    output = subprocess.PIPE if piped else None
    command = [python or sys.executable, "-m", module, *arguments]
    return subprocess.Popen(
        command, stdout=output, stderr=output, text=True, cwd=cwd, env=env, process_group=0 if own_group else None
    )


def _read_at_start(env: dict[str, str]) -> dict[str, str]:
    """Return the variables that have their effect when a process starts."""
    return {name: value for name, value in env.items() if name.startswith(("PYTHON", "MALLOC_", "LD_"))}


_AT_START = _read_at_start(dict(os.environ))


class Forked:
    """A program in a fork, with the methods of `subprocess.Popen` that tests use."""

    def __init__(
        self, module: str, *arguments: str, env: dict[str, str], cwd: Path, piped: bool, own_group: bool
    ) -> None:
        self.args = [sys.executable, "-m", module, *arguments]
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        self.returncode: int | None = None
        request = {"module": module, "arguments": arguments, "env": env, "cwd": str(cwd), "own_group": own_group}
        news, told = socket.socketpair()
        with told, contextlib.ExitStack() as ends:
            outputs = [1, 2]
            if piped:
                (out, out_end), (err, err_end) = os.pipe(), os.pipe()
                ends.callback(os.close, out_end)
                ends.callback(os.close, err_end)
                self.stdout, self.stderr = os.fdopen(out), os.fdopen(err)
                outputs = [out_end, err_end]
            _template(os.getpid()).fork(request, [*outputs, told.fileno()])
        lines = news.makefile("r", encoding="ascii")
        news.close()
        self.pid = int(lines.readline())
        self._waiter = threading.Thread(target=self._wait, args=(lines,), daemon=True)
        self._waiter.start()

    def _wait(self, lines: IO[str]) -> None:
        with lines:
            self.returncode = int(lines.readline() or -signal.SIGKILL)

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._waiter.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def communicate(self) -> tuple[str, str]:
        """Read its output to the end and wait for it."""
        assert self.stdout is not None
        assert self.stderr is not None
        if self.stdout.closed:
            return "", ""
        errors: list[str] = []
        reader = threading.Thread(target=lambda stream: errors.append(stream.read()), args=(self.stderr,))
        with self.stdout, self.stderr:
            reader.start()
            output = self.stdout.read()
            reader.join()
        self.wait()
        return output, errors[0]


class _Template:
    """The process that is forked, for as long as this one lives."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # It does not hear the Ctrl-C that interrupts the tests, and ends when they do.
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                cwd=_ROOT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        # It outlives the tests by a moment.
        self._process.returncode = 0

    def fork(self, request: dict[str, Any], descriptors: list[int]) -> None:
        socket.send_fds(self._requests, [json.dumps(request).encode()], descriptors)


@functools.cache
def _template(pid: int) -> _Template:
    """Return the template of the process of that id: a fork of this one must not use ours."""
    return _Template()


def _requested(requests: socket.socket) -> dict[str, Any]:
    """Fork for each request. Return in the fork that shall run it, with its output and its process group in place."""
    while True:
        message, descriptors, *_ = socket.recv_fds(requests, 2**20, 3)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
    requests.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *outputs, told = descriptors
    pid = os.fork()
    if pid:
        # The parent of the program has nothing to do but to say how it ended.
        for descriptor in (1, 2, *outputs):
            os.close(descriptor)
        os.write(told, b"%d\n" % pid)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(BrokenPipeError):
            os.write(told, b"%d\n" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    os.close(told)
    for descriptor, output in enumerate(outputs, 1):
        os.dup2(output, descriptor)
        os.close(output)
    request: dict[str, Any] = json.loads(message)
    return request


def _main(descriptor: int) -> None:
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    assert threading.active_count() == 1, "a process with threads cannot be forked"
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    request = _requested(socket.socket(fileno=descriptor))
    if request["own_group"]:
        os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.path[0] = os.getcwd()
    sys.argv[1:] = request["arguments"]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
