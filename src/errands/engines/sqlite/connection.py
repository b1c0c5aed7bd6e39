"""Connections to the file: how they are opened, what their errors mean, and the threads that read."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Literal, NamedTuple, TypeVar
from urllib.parse import quote

from errands.errors import StorageError

_T = TypeVar("_T")

READERS = 4
#: Statements differ by their number of rows, so there are many; preparing one costs more than running it.
_CACHED_STATEMENTS = 512

#: By primary result code: what happened and what to do, to be read after the file's name.
_EXPLANATIONS = {
    sqlite3.SQLITE_BUSY: (
        "is locked: another process has held it for longer than the busy timeout. "
        "Find the program that keeps a transaction open (a backup, a database browser), or raise `busy_timeout`"
    ),
    sqlite3.SQLITE_LOCKED: "is locked by another connection. Close the program that holds it and try again",
    sqlite3.SQLITE_READONLY: (
        "cannot be written: the file, its directory or the file system is read-only for this user. "
        "Give this user write permission to the file and to the directory around it"
    ),
    sqlite3.SQLITE_PERM: "cannot be used: this user lacks the permission. Check the file's owner and mode",
    sqlite3.SQLITE_CANTOPEN: (
        "cannot be opened: the directory is missing, the path is a directory, or this user may not write there. "
        "Check the path and its permissions"
    ),
    sqlite3.SQLITE_NOTADB: (
        "is not a SQLite database, or its first bytes were overwritten. "
        "Name another file, or restore this one from a backup"
    ),
    sqlite3.SQLITE_CORRUPT: (
        "is damaged. Restore it from a backup, or save what can be read with `sqlite3 FILE .recover | sqlite3 NEW_FILE`"
    ),
    sqlite3.SQLITE_FULL: "cannot grow: the disk or the quota is full. Free some space; nothing was half-written",
    sqlite3.SQLITE_IOERR: "could not be read or written: the disk reported an error. Check the disk and its mount",
    sqlite3.SQLITE_PROTOCOL: (
        "cannot be locked: its file system does not support the locks SQLite needs. Use a local disk"
    ),
}


class FileError(StorageError):
    """The file is the cause, so that another try with less to write would fail just the same."""


def explain(error: Exception, path: str) -> StorageError:
    """Return the `StorageError` for what went wrong with the file at `path`."""
    if isinstance(error, StorageError):
        return error
    code = getattr(error, "sqlite_errorcode", None)
    explanation = _EXPLANATIONS.get((code or 0) & 0xFF, "refused an operation; nothing was changed")
    # The subclasses of DatabaseError are about what was passed; only these two are about the file.
    is_about_file = isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError
    kind = FileError if is_about_file else StorageError
    failure = kind(f"The database {path} {explanation} ({type(error).__name__}: {error})")
    failure.__cause__ = error
    return failure


class SQLiteOptions(NamedTuple):
    path: str
    synchronous: Literal["NORMAL", "FULL"]
    busy_timeout: float

    def absolute(self) -> SQLiteOptions:
        """Return the same options, independent of the directory that the process is in."""
        return self._replace(path=os.path.abspath(self.path))


class ServedFile:
    """The database file and the log and index beside it, as they were when they were opened.

    A connection continues to write to a file that was deleted, and what it writes is lost with the process.
    """

    def __init__(self, path: str) -> None:
        self._known = {name: _identity(name) for name in (path, f"{path}-wal", f"{path}-shm")}

    def check(self) -> None:
        """Raises `FileError` unless all of them are still there."""
        for name, known in self._known.items():
            if _identity(name) != known:
                raise FileError(
                    f"The file {name} was deleted, moved or replaced while it was in use, and what is written now "
                    "would be lost. Put it back, or restart this process to use the file that is there now"
                )


def _identity(path: str) -> tuple[int, ...]:
    """Return the inode and device of a file; empty when it does not exist."""
    try:
        return os.stat(path)[1:3]
    except OSError:
        return ()


def connect(options: SQLiteOptions, *, existing: bool = False) -> sqlite3.Connection:
    """Connect to the file; with `existing`, fail rather than create it."""
    try:
        connection = sqlite3.connect(
            f"file:{quote(options.path)}?mode=rw" if existing else options.path,
            timeout=options.busy_timeout,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_CACHED_STATEMENTS,
            uri=existing,
        )
    except sqlite3.Error as error:
        raise explain(error, options.path) from error
    # In a damaged file a text may not be UTF-8. That must not fail the whole query.
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    return connection


def open_reader(options: SQLiteOptions) -> sqlite3.Connection:
    """Return a connection that cannot write. `open_writer` must have succeeded before."""
    connection = connect(options, existing=True)
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


class ReaderThreads:
    """A few threads that read, each with its own connection: readers wait neither for the writer nor for each other."""

    def __init__(self, options: SQLiteOptions, file: ServedFile) -> None:
        self._options = options
        self._file = file
        self._executor = ThreadPoolExecutor(READERS, thread_name_prefix="errands-sqlite-reader")
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []

    def submit(self, read: Callable[[sqlite3.Connection], _T]) -> asyncio.Future[_T]:
        """Call a function in one of the threads. Raises `StorageError` when the file cannot be read."""

        def call() -> _T:
            try:
                return read(self._connection())
            except sqlite3.Error as error:
                self._file.check()
                raise explain(error, self._options.path) from error

        return asyncio.get_running_loop().run_in_executor(self._executor, call)

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            try:
                connection = open_reader(self._options)
                self._connections.append(connection)
            finally:
                # It must not read from another file than the one that is written.
                self._file.check()
            self._local.connection = connection
        return connection

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._executor.shutdown)
        for connection in self._connections:
            connection.close()
