"""Connections to the database: which one, how they are made, what their errors mean, and the pool that reads."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import asyncpg

from errands.engines.connection import without_password
from errands.errors import ConfigurationError, ErrandsError, StorageError

_T = TypeVar("_T")

DEFAULT_SCHEMA = "errands"
DEFAULT_POOL_SIZE = 10
#: One listens, one writes, one reads, and one more for retention, which may take its time.
MIN_POOL_SIZE = 4
#: More connections that write gain nothing: one writes while the others wait for the disk.
_MOST_LANES = 4

#: Seconds before a broken connection is made again: at first, and at most.
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
#: Seconds between two tries to read on broken connections.
_READ_PAUSE = 0.05

#: asyncpg has no types of its own.
Connection = Any

#: Sent after connecting and not as parameters of the connection: PgBouncer refuses those that it does not know. The
#: plans of our statements do not depend on what the tables hold, so they are made once, and always by index; no
#: bitmaps, which would read all matching tasks and sort them for one page. A machine that vanished must not keep its
#: connections, and with one of them the lock for sweeping, for the two hours after which systems notice by default.
_SESSION = """
SET search_path TO {schema};
SET idle_in_transaction_session_timeout TO '3s';
SET lock_timeout TO '2s';
SET tcp_keepalives_idle TO 30;
SET tcp_keepalives_interval TO 10;
SET tcp_keepalives_count TO 3;
SET jit TO off;
SET enable_seqscan TO off;
SET enable_bitmapscan TO off;
SET plan_cache_mode TO force_generic_plan
"""


#: The explanation of a server that gives a connection to others between two transactions.
POOLED = (
    "is behind a pooler that gives a connection to others after each transaction. Use one in session mode "
    "(PgBouncer: pool_mode = session), or the server itself"
)
READ_ONLY = "is read-only: a standby, perhaps. Name the primary in the storage URL"

#: By SQLSTATE: what happened and what to do, to be read after the database's name.
_EXPLANATIONS = {
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
        "does not allow this user to do that. Have a user who may do it run `errands db upgrade --storage URL`, and "
        "grant this user USAGE on the schema, SELECT, INSERT, UPDATE and DELETE on its tables, USAGE on its sequence"
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
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InternalClientError,
)


def is_lost(error: Exception) -> bool:
    """Return whether the connection is the cause, so that the same may succeed on another one."""
    if isinstance(error, ssl.SSLError):
        return False
    # asyncpg says so when it is asked to use a connection that was closed meanwhile.
    return isinstance(error, _LOST) or type(error) is asyncpg.InterfaceError


def is_in_the_way(error: Exception) -> bool:
    """Return whether another transaction is the cause, so that the same may succeed later."""
    conflicts = asyncpg.SerializationError, asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError
    return isinstance(error, conflicts)


def is_read_only(error: Exception) -> bool:
    """Return whether the server cannot be written to; another connection may lead to one that can."""
    return isinstance(error, asyncpg.ReadOnlySQLTransactionError)


def is_crowded(error: object) -> bool:
    """Return whether the server has no room for another connection; existing ones continue working."""
    return isinstance(error, asyncpg.TooManyConnectionsError)


def explain(error: Exception, name: str) -> StorageError:
    """Return the `StorageError` for what went wrong with the database called `name`."""
    if isinstance(error, StorageError):
        return error
    explanation = _EXPLANATIONS.get(getattr(error, "sqlstate", None) or "")
    if explanation is None:
        explanation = "refused an operation; nothing was changed"
        if isinstance(error, TimeoutError):
            explanation = "does not answer. Check that the server runs and that the network lets this process through"
        elif is_lost(error):
            explanation = "cannot be reached. Check that the server runs, and the host and port in the storage URL"
    # asyncpg adds hints that are meant for programmers.
    text = str(error).partition("\nHINT:")[0]
    failure = StorageError(f"The database {name} {explanation} ({type(error).__name__}: {text})")
    failure.__cause__ = error
    return failure


class PostgresOptions(NamedTuple):
    dsn: str
    #: The database as messages call it: without the password.
    name: str
    schema: str = DEFAULT_SCHEMA
    #: Connections of this process at most.
    pool_size: int = DEFAULT_POOL_SIZE
    connect_timeout: float = 5.0
    #: A statement that takes longer counts as a lost connection.
    command_timeout: float = 15.0
    #: Seconds for which a lost connection is made again before the caller gets an error.
    patience: float = 10.0

    @classmethod
    def parse(cls, url: str, **options: Any) -> PostgresOptions:
        """Read a storage URL: the options of errands are taken out of it, the rest is passed to asyncpg.

        Raises `ConfigurationError`.
        """
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        schema = query.pop("schema", DEFAULT_SCHEMA)
        size = query.pop("pool_size", str(DEFAULT_POOL_SIZE))
        if not size.isdecimal() or int(size) < MIN_POOL_SIZE:
            raise ConfigurationError(f"pool_size is {size!r}; it must be a number, at least {MIN_POOL_SIZE}")
        if not schema or '"' in schema or "\0" in schema or len(schema.encode()) > 63:
            raise ConfigurationError(f"schema is {schema!r}; it is a name of at most 63 bytes")
        place = unquote(parts.netloc.rpartition("@")[2])
        try:
            for host in place.split(","):
                _ = urlsplit(f"//{host}").port
        except ValueError:
            raise ConfigurationError(
                f"storage {without_password(url)!r}: write postgresql://user:password@host:port/database; "
                "in a password characters such as / and @ are written with a percent sign: %2F and %40"
            ) from None
        database = unquote(parts.path.removeprefix("/")) or query.get("database") or "(the user's own)"
        dsn = f"postgresql://{parts.netloc}{parts.path}" + (f"?{urlencode(query)}" if query else "")
        return cls(dsn, f"{database} at {place or query.get('host', 'localhost')}", schema, int(size), **options)

    @property
    def lanes(self) -> int:
        """The number of connections that write."""
        return min((self.pool_size - 1) // 2, _MOST_LANES)

    @property
    def readers(self) -> int:
        """The number of connections that read; one more listens."""
        return self.pool_size - 1 - self.lanes

    @property
    def session(self) -> str:
        return _SESSION.format(schema=f'"{self.schema}"')


class _Connection(asyncpg.Connection):  # type: ignore[misc]
    """A connection that returns to the pool as it is: nothing that errands does has to be undone."""

    def get_reset_query(self) -> str:
        return ""


def _arguments(options: PostgresOptions) -> dict[str, Any]:
    """Return what asyncpg needs to connect, alone or for a pool."""
    return {
        "dsn": options.dsn,
        "timeout": options.connect_timeout,
        "command_timeout": options.command_timeout,
        "connection_class": _Connection,
        "max_cached_statement_lifetime": 0,
    }


async def connect(options: PostgresOptions) -> Connection:
    """Return a new connection outside of the pool."""
    connection = await asyncpg.connect(**_arguments(options))
    try:
        await connection.execute(options.session)
    except BaseException:
        connection.terminate()
        raise
    return connection


async def disconnect(connection: Connection) -> None:
    """Close a connection. A server that does not answer is not an error: what was to be done is done."""
    with suppress(Exception):
        await connection.close(timeout=1.0)


class ReaderPool:
    """The connections that read: readers do not wait for the writer."""

    def __init__(self, options: PostgresOptions) -> None:
        self._options = options
        self._closing = False
        self._pool: Any = asyncpg.create_pool(
            # With a minimum the pool would try to connect, and complain, as long as the server is away.
            min_size=0,
            max_size=options.readers,
            init=lambda connection: connection.execute(options.session),
            **_arguments(options),
        )

    async def start(self) -> None:
        await self._pool
        # Connect now, or the first readers would wait for it.
        async with AsyncExitStack() as stack:
            for _ in range(min(2, self._options.readers)):
                await stack.enter_async_context(self._pool.acquire())

    async def call(self, read: Callable[[Connection], Awaitable[_T]], patience: float | None = None) -> _T:
        """Call a function, again when a connection breaks, for at most `patience` seconds. Raises `StorageError`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self._options.patience if patience is None else patience)
        while True:
            try:
                async with self._pool.acquire() as connection:
                    return await read(connection)
            except ErrandsError:
                raise
            except Exception as error:
                may_pass = is_lost(error) or is_in_the_way(error) or is_crowded(error)
                if self._closing or not may_pass or loop.time() > deadline:
                    raise explain(error, self._options.name) from error
            await asyncio.sleep(_READ_PAUSE)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Provide a connection for several steps. Raises `StorageError` when one of them fails."""
        try:
            async with self._pool.acquire() as connection:
                yield connection
        except ErrandsError:
            raise
        except Exception as error:
            raise explain(error, self._options.name) from error

    async def renew(self) -> None:
        """Have all connections made again when they are next used: their address may lead to another server by now."""
        await self._pool.expire_connections()

    async def close(self) -> None:
        self._closing = True
        try:
            async with asyncio.timeout(5.0):
                await self._pool.close()
        except Exception:
            self._pool.terminate()
