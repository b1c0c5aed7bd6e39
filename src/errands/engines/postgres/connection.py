"""Which database, and how a connection to it is made."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import asyncpg

from errands.engines.passwords import without_password
from errands.engines.postgres.failures import POOLED
from errands.engines.postgres.sql import QUERIES
from errands.errors import ConfigurationError, StorageError

DEFAULT_SCHEMA = "errands"
DEFAULT_POOL_SIZE = 10
#: One listens, one writes, one reads, and one more for retention, which may take its time.
MIN_POOL_SIZE = 4
#: More connections that write gain nothing: one writes while the others wait for the disk.
_MOST_LANES = 4

#: asyncpg has no types of its own.
Connection = Any

#: Said after connecting and not while: PgBouncer refuses parameters it does not know. The plans of our statements do
#: not depend on what the tables hold, so they are made once, and always by index; in its order, too, as a bitmap would
#: read all that match and sort them for one page. A machine that vanished must not keep its connections, and with one
#: of them the right to sweep, for the two hours after which systems notice by default.
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


class Options(NamedTuple):
    dsn: str
    #: The database as messages call it: without the password.
    name: str
    schema: str = DEFAULT_SCHEMA
    #: Connections of this process at most.
    pool_size: int = DEFAULT_POOL_SIZE
    connect_timeout: float = 5.0
    #: A statement that takes longer counts as a lost connection.
    command_timeout: float = 15.0
    #: How long a lost connection is tried to be made again before the caller hears of it.
    patience: float = 10.0

    @classmethod
    def parse(cls, url: str, **options: Any) -> Options:
        """From a storage URL. What is ours is taken out of it, the rest is asyncpg's. Raises `ConfigurationError`."""
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        schema = query.pop("schema", DEFAULT_SCHEMA)
        pool_size = _pool_size(query.pop("pool_size", str(DEFAULT_POOL_SIZE)))
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
        return cls(dsn, f"{database} at {place or query.get('host', 'localhost')}", schema, pool_size, **options)

    @property
    def lanes(self) -> int:
        """How many of the connections write."""
        return min((self.pool_size - 1) // 2, _MOST_LANES)

    @property
    def readers(self) -> int:
        """How many of them read; one more listens."""
        return self.pool_size - 1 - self.lanes

    @property
    def session(self) -> str:
        return _SESSION.format(schema=f'"{self.schema}"')


def _pool_size(text: str) -> int:
    if not text.isdecimal() or int(text) < MIN_POOL_SIZE:
        raise ConfigurationError(f"pool_size is {text!r}; it is a number from {MIN_POOL_SIZE} on")
    return int(text)


class _Connection(asyncpg.Connection):  # type: ignore[misc]
    """A connection that is given back to the pool as it is: nothing of ours has to be undone."""

    def get_reset_query(self) -> str:
        return ""


def arguments(options: Options) -> dict[str, Any]:
    """What asyncpg needs to connect, alone or for a pool."""
    return {
        "dsn": options.dsn,
        "timeout": options.connect_timeout,
        "command_timeout": options.command_timeout,
        "connection_class": _Connection,
        "max_cached_statement_lifetime": 0,
    }


async def connect(options: Options) -> Connection:
    """A connection of its own, outside of the pool."""
    connection = await asyncpg.connect(**arguments(options))
    try:
        await prepare(connection, options)
    except BaseException:
        connection.terminate()
        raise
    return connection


async def check_session(connection: Connection, options: Options) -> None:
    """Raises `StorageError` when a pooler gives the connection to others after each transaction: what a session has,
    such as the schema, what it listens to and its locks, would get lost or be somebody else's."""
    other = await connect(options)
    try:
        note = secrets.token_hex(4)
        await connection.fetchval(QUERIES["note_session"], note)
        await other.fetchval(QUERIES["note_session"], "")
        if await connection.fetchval(QUERIES["session_note"]) != note:
            raise StorageError(f"The database {options.name} {POOLED}")
    finally:
        await disconnect(other)


async def disconnect(connection: Connection) -> None:
    """Says goodbye. A server that has no time to hear it is no failure: what was to be done is done."""
    with suppress(Exception):
        await connection.close(timeout=1.0)


async def prepare(connection: Connection, options: Options) -> None:
    await connection.execute(options.session)
