"""The tables: made in an empty database, brought forward on request, and compared with what this release knows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from errands.engines.base import Schema
from errands.engines.postgres.connection import Connection, Options, check_session, connect
from errands.engines.postgres.failures import explain, is_in_the_way
from errands.engines.postgres.sql import QUERIES, Migration, migrations
from errands.errors import StorageError

_T = TypeVar("_T")

#: How often an upgrade is tried while others are in the way, and the seconds in between.
_TRIES, _PAUSE = 20, 0.5
#: Seconds that one statement of an upgrade may take.
_LONGEST = 86_400.0


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
    """Applies what is missing, in one transaction; returns how the database stood before.

    Replicas at work may be in the way, for a moment; somebody else's open transaction may be for longer.
    """
    for _ in range(_TRIES - 1):
        try:
            return await _apply_once(connection, options, only_when_empty)
        except Exception as error:
            if not is_in_the_way(error):
                raise
        await asyncio.sleep(_PAUSE)
    return await _apply_once(connection, options, only_when_empty)


async def _apply_once(connection: Connection, options: Options, only_when_empty: bool) -> State:
    async with connection.transaction():
        await connection.execute(QUERIES["schema_lock"], options.schema)
        # Looked at under the lock: another process may have been faster.
        state = await look(connection, options)
        if not state.has_schema:
            await connection.execute(f'CREATE SCHEMA "{options.schema}"')
        if state.version and only_when_empty:
            return state
        if state.version and _missing(state):
            await connection.execute(QUERIES["schema_pause"])
        for migration in _missing(state):
            await connection.execute(migration.script)
            await connection.execute(QUERIES["schema_applied"], migration.version, migration.oldest)
        return state


def _missing(state: State) -> list[Migration]:
    return [migration for migration in migrations() if migration.version > state.version]


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
                await connection.close(timeout=1.0)
        except Exception as error:
            raise explain(error, self._options.name) from error

    async def _upgrade(self, connection: Connection) -> tuple[int, int]:
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
        schema = f'"{self._options.schema}"'
        lines = ["BEGIN;"] + ([] if state.has_schema else [f"CREATE SCHEMA {schema};"])
        lines.append(f"SET LOCAL search_path TO {schema};")
        if state.version:
            lines.append(f"{QUERIES['schema_pause']};")
        for version, oldest, script in (missing := _missing(state)):
            applied = QUERIES["schema_applied"].replace("$1", str(version)).replace("$2", str(oldest))
            lines += [script.rstrip(), f"{applied};"]
        return "\n".join([*lines, "COMMIT;", ""]) if missing else ""
