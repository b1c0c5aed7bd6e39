"""The tables of a file: made and brought forward by opening it to write, and looked after by `errands db`."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib.resources import files
from pathlib import Path

from errands.engines.base import Schema
from errands.engines.sqlite.connection import SQLiteOptions, connect, explain
from errands.engines.statements import UNRELEASED, read_migrations
from errands.errors import StorageError

#: "erra": how `file` and errands itself recognise the database.
APPLICATION_ID = 0x65727261

_PRAGMAS = (
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cache_size = -32768",
    # 16 MB of log between checkpoints: pages that change again and again are copied back once.
    "PRAGMA wal_autocheckpoint = 4000",
    "PRAGMA journal_size_limit = 67108864",
    # Deleted content is overwritten where that costs no further write.
    "PRAGMA secure_delete = FAST",
)


def migrations() -> list[tuple[int, str]]:
    """Return the scripts in `migrations/` with their numbers, in order."""
    return read_migrations(files(__package__))


def open_writer(options: SQLiteOptions) -> sqlite3.Connection:
    """Return the connection that writes, with the schema of this release. Raises `StorageError`."""
    # A new file is its owner's alone, because it holds everybody's messages; SQLite gives the log the same rights. If
    # the file exists, its rights stay; SQLite itself says what is wrong with a path.
    with suppress(OSError):
        os.close(os.open(options.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    connection = connect(options)
    try:
        check_ownership(connection, options.path)
        _use_wal(connection, options)
        for pragma in (*_PRAGMAS, f"PRAGMA synchronous = {options.synchronous}"):
            connection.execute(pragma)
        with _transaction(connection, "IMMEDIATE"):
            # Read under the lock: another process may have been faster.
            version = _number(connection, "PRAGMA user_version")
            for number, script in migrations():
                if number > version:
                    for statement in _statements(script):
                        connection.execute(statement)
                    version = number
            # Written even when nothing has changed: a read-only file refuses no transaction, only a write.
            connection.execute(f"PRAGMA user_version = {version}")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.Error):
            raise explain(error, options.path) from error
        raise
    return connection


@contextmanager
def _transaction(connection: sqlite3.Connection, kind: str) -> Iterator[None]:
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        # Some errors have ended it already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def check_ownership(connection: sqlite3.Connection, path: str) -> int:
    """Return the schema's version, 0 for an empty file. Raises `StorageError` for a file that must not be touched."""
    # In one transaction: another process may make the tables at this very moment.
    with _transaction(connection, "DEFERRED"):
        application = _number(connection, "PRAGMA application_id")
        version = _number(connection, "PRAGMA user_version")
        tables = _number(connection, "SELECT count(*) FROM sqlite_master")
    if application == APPLICATION_ID:
        oldest, newest = migrations()[0][0], migrations()[-1][0]
        if 0 < version < oldest:
            raise StorageError(f"The database {path} has schema version {version}, {UNRELEASED}")
        if version > newest:
            raise StorageError(
                f"The database {path} has schema version {version}, but this version of errands knows only "
                f"{newest}: a newer errands wrote it. Upgrade errands, or name another file"
            )
    elif application or version or tables:
        raise StorageError(
            f"The database {path} belongs to another program; it was left as it is. "
            "Name a file of its own for errands; it is created when it does not exist"
        )
    return version


def _number(connection: sqlite3.Connection, query: str) -> int:
    number: int = connection.execute(query).fetchone()[0]
    return number


def _use_wal(connection: sqlite3.Connection, options: SQLiteOptions) -> None:
    deadline = time.monotonic() + options.busy_timeout
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            break
        except sqlite3.OperationalError as error:
            # Two processes create the file at once: here SQLite does not wait by itself.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise StorageError(
            f"The database {options.path} cannot use a write-ahead log on this file system. Use a local disk"
        )


def _statements(script: str) -> Iterator[str]:
    """Iterate over the statements of a script: `executescript` would end the transaction around them."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def make_directory(directory: Path) -> None:
    """Create the directory of a database file. Raises `StorageError`."""
    try:
        directory.mkdir(0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"The directory {directory} for the database cannot be made: {error.strerror}. "
            "Create it, or name a path that this user may write to"
        ) from error


class SQLiteSchema(Schema):
    def __init__(self, options: SQLiteOptions) -> None:
        self._options = options

    async def upgrade(self) -> tuple[int, int]:
        def upgrade() -> tuple[int, int]:
            before = self._version()
            make_directory(Path(self._options.path).parent)
            open_writer(self._options).close()
            return before, self._version()

        return await asyncio.to_thread(upgrade)

    async def check(self) -> int:
        version = await asyncio.to_thread(self._version)
        if not version:
            raise StorageError(
                f"The database {self._options.path} has no tables of errands yet. They are made when an agent is "
                "served on it, or by `errands db upgrade --storage URL`"
            )
        return version

    async def sql(self) -> str:
        version = await asyncio.to_thread(self._version)
        missing = [(number, script) for number, script in migrations() if number > version]
        if not missing:
            return ""
        marks = f"PRAGMA user_version = {missing[-1][0]};\nPRAGMA application_id = {APPLICATION_ID};\n"
        return "BEGIN;\n" + "\n".join(script for _, script in missing) + marks + "COMMIT;\n"

    def _version(self) -> int:
        """Return 0 without a file, or for an empty one. Raises `StorageError` for another program's file."""
        path = self._options.path
        if not Path(path).exists():
            return 0
        try:
            with closing(sqlite3.connect(path, timeout=self._options.busy_timeout)) as connection:
                connection.execute("PRAGMA query_only = ON")
                return check_ownership(connection, path)
        except sqlite3.Error as error:
            raise explain(error, path) from error
