"""Indexes that are built while others write: nobody waits, and what was interrupted is mended."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from errands.engines.postgres import PostgresEngine, schema
from errands.engines.postgres.connection import PostgresOptions, connect
from errands.engines.postgres.schema import Migration, migrations
from errands.errors import StorageError
from tests.contract.changes import Changes, ManualClock
from tests.postgres import administering, own_database, own_schema, shared_server

pytestmark = pytest.mark.anyio

NEWEST = migrations()[-1].version
INDEXES = """-- Two indexes.
-- oldest: 1

CREATE INDEX CONCURRENTLY tasks_by_worker ON tasks (worker);
CREATE INDEX CONCURRENTLY tasks_by_state ON tasks (state) WHERE due_at IS NOT NULL;
"""
#: Those that are being built wait for transactions that began before. Others may build theirs at the same time.
WAITING = """
SELECT pid FROM pg_stat_activity JOIN pg_locks USING (pid)
WHERE query LIKE 'CREATE INDEX CONCURRENTLY%' AND wait_event_type = 'Lock'
    AND relation = 'tasks'::regclass AND mode = 'ShareUpdateExclusiveLock'
"""


@pytest.fixture
async def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database of this release, which learns of one migration more."""
    url = own_schema(tmp_path)
    async with PostgresEngine(url):
        pass
    known = migrations()
    further = [*known, Migration(NEWEST + 1, 1, INDEXES), Migration(NEWEST + 2, 1, "CREATE TABLE further (n integer);")]
    monkeypatch.setattr(schema, "migrations", lambda: further)
    return url


@pytest.fixture
async def old(url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PostgresEngine]:
    """A replica of the release before, at work."""
    engine = PostgresEngine(url, clock=clock)
    with monkeypatch.context() as patch:
        patch.setattr(schema, "migrations", migrations)
        await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
async def holder(url: str) -> AsyncIterator[Any]:
    """Somebody whose transaction an index has to wait for."""
    connection = await connect(PostgresOptions.parse(url))
    await connection.execute("SET idle_in_transaction_session_timeout TO 0")
    await connection.execute("BEGIN; LOCK TABLE tasks IN ROW EXCLUSIVE MODE")
    yield connection
    await connection.close()


async def being_built(url: str) -> int:
    """The server's process that builds an index, once it waits."""
    connection = await connect(PostgresOptions.parse(url))
    try:
        while (pid := await connection.fetchval(WAITING)) is None:
            await asyncio.sleep(0.01)
        return int(pid)
    finally:
        await connection.close()


async def valid(url: str) -> dict[str, bool]:
    """Which of the indexes there are, and whether they are complete."""
    connection = await connect(PostgresOptions.parse(url))
    try:
        rows = await connection.fetch(
            "SELECT c.relname, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
            "WHERE i.indrelid = 'tasks'::regclass AND c.relname LIKE 'tasks_by_%'"
        )
        return {row[0]: row[1] for row in rows}
    finally:
        await connection.close()


BOTH = {"tasks_by_worker": True, "tasks_by_state": True}


async def test_replicas_write_on_while_an_index_is_built(
    url: str, old: PostgresEngine, holder: Any, changes: Changes
) -> None:
    upgrading = asyncio.ensure_future(PostgresEngine(url).schema.upgrade())
    await being_built(url)
    assert (await old.commit(changes.start())).version == 2
    for number in range(20):
        assert (await old.commit(changes.chunk())).version == 3 + number
    assert not upgrading.done()
    assert (await valid(url))["tasks_by_worker"] is False
    await holder.execute("COMMIT")
    assert await upgrading == (NEWEST, NEWEST + 2)
    assert await valid(url) == BOTH
    assert (await old.commit(changes.complete())).version == 23


async def test_an_index_whose_building_was_interrupted_is_built_again(
    url: str, old: PostgresEngine, holder: Any
) -> None:
    upgrading = asyncio.ensure_future(PostgresEngine(url).schema.upgrade())
    pid = await being_built(url)
    await holder.execute("SELECT pg_terminate_backend($1)", pid)
    with pytest.raises(StorageError):
        await upgrading
    await holder.execute("COMMIT")
    assert await valid(url) == {"tasks_by_worker": False}
    with pytest.raises(StorageError, match=f"schema version {NEWEST}"):
        await PostgresEngine(url).schema.check()
    assert await PostgresEngine(url).schema.upgrade() == (NEWEST, NEWEST + 2)
    assert await valid(url) == BOTH
    assert await PostgresEngine(url).schema.check() == NEWEST + 2


async def test_who_upgrades_while_an_index_is_built_waits_and_is_told_so(
    url: str, holder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrading = asyncio.ensure_future(PostgresEngine(url).schema.upgrade())
    await being_built(url)
    with monkeypatch.context() as patch:
        patch.setattr(schema, "_TRIES", 2)
        with pytest.raises(StorageError, match="Another process upgrades"):
            await PostgresEngine(url).schema.upgrade()
    waiting = asyncio.ensure_future(PostgresEngine(url).schema.upgrade())
    await holder.execute("COMMIT")
    assert await upgrading == (NEWEST, NEWEST + 2)
    assert (await waiting)[1] == NEWEST + 2


async def test_the_printed_sql_builds_them_beside_writers_and_mends_what_was_interrupted(url: str, holder: Any) -> None:
    upgrading = asyncio.ensure_future(PostgresEngine(url).schema.upgrade())
    await holder.execute("SELECT pg_terminate_backend($1)", await being_built(url))
    await holder.execute("COMMIT")
    with pytest.raises(StorageError):
        await upgrading
    script = await PostgresEngine(url).schema.sql()
    before, after = script.index("Not in a transaction"), script.index("BEGIN;")
    assert (
        before
        < script.index("CREATE INDEX CONCURRENTLY tasks_by_worker")
        < after
        < script.index("CREATE TABLE further")
    )
    await asyncio.to_thread(shared_server().run_script, script)
    assert await PostgresEngine(url).schema.check() == NEWEST + 2
    assert await PostgresEngine(url).schema.sql() == ""
    assert await valid(url) == BOTH


async def test_in_an_empty_database_they_are_made_with_the_tables(tmp_path: Path, url: str) -> None:
    empty = own_schema(tmp_path / "other")
    assert "CONCURRENTLY" not in await PostgresEngine(empty).schema.sql()
    assert await PostgresEngine(empty).schema.upgrade() == (0, NEWEST + 2)
    assert await valid(empty) == BOTH


# Bounds that the server sets


#: Fails unless these are the settings of whoever calls it.
CHECK = """
CREATE FUNCTION {schema}.checked(worker text, wanted text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    found text := concat_ws(
        ' ', current_setting('statement_timeout'), current_setting('lock_timeout'),
        coalesce(nullif(current_setting('idle_session_timeout', true), ''), '0'),
        coalesce(nullif(current_setting('transaction_timeout', true), ''), '0')
    );
BEGIN
    IF found <> wanted THEN
        RAISE 'the settings are %, not %', found, wanted;
    END IF;
    RETURN worker;
END
$$
"""
AT_ONCE = "SELECT checked('', '0 1s 0 0');"
BESIDE = "CREATE INDEX CONCURRENTLY tasks_checked ON tasks (checked(worker, '0 0 0 0'));"


@pytest.mark.parametrize("by", ["errands", "psql"])
async def test_an_upgrade_goes_by_its_own_bounds_whatever_the_server_has(
    tmp_path: Path, changes: Changes, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    async with own_database() as database, administering() as admin:
        url = shared_server().url(database=database)
        async with PostgresEngine(url) as engine:
            await engine.commit(changes.start())
        await admin.execute(f"ALTER DATABASE {database} SET lock_timeout TO '1h'")
        for name in await admin.fetch(
            "SELECT name FROM pg_settings "
            "WHERE name IN ('statement_timeout', 'transaction_timeout', 'idle_session_timeout')"
        ):
            await admin.execute(f"ALTER DATABASE {database} SET {name[0]} TO '1h'")
        connection = await connect(PostgresOptions.parse(url))
        await connection.execute(CHECK.format(schema="errands"))
        await connection.close()
        known = migrations()
        further = [
            Migration(NEWEST + 1, 1, AT_ONCE),
            Migration(NEWEST + 2, 1, BESIDE),
            Migration(NEWEST + 3, 1, AT_ONCE),
        ]
        monkeypatch.setattr(schema, "migrations", lambda: [*known, *further])
        if by == "psql":
            script = await PostgresEngine(url).schema.sql()
            await asyncio.to_thread(shared_server().run_script, script, database)
        else:
            await PostgresEngine(url).schema.upgrade()
        assert await PostgresEngine(url).schema.check() == NEWEST + 3


async def test_nobody_waits_for_an_upgrade_that_waits_for_a_long_reader(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "migrations", lambda: [*migrations(), Migration(NEWEST + 1, 1, "SELECT 1;")])
    monkeypatch.setattr(schema, "_TRIES", 10_000)
    # However slow the machine is, it is not they who give up.
    patient = PostgresOptions.parse(url)._replace(command_timeout=600)
    reading, another = await connect(patient), await connect(patient)
    for connection in (reading, another):
        await connection.execute("SET lock_timeout TO 0; SET idle_in_transaction_session_timeout TO 0")
    await reading.execute("BEGIN; SELECT 1 FROM tasks")
    upgrading = asyncio.ensure_future(PostgresEngine(url).schema.upgrade())
    waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'tasks'::regclass"
    for _ in range(3):
        while not await reading.fetchval(waits):
            assert not upgrading.done()
        await another.execute("SELECT 1 FROM tasks")
    await reading.execute("COMMIT")
    assert await upgrading == (NEWEST, NEWEST + 1)
    await reading.close()
    await another.close()


def test_no_migration_builds_an_index_that_writers_wait_for() -> None:
    for migration in migrations():
        made = set(re.findall(r"CREATE TABLE (\w+)", migration.script))
        indexed = re.findall(r"CREATE (?:UNIQUE )?INDEX \w+ ON (\w+)", migration.script)
        assert made.issuperset(indexed), f"migration {migration.version}: CREATE INDEX CONCURRENTLY in its own file"


def test_a_migration_that_builds_indexes_beside_writers_does_nothing_else() -> None:
    for migration in [*migrations(), Migration(NEWEST + 1, 1, INDEXES)]:
        script = re.sub(r"--.*\n", "", migration.script)
        rest = script
        for statement in migration.indexes.values():
            rest = rest.replace(f"{statement};", "")
        assert rest == script or not rest.strip(), f"migration {migration.version}"
