"""The tables: made in an empty database, brought forward on request, and compared with what this release knows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import takewhile
from typing import NamedTuple, TypeVar

from errands.engines.base import Schema
from errands.engines.postgres.connection import Connection, Options, check_session, connect, disconnect
from errands.engines.postgres.failures import explain, is_in_the_way
from errands.engines.postgres.sql import QUERIES, Migration, migrations
from errands.errors import StorageError

_T = TypeVar("_T")

#: How often an upgrade is tried while others are in the way, and the seconds in between, in which they go on.
_TRIES, _PAUSE = 40, 0.5
#: Seconds that one statement of an upgrade may take.
_LONGEST = 86_400.0


class SchemaBusyError(StorageError):
    """Another process is changing the schema."""

    def __init__(self, options: Options) -> None:
        super().__init__(
            f"Another process upgrades the tables of the database {options.name}. Try again when it is done"
        )


class State(NamedTuple):
    """How the database stands."""

    has_schema: bool
    #: 0: there are no tables of ours.
    version: int
    #: The oldest schema version whose code may use it.
    oldest: int


async def look(connection: Connection, options: Options) -> State:
    has_schema, is_ours, is_used = await connection.fetchrow(QUERIES["schema_exists"], options.schema)
    if is_used and not is_ours:
        raise StorageError(
            f"The schema {options.schema} of the database {options.name} belongs to another program; it was left as it "
            "is. Name another one with `?schema=NAME` in the storage URL"
        )
    found = await connection.fetchrow(QUERIES["schema_version"]) if is_ours else None
    return State(has_schema, *(found or (0, 0)))


def check(state: State, options: Options) -> None:
    """Raises `StorageError` when this release cannot use the tables."""
    newest = migrations()[-1].version
    if state.version == 0:
        raise StorageError(
            f"The database {options.name} has no tables of errands yet. Run `errands db upgrade --storage URL`"
        )
    if state.version < newest:
        raise StorageError(
            f"The database {options.name} has schema version {state.version}, but this release needs {newest}. "
            "Run `errands db upgrade --storage URL`; replicas of the release before go on meanwhile"
        )
    if state.oldest > newest:
        raise StorageError(
            f"The database {options.name} has schema version {state.version}, which only releases that know "
            f"version {state.oldest} can use; this one knows {newest}. Upgrade errands"
        )


async def ensure_schema(connection: Connection, options: Options) -> None:
    """Makes the tables when there are none; raises `StorageError` when those that are there do not fit."""
    state = await look(connection, options)
    if state.version == 0:
        await _apply(connection, options, only_when_empty=True)
        state = await look(connection, options)
    check(state, options)


async def _apply(connection: Connection, options: Options, *, only_when_empty: bool = False) -> State:
    """Applies what is missing; returns how the database stood before."""
    before = await _try(lambda: _apply_once(connection, options, only_when_empty))
    while not only_when_empty and (missing := _missing(await look(connection, options))):
        if missing[0].indexes:
            await _try(partial(_build_indexes, options, missing[0]))
        else:
            await _try(lambda: _apply_once(connection, options, only_when_empty))
    return before


async def _try(step: Callable[[], Awaitable[_T]]) -> _T:
    """Replicas at work may be in the way, for a moment; somebody else's open transaction may be for longer."""
    for _ in range(_TRIES - 1):
        try:
            return await step()
        except Exception as error:
            if not (is_in_the_way(error) or isinstance(error, SchemaBusyError)):
                raise
        await asyncio.sleep(_PAUSE)
    return await step()


async def _apply_once(connection: Connection, options: Options, only_when_empty: bool) -> State:
    """Applies, in one transaction, what is missing up to the first migration that must not be in one."""
    async with connection.transaction():
        if not await connection.fetchval(QUERIES["schema_lock"], options.schema):
            raise SchemaBusyError(options)
        await connection.fetch(QUERIES["schema_patience"], True)
        await connection.execute(QUERIES["schema_short_waits"])
        # Looked at under the lock: another process may have been faster.
        state = await look(connection, options)
        if not state.has_schema:
            await connection.execute(f'CREATE SCHEMA "{options.schema}"')
        if state.version and only_when_empty:
            return state
        together = _together(state)
        if state.version and together:
            await connection.execute(QUERIES["schema_pause"])
        for migration in together:
            await connection.execute(migration.at_once)
            await connection.execute(QUERIES["schema_applied"], migration.version, migration.oldest)
        return state


def _missing(state: State) -> list[Migration]:
    return [migration for migration in migrations() if migration.version > state.version]


def _together(state: State) -> list[Migration]:
    """The first of the missing migrations, those that may be in one transaction: in an empty database all of them."""
    return list(takewhile(lambda migration: state.version == 0 or not migration.indexes, _missing(state)))


async def _build_indexes(options: Options, migration: Migration) -> None:
    """Builds indexes while others write. Begun again after a failure, it goes on where it was."""
    # On a connection of its own, which has more patience than others, and with which the lock goes.
    connection = await connect(options._replace(command_timeout=_LONGEST))
    try:
        if not await connection.fetchval(QUERIES["schema_lock_long"], options.schema):
            raise SchemaBusyError(options)
        if migration not in _missing(await look(connection, options)):
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
    def __init__(self, options: Options) -> None:
        self._options = options

    async def upgrade(self) -> tuple[int, int]:
        return await self._with_connection(self._upgrade)

    async def check(self) -> int:
        return await self._with_connection(self._check)

    async def sql(self) -> str:
        return await self._with_connection(self._sql)

    async def _with_connection(self, work: Callable[[Connection], Awaitable[_T]]) -> _T:
        try:
            # Making an index of many tasks takes its time.
            connection = await connect(self._options._replace(command_timeout=_LONGEST))
            try:
                await check_session(connection, self._options)
                return await work(connection)
            finally:
                await disconnect(connection)
        except Exception as error:
            raise explain(error, self._options.name) from error

    async def _upgrade(self, connection: Connection) -> tuple[int, int]:
        # It waits for indexes that are built on another one.
        await connection.fetch(QUERIES["schema_patience"], False)
        before = await _apply(connection, self._options)
        after = await look(connection, self._options)
        check(after, self._options)
        return before.version, after.version

    async def _check(self, connection: Connection) -> int:
        state = await look(connection, self._options)
        check(state, self._options)
        return state.version

    async def _sql(self, connection: Connection) -> str:
        state = await look(connection, self._options)
        lines: list[str] = []
        while missing := _missing(state):
            together = _together(state)
            lines += self._in_transaction(state, together) if together else self._beside_writers(missing[0])
            state = State(has_schema=True, version=(together or missing[:1])[-1].version, oldest=state.oldest)
        return "\n".join([*lines, ""]) if lines else ""

    def _in_transaction(self, state: State, together: list[Migration]) -> list[str]:
        lines = ["BEGIN;"] + ([] if state.has_schema else [f'CREATE SCHEMA "{self._options.schema}";'])
        lines.append(f'SET LOCAL search_path TO "{self._options.schema}";')
        lines += [_with_values("schema_patience", "true"), f"{QUERIES['schema_short_waits']};"]
        if state.version:
            lines.append(f"{QUERIES['schema_pause']};")
        for migration in together:
            lines += [migration.at_once.rstrip(), _applied(migration)]
        return [*lines, "COMMIT;"]

    def _beside_writers(self, migration: Migration) -> list[str]:
        lines = [
            "-- Not in a transaction, so that others write meanwhile. When it fails, run it again from here.",
            f'SET search_path TO "{self._options.schema}";',
            _with_values("schema_patience", "false"),
            f"{QUERIES['schema_long_waits']};",
        ]
        for name, statement in migration.indexes.items():
            lines += [f"DROP INDEX CONCURRENTLY IF EXISTS {name};", f"{statement};"]
        return [*lines, _applied(migration)]


def _applied(migration: Migration) -> str:
    return _with_values("schema_applied", migration.version, migration.oldest)


def _with_values(query: str, *values: object) -> str:
    """A statement as it is printed."""
    statement = QUERIES[query]
    for number, value in enumerate(values, 1):
        statement = statement.replace(f"${number}", str(value))
    return f"{statement};"
