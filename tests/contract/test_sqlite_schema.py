"""The schema of the SQLite engine: migrations, databases that are not ours, and the statements themselves."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from errands.engines.base import Retention
from errands.engines.sqlite import SQLiteEngine, schema
from errands.engines.sqlite.connection import SQLiteOptions
from errands.engines.sqlite.queries import QUERIES, repeated
from errands.engines.sqlite.schema import check_ownership, migrations, open_writer
from errands.errors import StorageError
from errands.model.log import Draft
from tests.contract.changes import ME, Changes, ManualClock

pytestmark = pytest.mark.anyio

FIRST, NEWEST = migrations()[0][0], migrations()[-1][0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


def run(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)


def content(path: Path) -> bytes:
    return path.read_bytes()


def create_empty(path: Path) -> None:
    path.touch()


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        return version


async def test_a_newer_schema_is_refused_with_what_to_do(path: Path, changes: Changes) -> None:
    async with SQLiteEngine(path) as engine:
        await engine.commit(changes.start())
    run(path, f"PRAGMA user_version = {NEWEST + 1}")
    before = content(path)
    with pytest.raises(StorageError, match=f"schema version {NEWEST + 1}.*Upgrade errands"):
        await SQLiteEngine(path).open()
    assert content(path) == before


@pytest.mark.parametrize("version", [1, FIRST - 1])
async def test_a_schema_from_before_the_first_release_is_refused_and_left_as_it_is(
    path: Path, changes: Changes, version: int
) -> None:
    async with SQLiteEngine(path) as engine:
        await engine.commit(changes.start())
    run(path, f"PRAGMA user_version = {version}")
    before = content(path)
    engine = SQLiteEngine(path)
    for attempt in (engine.open, engine.schema.upgrade, engine.schema.check, engine.schema.sql):
        with pytest.raises(
            StorageError, match=f"schema version {version}, .* unreleased version of errands wrote.*Recreate it"
        ):
            await attempt()
    assert content(path) == before


@pytest.mark.parametrize(
    "script",
    [
        "CREATE TABLE customers (name TEXT)",
        "CREATE VIEW v AS SELECT 1",
        "PRAGMA user_version = 1",
        "PRAGMA application_id = 77",
    ],
)
async def test_a_database_of_another_program_is_refused_and_left_as_it_is(path: Path, script: str) -> None:
    run(path, script)
    before = content(path)
    with pytest.raises(StorageError, match="another program"):
        await SQLiteEngine(path).open()
    assert content(path) == before
    assert [file.name for file in path.parent.iterdir()] == ["tasks.db"]


@pytest.mark.parametrize(
    "moment", ["PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master"]
)
def test_tables_that_another_process_makes_meanwhile_are_not_taken_for_another_programs(
    path: Path, moment: str
) -> None:
    options = SQLiteOptions(str(path), "NORMAL", busy_timeout=0.0)

    def meanwhile(statement: str) -> None:
        if statement == moment:
            with suppress(StorageError):
                open_writer(options).close()

    with closing(sqlite3.connect(path)) as connection:
        connection.set_trace_callback(meanwhile)
        assert check_ownership(connection, str(path)) in (0, NEWEST)


async def test_an_empty_file_becomes_a_database(path: Path, changes: Changes) -> None:
    create_empty(path)
    async with SQLiteEngine(path) as engine:
        assert (await engine.commit(changes.start())).version == 2


def further(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Lets errands know one migration more."""
    known = migrations()
    monkeypatch.setattr(schema, "migrations", lambda: [*known, (NEWEST + 1, script)])


async def test_an_older_schema_is_brought_forward_and_keeps_its_tasks(
    path: Path, changes: Changes, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SQLiteEngine(path, clock=clock) as engine:
        await engine.commit(changes.start())
    further(monkeypatch, "ALTER TABLE tasks ADD COLUMN colour TEXT;\nCREATE INDEX by_colour ON tasks (colour);\n")
    async with SQLiteEngine(path, clock=clock) as engine:
        assert (await engine.load("t", ME)).version == 2
        assert (await engine.commit(changes.complete())).version == 3
    assert version_of(path) == NEWEST + 1


async def test_a_migration_that_fails_leaves_the_schema_as_it_was(
    path: Path, changes: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SQLiteEngine(path) as engine:
        await engine.commit(changes.start())
    with monkeypatch.context() as patch:
        further(patch, "ALTER TABLE tasks ADD COLUMN colour TEXT;\nALTER TABLE missing ADD COLUMN x;\n")
        with pytest.raises(StorageError, match="no such table"):
            await SQLiteEngine(path).open()
    assert version_of(path) == NEWEST
    async with SQLiteEngine(path) as engine:
        assert (await engine.load("t", ME)).version == 2


def test_migrations_are_numbered_without_a_gap() -> None:
    # 1 to 6 were those of unreleased versions, whose files must not be taken for newer ones.
    assert [number for number, _ in migrations()] == list(range(7, NEWEST + 1))


@pytest.mark.parametrize("name", sorted(QUERIES))
async def test_no_query_walks_a_whole_table(path: Path, name: str) -> None:
    async with SQLiteEngine(path):
        pass
    query = repeated(name, 2)
    names = set(re.findall(r":(\w+)", query))
    values = dict.fromkeys(names) if names else (None,) * query.count("?")
    with closing(sqlite3.connect(path)) as connection:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", values)]
    scans = [step for step in plan if re.match(r"SCAN (tasks|events|receipts|contexts)\b", step)]
    allowed = {
        "count_ended": "COVERING INDEX tasks_ended",
        # Only live tasks are in this index.
        "has_work": "INDEX tasks_due",
        "running": "INDEX tasks_due",
        # Only tasks that wait for one user's answer are in this one.
        "asking": "INDEX tasks_asking",
        # In a reader, and rows are small.
        "overgrown": "SCAN tasks",
        # The same; for operators, and asked rarely for quotas. An index would cost every task.
        "count_owners": "SCAN tasks",
        "list_owners_in_order": "SCAN tasks",
        "stored_bytes_of_owners": "SCAN tasks",
        # The slice of a log that is packed goes by the name of its table.
        "read": "SCAN events",
    }
    assert all(name in allowed and allowed[name] in step for step in scans), plan


def test_a_repeated_query_has_its_piece_once_for_every_row() -> None:
    assert repeated("look", 3).count("?") == 4
    assert repeated("insert_events", 2).count("(?, ?, ?, ?, ?)") == 2


# Retention, the queue and conversations stay cheap

LISTED = dict.fromkeys(("context_id", "tenant", "owner", "agent", "state", "id")) | dict.fromkeys(
    ("status_after", "as_of", "status_at", "limit"), 0
)
#: All but the state and the order of ids, as those of the very same millisecond have it, are found in the index.
CONVERSATION = "(context_id=? AND tenant=? AND owner=? AND agent=? AND status_at>?"


@pytest.mark.parametrize(
    ("query", "parameters", "index"),
    [
        ("ended_before", ("TASK_STATE_FAILED", 0, 200), "tasks_ended (state=? AND updated_at<?)"),
        ("longest_ended", {"limit": 200}, "tasks_ended (state=?)"),
        ("longest_due", ("agent", 0), "tasks_due (agent=? AND due_at<?)"),
        ("list_context_in_order", LISTED, f"tasks_of_context {CONVERSATION}"),
        ("list_context_since_changed", LISTED, f"tasks_of_context {CONVERSATION}"),
        ("count_context", LISTED, f"COVERING INDEX tasks_of_context {CONVERSATION}"),
    ],
)
def test_what_is_asked_again_and_again_is_found_by_an_index(
    path: Path, query: str, parameters: Any, index: str
) -> None:
    connection = open_writer(SQLiteOptions(str(path), "NORMAL", 5.0))
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {QUERIES[query]}", parameters)]
    connection.close()
    looked_up = [step for step in plan if "tasks" in step]
    assert looked_up
    assert all(index in step and step.startswith("SEARCH") for step in looked_up), plan
    # A page in order is not sorted as a whole.
    assert query != "list_context_in_order" or "USE TEMP B-TREE FOR ORDER BY" not in plan


async def test_nothing_is_left_of_a_task_that_is_deleted(path: Path, changes: Changes, clock: ManualClock) -> None:
    retention = Retention(ended_after=0, contexts_after=0)
    async with SQLiteEngine(path, clock=clock, retention=retention) as engine:
        await engine.commit(changes.start(receipt=b"digest", receipt_since=clock() - 1))
        await engine.commit(changes.chunk(events=(Draft("record", b"{}"), *changes.chunk().events)))
        await engine.commit(changes.complete(context=b"1"))
        clock.advance(1)
        assert await engine.sweep() == 1
    with closing(sqlite3.connect(path)) as connection:
        counts = {
            table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("tasks", "events", "receipts", "contexts")
        }
    assert counts == dict.fromkeys(counts, 0)
