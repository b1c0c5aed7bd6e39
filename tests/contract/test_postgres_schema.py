"""The tables of the PostgreSQL engine: migrations, schemas that are not ours, and the plans of the statements."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from errands.engines.postgres import PostgresEngine, schema
from errands.engines.postgres.connection import PostgresOptions, connect
from errands.engines.postgres.queries import QUERIES
from errands.engines.postgres.schema import Migration, migrations
from errands.errors import StorageError
from tests.contract.changes import ME, Changes, ManualClock
from tests.postgres import own_schema, shared_server

pytestmark = pytest.mark.anyio

FIRST, NEWEST = migrations()[0].version, migrations()[-1].version


@pytest.fixture
def url(tmp_path: Path) -> str:
    return own_schema(tmp_path)


async def run(url: str, script: str) -> list[Any]:
    connection = await asyncpg.connect(shared_server().url())
    try:
        await connection.execute(f'SET search_path TO "{PostgresOptions.parse(url).schema}"')
        return await connection.fetch(script) if script.startswith("SELECT") else [await connection.execute(script)]
    finally:
        await connection.close()


def further(monkeypatch: pytest.MonkeyPatch, script: str, oldest: int = NEWEST) -> None:
    """Lets errands know one migration more."""
    known = migrations()
    monkeypatch.setattr(schema, "migrations", lambda: [*known, Migration(NEWEST + 1, oldest, script)])


async def test_an_empty_database_gets_its_tables_when_it_is_opened(url: str, changes: Changes) -> None:
    async with PostgresEngine(url) as engine:
        assert (await engine.commit(changes.start())).version == 2
    assert await PostgresEngine(url).schema.check() == NEWEST


async def test_a_schema_of_another_program_is_refused_and_left_as_it_is(url: str) -> None:
    name = PostgresOptions.parse(url).schema
    await run(url, f'CREATE SCHEMA "{name}"; CREATE TABLE "{name}".customers (name text)')
    for attempt in (PostgresEngine(url).open, PostgresEngine(url).schema.upgrade):
        with pytest.raises(StorageError, match="another program"):
            await attempt()
    tables = await run(url, f"SELECT tablename FROM pg_tables WHERE schemaname = '{name}'")
    assert [tuple(row) for row in tables] == [("customers",)]


async def test_an_older_schema_is_refused_until_it_is_upgraded(
    url: str, changes: Changes, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with PostgresEngine(url, clock=clock) as engine:
        await engine.commit(changes.start())
    further(monkeypatch, "ALTER TABLE tasks ADD COLUMN colour text;")
    with pytest.raises(StorageError, match=f"schema version {NEWEST}.*errands db upgrade"):
        await PostgresEngine(url).open()
    with pytest.raises(StorageError, match="errands db upgrade"):
        await PostgresEngine(url).schema.check()
    assert await PostgresEngine(url).schema.upgrade() == (NEWEST, NEWEST + 1)
    assert await PostgresEngine(url).schema.upgrade() == (NEWEST + 1, NEWEST + 1)
    async with PostgresEngine(url, clock=clock) as engine:
        assert (await engine.load("t", ME)).version == 2
        assert (await engine.commit(changes.complete())).version == 3


@pytest.mark.parametrize("version", [1, FIRST - 1])
async def test_a_schema_from_before_the_first_release_is_refused_and_left_as_it_is(url: str, version: int) -> None:
    async with PostgresEngine(url):
        pass
    await run(url, f"DELETE FROM schema_versions; INSERT INTO schema_versions VALUES ({version}, 1)")
    engine = PostgresEngine(url)
    for attempt in (engine.open, engine.schema.upgrade, engine.schema.check, engine.schema.sql):
        with pytest.raises(
            StorageError, match=f"schema version {version}, .* unreleased version of errands wrote.*Recreate it"
        ):
            await attempt()
    assert [tuple(row) for row in await run(url, "SELECT version, oldest FROM schema_versions")] == [(version, 1)]


async def test_the_release_before_runs_on_a_schema_that_only_added(
    url: str, changes: Changes, clock: ManualClock
) -> None:
    async with PostgresEngine(url, clock=clock) as old:
        await old.commit(changes.start())
        with pytest.MonkeyPatch.context() as patch:
            further(patch, "ALTER TABLE tasks ADD COLUMN colour text NOT NULL DEFAULT 'red';", oldest=NEWEST)
            await PostgresEngine(url).schema.upgrade()
            async with PostgresEngine(url, clock=clock) as new:
                # Both at the same time, on the same task.
                assert (await old.commit(changes.chunk())).version == 3
                assert (await new.commit(changes.chunk())).version == 4
        async with PostgresEngine(url, clock=clock) as restarted:
            assert (await restarted.commit(changes.complete())).version == 5


async def test_the_release_before_is_refused_by_a_schema_that_took_something_away(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        further(patch, "ALTER TABLE tasks ADD COLUMN colour text;", oldest=NEWEST + 1)
        await PostgresEngine(url).schema.upgrade()
    with pytest.raises(StorageError, match=f"schema version {NEWEST + 1}.*Upgrade errands"):
        await PostgresEngine(url).open()


async def test_a_migration_that_fails_leaves_the_schema_as_it_was(
    url: str, changes: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with PostgresEngine(url) as engine:
        await engine.commit(changes.start())
    with monkeypatch.context() as patch:
        further(patch, "ALTER TABLE tasks ADD COLUMN colour text; ALTER TABLE missing ADD COLUMN x text;")
        with pytest.raises(StorageError, match="missing"):
            await PostgresEngine(url).schema.upgrade()
    async with PostgresEngine(url) as engine:
        assert (await engine.load("t", ME)).version == 2
    assert not await run(
        url, "SELECT 1 FROM information_schema.columns WHERE column_name = 'colour' AND table_schema = current_schema()"
    )


async def test_an_upgrade_waits_for_whoever_is_in_the_way_and_they_for_it(
    url: str, changes: Changes, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    further(monkeypatch, "CREATE INDEX colours ON tasks (worker); DROP INDEX tasks_listed;")
    with monkeypatch.context() as patch:
        patch.setattr(schema, "migrations", migrations)
        old = await PostgresEngine(url, clock=clock).__aenter__()
    await old.commit(changes.start())
    writing = await connect(PostgresOptions.parse(url))
    await writing.execute("SET idle_in_transaction_session_timeout TO 0")
    await writing.execute("BEGIN")
    await writing.execute("SELECT 1 FROM tasks FOR UPDATE")
    upgrading = asyncio.ensure_future(PostgresEngine(url).schema.upgrade())
    waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'tasks'::regclass"
    while not await writing.fetchval(waiting):
        pass
    reading = asyncio.ensure_future(_first_version(old))
    # What the first has locked so far, it wants to write now.
    await writing.execute("UPDATE tasks SET updated_at = updated_at")
    await writing.execute("COMMIT")
    await writing.close()
    assert await upgrading == (NEWEST, NEWEST + 1)
    assert await reading == 2
    assert (await old.commit(changes.chunk())).version == 3
    await old.close()


async def _first_version(engine: PostgresEngine) -> int:
    return (await engine.load("t", ME)).version


async def test_many_that_upgrade_at_once_do_it_once(url: str) -> None:
    results = await asyncio.gather(*(PostgresEngine(url).schema.upgrade() for _ in range(5)))
    assert sorted(results) == [(0, NEWEST)] + [(NEWEST, NEWEST)] * 4


async def test_the_printed_sql_makes_what_an_upgrade_makes(url: str, changes: Changes) -> None:
    script = await PostgresEngine(url).schema.sql()
    with pytest.raises(StorageError, match="no tables of errands yet"):
        await PostgresEngine(url).schema.check()
    await run(url, script)
    assert await PostgresEngine(url).schema.check() == NEWEST
    assert await PostgresEngine(url).schema.sql() == ""
    async with PostgresEngine(url) as engine:
        assert (await engine.commit(changes.start())).version == 2


def test_migrations_are_numbered_without_a_gap_and_name_the_oldest_that_can_run() -> None:
    # 1 to 11 were those of unreleased versions, whose tables must not be taken for newer ones.
    assert [migration.version for migration in migrations()] == list(range(12, NEWEST + 1))
    assert all(FIRST <= migration.oldest <= migration.version for migration in migrations())


@pytest.fixture(
    params=[(1, "ANALYZE"), (7, "ANALYZE"), (7, "--")], ids=["one scope", "several scopes", "no statistics"]
)
async def connection(url: str, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """A connection as the engine has them, on tables that hold enough for plans to matter: of one scope only, which
    PostgreSQL then takes every scope to be like, of several, and of tables that it knows nothing about."""
    scopes, analyze = request.param
    options = PostgresOptions.parse(url)
    async with PostgresEngine(url):
        connection = await connect(options._replace(command_timeout=120.0))
        await connection.execute(
            f"""
            INSERT INTO tasks
            SELECT 'id ' || n, n, n % {scopes}, 't', 'o', 'agent ' || n % 3,
                CASE WHEN n % 2 = 0 THEN 'long' ELSE 'c ' || n % 5000 END, 5,
                CASE WHEN n % 100 = 0 THEN 'TASK_STATE_WORKING' ELSE 'TASK_STATE_COMPLETED' END, 1, 0, 0,
                CASE WHEN n % 100 = 0 THEN 'w' ELSE '' END, CASE WHEN n % 100 = 0 THEN n END, '',
                1, n % 1000 = 0, false, '', n, n, n, 0, 0, '', false
            FROM generate_series(1, 20000) AS n;
            INSERT INTO events SELECT n, v, 'status', '', n FROM generate_series(1, 20000) n, generate_series(1, 2) v;
            INSERT INTO receipts SELECT n::text::bytea, 'id ' || n, n, n FROM generate_series(1, 20000) AS n;
            INSERT INTO contexts SELECT 't', 'o', 'a', 'c ' || n, '', n FROM generate_series(1, 20000) AS n;
            {analyze} tasks, events, receipts, contexts
            """
        )
        try:
            yield connection
        finally:
            await connection.close()


#: These look at more than an index leads them to, and why that is allowed.
WALKS = {
    "count_ended": "the tallies, of which there are few",
    "check": "the versions, of which there are few",
    "schema_version": "the versions, of which there are few",
    "schema_pause": "it reads nothing",
    "delete_receipts": "retention forbids it, see below",
    "count_owners": "for operators; an index would cost every task",
    "list_owners_in_order": "the same",
    "list_owners_since_changed": "the same",
    "stored_bytes_of_owners": "asked rarely, for quotas",
}
PLANNED = sorted(name for name, query in QUERIES.items() if re.search(r"\b(tasks|events|receipts|contexts)\b", query))


async def test_no_query_walks_a_whole_table(connection: Any) -> None:
    for name in PLANNED:
        if name in WALKS:
            continue
        parameters = (await connection.prepare(QUERIES[name])).get_parameters()
        nothing = f"({', '.join(['NULL'] * len(parameters))})" if parameters else ""
        await connection.execute(f"PREPARE {name} AS {QUERIES[name]}")
        plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE {name} {nothing}"))
        assert not re.search(r"Seq Scan on (tasks|events|receipts|contexts)", plan), (name, plan)


#: The index that was made for a query, and values to try it with.
INDEXES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "due": ("tasks_due", ("agent 1", 10**6, 10)),
    "list_scope_in_order": (
        "tasks_listed",
        (0, ["TASK_STATE_COMPLETED"], 0, "t", "o", "agent 1", 10**9, 10**9, "", 50),
    ),
    "list_scope_since_changed": (
        "tasks_listed",
        (0, ["TASK_STATE_COMPLETED", "TASK_STATE_FAILED"], 0, "t", "o", "agent 1", 10**9, "", 50),
    ),
    "list_context_in_order": (
        "tasks_of_context",
        (0, ["TASK_STATE_COMPLETED"], 0, "t", "o", "agent 1", 10**9, 10**9, "", 50, "long"),
    ),
    "list_context_since_changed": (
        "tasks_of_context",
        (0, ["TASK_STATE_COMPLETED"], 0, "t", "o", "agent 1", 10**9, "", 50, "long"),
    ),
    "count_context": ("Index Only Scan using tasks_of_context", (0, ["TASK_STATE_WORKING"], 0, "c 7")),
    "wanted_canceled": ("tasks_canceling", ("w",)),
    "ended_before": ("tasks_ended", ("TASK_STATE_COMPLETED", 10**9, 200)),
    "longest_ended": ("tasks_ended", (200,)),
    "longest_due": ("tasks_due", (["agent 1", "agent 2"], 10**6)),
    "overgrown_long": ("tasks_long", (2000,)),
    "count_scope": ("Index Only Scan using tasks_listed", (0, ["TASK_STATE_WORKING"], 0)),
    "tally": ("tallies_pkey", (0, ["TASK_STATE_COMPLETED"])),
    "load": ("tasks_pkey", ("id 7", True)),
    "asking": ("tasks_asking", (None, False, None, None, ["bob"], 10)),
    "records": ("events_of_run", ("id 7",)),
}


async def test_expired_receipts_are_found_by_their_index(connection: Any) -> None:
    query = QUERIES["delete_receipts"].replace("$1", "1").replace("$2", "9")
    await connection.execute("ANALYZE receipts")  # as autovacuum does when some have come
    async with connection.transaction():
        await connection.execute(QUERIES["only_bitmaps"])
        plan = await connection.fetch(f"EXPLAIN {query}")
    assert "receipts_by_expiry" in "\n".join(row[0] for row in plan)


IN_ORDER = {
    "due",
    "list_scope_in_order",
    "list_scope_since_changed",
    "list_context_in_order",
    "list_context_since_changed",
    "ended_before",
    "longest_ended",
}


async def test_a_query_uses_the_index_that_was_made_for_it(connection: Any) -> None:
    await connection.execute("VACUUM tasks")  # an index alone is enough only for what all can see
    for name, (index, values) in INDEXES.items():
        # The engine's statements are planned without looking at the values.
        await connection.execute(f"PREPARE {name} AS {QUERIES[name]}")
        rows = await connection.fetch(f"EXPLAIN ANALYZE EXECUTE {name} ({', '.join(map(literal, values))})")
        plan = "\n".join(row[0] for row in rows)
        assert index in plan, plan
        if name in IN_ORDER:
            # In the order of the index: no more is read than is given out.
            read = re.findall(r"Index (?:Only )?Scan (?:using|on) tasks_\w+ .*actual .*rows=(\d+)", plan)
            limit = next(value for value in reversed(values) if isinstance(value, int))
            assert max(map(int, read)) <= limit, plan


def literal(value: object) -> str:
    """As it is written in a statement."""
    if isinstance(value, list):
        return f"ARRAY[{', '.join(map(literal, value))}]"
    return "NULL" if value is None else f"'{value}'" if isinstance(value, str) else str(value)
