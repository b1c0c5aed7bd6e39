"""Opening the file: whose it is, which schema it has, and how SQLite is to treat it."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import quote

from errands.engines.sqlite import sql
from errands.engines.sqlite.failures import FileGoneError, explain
from errands.errors import StorageError

#: "erra": how `file` and we ourselves recognise the database.
APPLICATION_ID = 0x65727261

#: Statements differ by their number of rows, so there are many; preparing one costs more than running it.
_CACHED_STATEMENTS = 512

_WRITER_PRAGMAS = (
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cache_size = -32768",
    # 16 MB of log between checkpoints: pages that change again and again are copied back once.
    "PRAGMA wal_autocheckpoint = 4000",
    "PRAGMA journal_size_limit = 67108864",
    # Deleted content is overwritten where that costs no further write.
    "PRAGMA secure_delete = FAST",
)


class Options(NamedTuple):
    path: str
    synchronous: Literal["NORMAL", "FULL"]
    busy_timeout: float

    def absolute(self) -> Options:
        """The same, independent of the directory that the process is in."""
        return self._replace(path=os.path.abspath(self.path))


def open_writer(options: Options) -> sqlite3.Connection:
    """The connection that writes, with the schema of this version. Raises `StorageError`."""
    _make_private(options.path)
    connection = _connect(options)
    try:
        check_ownership(connection, options.path)
        _use_wal(connection, options)
        for pragma in _WRITER_PRAGMAS:
            connection.execute(pragma)
        connection.execute(f"PRAGMA synchronous = {options.synchronous}")
        _migrate(connection)
    except sqlite3.Error as error:
        connection.close()
        raise explain(error, options.path) from error
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(options: Options) -> sqlite3.Connection:
    """A connection that cannot write. `open_writer` must have succeeded before."""
    connection = _connect(options, existing=True)
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


class ServedFile:
    """The database file and the log and index beside it, as they were when they were opened.

    A connection goes on writing to a file that has no name any more, and what it writes is lost with the process.
    """

    def __init__(self, path: str) -> None:
        self._known = {name: _identity(name) for name in (path, f"{path}-wal", f"{path}-shm")}

    def check(self) -> None:
        """Raises `FileGoneError` unless all of them are still there."""
        for name, known in self._known.items():
            if _identity(name) != known:
                raise FileGoneError(
                    f"The file {name} was deleted, moved or replaced while it was in use, and what is written now "
                    "would be lost. Put it back, or restart this process to use the file that is there now"
                )


def _identity(path: str) -> tuple[int, ...]:
    """The inode and device of a file; empty when there is no such file."""
    try:
        return os.stat(path)[1:3]
    except OSError:
        return ()


def _connect(options: Options, *, existing: bool = False) -> sqlite3.Connection:
    """Connects to the file; with `existing`, makes none where there is none."""
    try:
        connection = sqlite3.connect(
            f"file:{quote(options.path)}?mode=rw" if existing else options.path,
            timeout=options.busy_timeout,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_CACHED_STATEMENTS,
            uri=existing,
        )
        # In a damaged file a text may not be UTF-8. That must not fail the whole query.
        connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        return connection
    except sqlite3.Error as error:
        raise explain(error, options.path) from error


def _make_private(path: str) -> None:
    """A new file is its owner's alone, for it holds what everybody has said; SQLite gives the log the same rights."""
    # It may be there already, with rights that somebody chose; and SQLite says what is wrong with a path.
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _number(connection: sqlite3.Connection, query: str) -> int:
    number: int = connection.execute(query).fetchone()[0]
    return number


def check_ownership(connection: sqlite3.Connection, path: str) -> int:
    """The schema's version, 0 when there is none. Raises `StorageError` for what this release must not touch."""
    # In one transaction: another process may make the tables at this very moment.
    connection.execute("BEGIN")
    try:
        application = _number(connection, "PRAGMA application_id")
        version = _number(connection, "PRAGMA user_version")
        tables = _number(connection, "SELECT count(*) FROM sqlite_master")
    finally:
        # Some errors have ended it already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    if application == APPLICATION_ID:
        newest = sql.migrations()[-1][0]
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


def _use_wal(connection: sqlite3.Connection, options: Options) -> None:
    deadline = time.monotonic() + options.busy_timeout
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            break
        except sqlite3.OperationalError as error:
            # Two processes that create the file at once: here SQLite does not wait by itself.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise StorageError(
            f"The database {options.path} cannot use a write-ahead log on this file system. Use a local disk"
        )


def _migrate(connection: sqlite3.Connection) -> None:
    """Brings the schema up to date in one transaction; also the proof that the file can be written."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Looked at again under the lock: another process may have been faster.
        version = _number(connection, "PRAGMA user_version")
        for number, script in sql.migrations():
            if number > version:
                for statement in sql.statements(script):
                    connection.execute(statement)
                version = number
        # Written even when nothing has changed: a file that is read-only refuses no transaction, only a write.
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def make_directory(directory: Path) -> None:
    try:
        directory.mkdir(0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"The directory {directory} for the database cannot be made: {error.strerror}. "
            "Create it, or name a path that this user may write to"
        ) from error
