"""What the SQLite engine promises beyond the port: a file that lasts, group commit, and readers that do not wait."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from errands.engines.base import Engine
from errands.engines.sqlite import SQLiteEngine
from errands.engines.sqlite.queries import QUERIES
from errands.engines.sqlite.schema import APPLICATION_ID, migrations
from errands.errors import ConfigurationError, StorageError
from errands.model.core import TaskState
from errands.model.log import Head, Lease, ListQuery
from tests.contract.changes import AGENT, LEASE_MS, ME, WORKER, Changes, ManualClock, text_in, versions

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture
async def engine(path: Path, clock: ManualClock) -> AsyncIterator[SQLiteEngine]:
    async with SQLiteEngine(path, clock=clock) as engine:
        yield engine


def ask(path: Path, query: str) -> list[Any]:
    """The rows that a plain SQLite connection sees."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


async def test_a_closed_engine_leaves_one_plain_file_behind(path: Path, changes: Changes) -> None:
    async with SQLiteEngine(path) as engine:
        await engine.commit(changes.start())
        await engine.load("t", ME)
    assert [file.name for file in path.parent.iterdir()] == ["tasks.db"]
    assert ask(path, "PRAGMA integrity_check") == [("ok",)]


def rights_in(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir()}


def make_shared(path: Path) -> None:
    path.touch()
    path.chmod(0o660)


async def test_a_new_database_is_its_owners_alone(path: Path, engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    rights = rights_in(path.parent)
    assert rights.keys() >= {"tasks.db", "tasks.db-wal"}
    assert set(rights.values()) == {0o600}


async def test_a_new_directory_is_its_owners_alone(tmp_path: Path) -> None:
    async with SQLiteEngine(tmp_path / "new" / "tasks.db"):
        assert rights_in(tmp_path)["new"] == 0o700


async def test_a_file_that_is_there_keeps_its_rights(path: Path) -> None:
    make_shared(path)
    async with SQLiteEngine(path):
        assert rights_in(path.parent)["tasks.db"] == 0o660


async def test_the_file_says_whose_it_is_and_which_schema_it_has(path: Path, engine: Engine) -> None:
    assert ask(path, "PRAGMA application_id") == [(APPLICATION_ID,)]
    assert ask(path, "PRAGMA user_version") == [(migrations()[-1][0],)]
    assert ask(path, "PRAGMA journal_mode") == [("wal",)]


async def test_every_field_of_a_head_has_its_column(path: Path, engine: Engine) -> None:
    columns = {row[1] for row in ask(path, "PRAGMA table_info(tasks)")}
    # Push configs are in a table of their own.
    fields = set(Head.__struct_fields__) - {"pushes"}
    assert fields <= columns
    for name in ("record", "upsert_tasks"):
        assert all(field in QUERIES[name] for field in fields)


async def test_missing_directories_are_made(tmp_path: Path, changes: Changes) -> None:
    async with SQLiteEngine(tmp_path / "not" / "there" / "tasks.db") as engine:
        await engine.commit(changes.start())
    assert (tmp_path / "not" / "there" / "tasks.db").exists()


@pytest.mark.parametrize("name", ["strange name?mode=ro.db", "50%41.db", "#tasks", "käse 🧀.db", "-wal"])
async def test_any_file_name_is_taken_as_it_is(tmp_path: Path, changes: Changes, name: str) -> None:
    async with SQLiteEngine(tmp_path / name) as engine:
        await engine.commit(changes.start())
        await engine.load("t", ME)
    assert (tmp_path / name).stat().st_size > 0


@pytest.mark.parametrize("name", [":memory:", ""])
def test_a_path_that_is_no_file_is_refused_and_memory_named(name: str) -> None:
    with pytest.raises(ConfigurationError, match='storage="memory"'):
        SQLiteEngine(name)


def test_an_unknown_synchronous_is_refused_with_what_is_possible() -> None:
    with pytest.raises(ConfigurationError, match="NORMAL"):
        SQLiteEngine("tasks.db", synchronous="OFF")  # type: ignore[arg-type]


async def test_full_synchronous_writes_like_any_other(path: Path, changes: Changes) -> None:
    async with SQLiteEngine(path, synchronous="FULL") as engine:
        assert (await engine.commit(changes.start())).version == 2


async def test_an_engine_without_its_writer_is_not_well(engine: SQLiteEngine) -> None:
    await engine.store.stop()
    with pytest.raises(StorageError, match="writer"):
        await engine.check()


async def test_many_commits_share_few_transactions(engine: SQLiteEngine, changes: Changes) -> None:
    before = engine.store.transactions
    await asyncio.gather(*(engine.commit(changes.start(f"t{number}")) for number in range(400)))
    assert engine.store.transactions - before <= 2


async def test_all_kinds_of_work_share_a_transaction_in_their_order(
    engine: SQLiteEngine, changes: Changes, clock: ManualClock
) -> None:
    before = engine.store.transactions
    results = await asyncio.gather(
        engine.commit(changes.create()),
        engine.claim(WORKER, [AGENT], 1, clock() + LEASE_MS),
        engine.commit(changes.working(fence=1)),
        engine.extend(WORKER, [Lease("t", 1)], clock() + LEASE_MS),
        engine.commit(changes.move(context=b"value")),
        engine.commit(changes.complete(fence=1)),
        engine.delete("t", ME),
        engine.commit(changes.create()),
    )
    assert engine.store.transactions - before <= 2
    assert versions(results) == [1, None, 2, None, 2, 3, None, 1]
    assert (await engine.load("t", ME)).state is TaskState.SUBMITTED


async def test_readers_proceed_while_somebody_holds_the_write_lock(
    path: Path, engine: SQLiteEngine, changes: Changes
) -> None:
    await engine.commit(changes.start())
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE tasks SET version = 99")
        waiting = asyncio.ensure_future(engine.commit(changes.chunk(text="after the lock")))
        assert (await engine.load("t", ME)).version == 2
        assert (await engine.list(ListQuery(scope=ME))).total_size == 1
        assert len((await engine.read("t", ME, 0)).events) == 2
        assert not waiting.done()
        connection.execute("ROLLBACK")
    assert (await waiting).version == 3


async def test_a_reader_sees_a_task_and_its_log_of_one_moment(engine: SQLiteEngine, changes: Changes) -> None:
    await engine.commit(changes.start())
    writing = [asyncio.ensure_future(engine.commit(changes.chunk(text="x"))) for _ in range(300)]
    while not all(commit.done() for commit in writing):
        stored = await engine.load("t", ME)
        assert len(text_in(stored)) == stored.version - 2
    await asyncio.gather(*writing)


async def test_writing_on_does_not_rewrite_what_is_folded(path: Path, engine: SQLiteEngine, changes: Changes) -> None:
    await engine.commit(changes.start())
    await engine.commit(changes.chunk(text="x" * 4_000_000))
    stored = await engine.load("t", ME)
    await engine.commit(changes.move(fold=stored.task, expected=3))
    log = path.with_name("tasks.db-wal")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for _ in range(10):
        await engine.commit(changes.chunk(text="a few words"))
    assert log.stat().st_size < 1_000_000


async def test_a_folded_task_is_read_from_its_snapshot_alone(
    path: Path, engine: SQLiteEngine, changes: Changes
) -> None:
    await engine.commit(changes.start())
    await engine.commit(changes.chunk(text="kept"))
    before = await engine.load("t", ME)
    await engine.commit(changes.move(fold=before.task, expected=3))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE events SET data = 'not even JSON' WHERE kind <> 'snapshot'")
    assert await engine.load("t", ME) == before
    assert (await engine.list(ListQuery(scope=ME, with_artifacts=True))).tasks == [before]


async def test_the_loop_may_vanish_before_the_engine_is_closed(path: Path, changes: Changes) -> None:
    engines: list[SQLiteEngine] = []

    async def forget_to_close() -> None:
        engine = SQLiteEngine(path, poll_interval=0.01)
        await engine.open()
        await engine.commit(changes.start())
        engines.append(engine)

    await asyncio.to_thread(asyncio.run, forget_to_close())
    writer = engines[0].store
    await asyncio.to_thread(writer._thread.join)
    async with SQLiteEngine(path) as engine:
        assert (await engine.load("t", ME)).version == 2
