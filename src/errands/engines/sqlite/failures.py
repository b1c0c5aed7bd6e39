"""What SQLite's errors mean to the person who has to do something about them."""

from __future__ import annotations

import sqlite3

from errands.errors import StorageError

#: By primary result code: what happened and what to do, to be read after the file's name.
_SENTENCES = {
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


class FileGoneError(StorageError):
    """The file was deleted, moved or replaced while it was in use."""


def explain(error: Exception, path: str) -> StorageError:
    """The `StorageError` for whatever went wrong with the file at `path`."""
    code = getattr(error, "sqlite_errorcode", None)
    sentence = _SENTENCES.get(code & 0xFF) if code is not None else None
    if sentence is None:
        sentence = "refused an operation; nothing was changed"
    return StorageError(f"The database {path} {sentence} ({type(error).__name__}: {error})")


def concerns_the_file(error: Exception) -> bool:
    """Whether the file is to blame, so that another try with less to write would fail just the same."""
    # The subclasses of DatabaseError are about what was passed; only these two are about the file.
    return isinstance(error, sqlite3.OperationalError | FileGoneError) or type(error) is sqlite3.DatabaseError
