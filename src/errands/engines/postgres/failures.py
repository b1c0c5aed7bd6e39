"""What PostgreSQL's errors mean to the person who has to do something about them."""

from __future__ import annotations

import ssl

import asyncpg

from errands.errors import StorageError

#: What is said of a server that takes connections away between two transactions.
POOLED = (
    "is behind a pooler that gives a connection to others after each transaction. Use one in session mode "
    "(PgBouncer: pool_mode = session), or the server itself"
)
READ_ONLY = "is read-only: a standby, perhaps. Name the primary in the storage URL"

#: By SQLSTATE: what happened and what to do, to be read after the database's name.
_SENTENCES = {
    "28P01": "refuses the password or the user. Check both in the storage URL; PGPASSWORD and .pgpass are read, too",
    "28000": "refuses this user. Check the user in the storage URL and the server's pg_hba.conf",
    "3D000": "does not exist. Create it with `createdb NAME`; errands makes the tables itself",
    "3F000": "has no schema of this name. Run `errands db upgrade --storage URL`",
    "53300": (
        "has no connection left. Raise `max_connections` of the server, lower `pool_size` in the storage URL, "
        "or put PgBouncer in session mode before it"
    ),
    "53100": "cannot grow: the disk is full. Free some space; nothing was half-written",
    "53200": "is out of memory. Give the server more, or lower its `work_mem`",
    "25006": READ_ONLY,
    "42501": (
        "does not allow this user to do that. Let somebody who may run `errands db upgrade --storage URL`, and grant "
        "this user USAGE on the schema, and SELECT, INSERT, UPDATE and DELETE on its tables, USAGE on its sequence"
    ),
    "42704": "does not know an option of the storage URL. Leave it out",
    "42P01": "lacks a table. Run `errands db check --storage URL`",
    "42703": "lacks a column. Run `errands db check --storage URL`",
    "55P03": "keeps a row locked: another program holds a transaction open. Find it in pg_stat_activity",
    "57P03": "is starting up or shutting down. Try again in a moment",
    "42P05": POOLED,
    "26000": POOLED,
    "57014": "canceled the statement: it took longer than the server allows. Raise its `statement_timeout`",
}

#: The connection is gone, or the server is on its way down or up: another try may succeed.
_LOST = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InternalClientError,
)

#: Another transaction was in the way; the same again may succeed.
_IN_THE_WAY = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError)


def is_lost(error: Exception) -> bool:
    """Whether the connection is to blame, so that the same may succeed on another one."""
    if isinstance(error, ssl.SSLError):
        return False
    # asyncpg says so when it is asked to use a connection that was closed meanwhile.
    return isinstance(error, _LOST) or type(error) is asyncpg.InterfaceError


def is_in_the_way(error: Exception) -> bool:
    """Whether another transaction is to blame, so that the same may succeed later."""
    return isinstance(error, _IN_THE_WAY)


def is_read_only(error: Exception) -> bool:
    """Whether the connection leads to a server that cannot be written to, so that another one may lead elsewhere."""
    return isinstance(error, asyncpg.ReadOnlySQLTransactionError)


def is_crowded(error: object) -> bool:
    """Whether the server has no room for another connection; those that there are go on working."""
    return isinstance(error, asyncpg.TooManyConnectionsError)


def explain(error: Exception, name: str) -> StorageError:
    """The `StorageError` for whatever went wrong with the database called `name`."""
    if isinstance(error, StorageError):
        return error
    sentence = _SENTENCES.get(getattr(error, "sqlstate", None) or "")
    if sentence is None:
        sentence = _unreachable(error) if is_lost(error) else "refused an operation; nothing was changed"
    # asyncpg adds hints of its own, which are meant for programmers.
    told = str(error).partition("\nHINT:")[0]
    failure = StorageError(f"The database {name} {sentence} ({type(error).__name__}: {told})")
    failure.__cause__ = error
    return failure


def _unreachable(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "does not answer. Check that the server runs and that the network lets this process through"
    return "cannot be reached. Check that the server runs, and the host and port in the storage URL"
