"""The tables: made in an empty database, upgraded on request, and compared with what this release knows."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from itertools import takewhile
from typing import NamedTuple, TypeVar

from errands.engines.base import Schema
from errands.engines.postgres.connection import (
    POOLED,
    Connection,
    PostgresOptions,
    connect,
    disconnect,
    explain,
    is_in_the_way,
)
from errands.engines.postgres.queries import QUERIES
from errands.engines.statements import UNRELEASED, read_migrations
from errands.errors import StorageError

_T = TypeVar("_T")

#: How often an upgrade is tried while transactions block it, and the seconds in between, in which these continue.
_TRIES, _PAUSE = 40, 0.5
#: Seconds that one statement of an upgrade may take.
_LONGEST = 86_400.0

_OLDEST = re.compile(r"^-- oldest: (\d+)$", re.MULTILINE)
_INDEX = re.compile(r"CREATE (?:UNIQUE )?INDEX CONCURRENTLY (\w+) [^;]+")


class Migration(NamedTuple):
    version: int
    #: The oldest schema version whose code can still run on this one.
    oldest: int
    script: str

    @property
    def indexes(self) -> dict[str, str]:
        """The statements that build indexes while others write, by the names of the indexes.

        A migration that has such statements has no others, and does not run in a transaction.
        """
        return {match[1]: match[0] for match in _INDEX.finditer(self.script)}

    @property
    def at_once(self) -> str:
        """The script for tables that are not in use yet."""
        return self.script.replace("INDEX CONCURRENTLY", "INDEX")

    @property
    def applied(self) -> str:
        """The statement that notes that it was applied."""
        return _filled("schema_applied", self.version, self.oldest)


def migrations() -> list[Migration]:
    """Return the scripts in `migrations/`, in order."""
    found: list[Migration] = []
    for version, script in read_migrations(files(__package__)):
        oldest = _OLDEST.search(script)
        assert oldest is not None, f"migration {version} does not name the oldest code that can run on it"
        found.append(Migration(version, int(oldest[1]), script))
    return found


class SchemaBusyError(StorageError):
    """Another process is changing the schema."""


class SchemaState(NamedTuple):
    """What is in the database."""

    has_schema: bool
    #: 0 when there are no tables of errands.
    version: int
    #: The oldest schema version whose code may use it.
    oldest: int

    @property
    def missing(self) -> list[Migration]:
        return [migration for migration in migrations() if migration.version > self.version]

    @property
    def together(self) -> list[Migration]:
        """The first missing migrations that may be in one transaction: in an empty database all of them."""
        return list(takewhile(lambda migration: self.version == 0 or not migration.indexes, self.missing))


async def check_session(connection: Connection, options: PostgresOptions) -> None:
    """Raises `StorageError` when a pooler gives the connection to others after each transaction.

    The schema of the session, what it listens to and its locks would get lost, or be those of another program.
    """
    other = await connect(options)
    try:
        note = secrets.token_hex(4)
        await connection.fetchval(QUERIES["note_session"], note)
        await other.fetchval(QUERIES["note_session"], "")
        if await connection.fetchval(QUERIES["session_note"]) != note:
            raise StorageError(f"The database {options.name} {POOLED}")
    finally:
        await disconnect(other)


async def look(connection: Connection, options: PostgresOptions) -> SchemaState:
    has_schema, is_ours, is_used = await connection.fetchrow(QUERIES["schema_exists"], options.schema)
    if is_used and not is_ours:
        raise StorageError(
            f"The schema {options.schema} of the database {options.name} belongs to another program; it was left as it "
            "is. Name another one with `?schema=NAME` in the storage URL"
        )
    found = await connection.fetchrow(QUERIES["schema_version"]) if is_ours else None
    state = SchemaState(has_schema, *(found or (0, 0)))
    if 0 < state.version < migrations()[0].version:
        raise StorageError(f"The database {options.name} has schema version {state.version}, {UNRELEASED}")
    return state


def check(state: SchemaState, options: PostgresOptions) -> None:
    """Raises `StorageError` when this release cannot use the tables."""
    newest = migrations()[-1].version
    if state.version == 0:
        raise StorageError(
            f"The database {options.name} has no tables of errands yet. Run `errands db upgrade --storage URL`"
        )
    if state.version < newest:
        raise StorageError(
            f"The database {options.name} has schema version {state.version}, but this release needs {newest}. "
            "Run `errands db upgrade --storage URL`; replicas of the release before keep working during it"
        )
    if state.oldest > newest:
        raise StorageError(
            f"The database {options.name} has schema version {state.version}, which only releases that know "
            f"version {state.oldest} can use; this one knows {newest}. Upgrade errands"
        )


async def ensure_schema(connection: Connection, options: PostgresOptions) -> None:
    """Make the tables in an empty database. Raises `StorageError` when this release cannot use those that exist."""
    state = await look(connection, options)
    if state.version == 0:
        await _apply(connection, options, only_when_empty=True)
        state = await look(connection, options)
    check(state, options)


async def _apply(connection: Connection, options: PostgresOptions, *, only_when_empty: bool = False) -> SchemaState:
    """Apply the missing migrations, and return what was in the database before."""
    before = await _try(lambda: _apply_once(connection, options, only_when_empty))
    while not only_when_empty and (missing := (await look(connection, options)).missing):
        if missing[0].indexes:
            await _try(partial(_build_indexes, options, missing[0]))
        else:
            await _try(lambda: _apply_once(connection, options, only_when_empty))
    return before


async def _try(step: Callable[[], Awaitable[_T]]) -> _T:
    """Try a step again while others are in the way: replicas for a moment, another program's transaction for longer."""
    for _ in range(_TRIES - 1):
        try:
            return await step()
        except Exception as error:
            if not (is_in_the_way(error) or isinstance(error, SchemaBusyError)):
                raise
        await asyncio.sleep(_PAUSE)
    return await step()


async def _lock(connection: Connection, query: str, options: PostgresOptions) -> None:
    if not await connection.fetchval(QUERIES[query], options.schema):
        raise SchemaBusyError(
            f"Another process upgrades the tables of the database {options.name}. Try again when it is done"
        )


async def _apply_once(connection: Connection, options: PostgresOptions, only_when_empty: bool) -> SchemaState:
    """Apply, in one transaction, the missing migrations up to the first one that must not be in a transaction."""
    async with connection.transaction():
        await _lock(connection, "schema_lock", options)
        await connection.fetch(QUERIES["schema_patience"], True)
        await connection.execute(QUERIES["schema_short_waits"])
        # Read under the lock: another process may have been faster.
        state = await look(connection, options)
        if not state.has_schema:
            await connection.execute(f'CREATE SCHEMA "{options.schema}"')
        if state.version and only_when_empty:
            return state
        if state.version and state.together:
            await connection.execute(QUERIES["schema_pause"])
        for migration in state.together:
            await connection.execute(migration.at_once)
            await connection.execute(QUERIES["schema_applied"], migration.version, migration.oldest)
        return state


async def _build_indexes(options: PostgresOptions, migration: Migration) -> None:
    """Build indexes while others write. When it is called again after a failure, it continues where it was."""
    # On a connection of its own, with a longer timeout; the lock ends with it.
    connection = await connect(options._replace(command_timeout=_LONGEST))
    try:
        await _lock(connection, "schema_lock_long", options)
        if migration not in (await look(connection, options)).missing:
            return
        await connection.fetch(QUERIES["schema_patience"], False)
        await connection.execute(QUERIES["schema_long_waits"])
        for name, statement in migration.indexes.items():
            is_valid = await connection.fetchval(QUERIES["index_is_valid"], name)
            if is_valid is False:
                await connection.execute(f"DROP INDEX CONCURRENTLY {name}")
            if not is_valid:
                await connection.execute(statement)
        await connection.execute(QUERIES["schema_applied"], migration.version, migration.oldest)
    finally:
        await disconnect(connection)


class PostgresSchema(Schema):
    def __init__(self, options: PostgresOptions) -> None:
        self._options = options

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        try:
            # Building an index of many tasks takes long.
            connection = await connect(self._options._replace(command_timeout=_LONGEST))
            try:
                await check_session(connection, self._options)
                yield connection
            finally:
                await disconnect(connection)
        except Exception as error:
            raise explain(error, self._options.name) from error

    async def upgrade(self) -> tuple[int, int]:
        async with self._connection() as connection:
            # This connection waits while indexes are built on another one.
            await connection.fetch(QUERIES["schema_patience"], False)
            before = await _apply(connection, self._options)
            after = await look(connection, self._options)
            check(after, self._options)
            return before.version, after.version

    async def check(self) -> int:
        async with self._connection() as connection:
            state = await look(connection, self._options)
            check(state, self._options)
            return state.version

    async def sql(self) -> str:
        async with self._connection() as connection:
            state = await look(connection, self._options)
        lines: list[str] = []
        schema = f'"{self._options.schema}"'
        while state.missing:
            together = state.together
            if together:
                lines += ["BEGIN;"] + ([] if state.has_schema else [f"CREATE SCHEMA {schema};"])
                lines += [f"SET LOCAL search_path TO {schema};", _filled("schema_patience", "true")]
                lines += [_filled("schema_short_waits")] + ([_filled("schema_pause")] if state.version else [])
                for migration in together:
                    lines += [migration.at_once.rstrip(), migration.applied]
                lines.append("COMMIT;")
            else:
                migration = state.missing[0]
                lines.append("-- Not in a transaction, so that others can write. If it fails, run it again from here.")
                lines += [f"SET search_path TO {schema};", _filled("schema_patience", "false")]
                lines.append(_filled("schema_long_waits"))
                for name, statement in migration.indexes.items():
                    lines += [f"DROP INDEX CONCURRENTLY IF EXISTS {name};", f"{statement};"]
                lines.append(migration.applied)
            state = SchemaState(has_schema=True, version=migration.version, oldest=state.oldest)
        return "".join(f"{line}\n" for line in lines)


def _filled(query: str, *values: object) -> str:
    """Return a statement with its parameters filled in."""
    statement = QUERIES[query]
    for number, value in enumerate(values, 1):
        statement = statement.replace(f"${number}", str(value))
    return f"{statement};"
