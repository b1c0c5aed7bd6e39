"""When the file cannot be used: what happened, what to do, and nothing half-written."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from errands.engines.base import Retention
from errands.engines.sqlite import SQLiteEngine, store
from errands.errors import StorageError
from errands.model.log import Head, Lease, ListQuery, StoredTask
from tests.contract.changes import AGENT, LEASE_MS, ME, WORKER, Changes, ManualClock, log_of
from tests.contract.health import trouble_of, until_trouble
from tests.waiting import SOON

pytestmark = pytest.mark.anyio

NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture
async def engine(path: Path, clock: ManualClock) -> AsyncIterator[SQLiteEngine]:
    async with SQLiteEngine(path, clock=clock, busy_timeout=0.05) as engine:
        yield engine


def content(path: Path) -> bytes:
    return path.read_bytes()


def overwrite(path: Path, at: int, data: bytes) -> None:
    path.touch()
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Somebody else keeps a write transaction open."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


@contextmanager
def unprivileged() -> Iterator[None]:
    """Permissions do not bind root, so root becomes somebody else for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder whose parents everybody may enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    try:
        yield folder
    finally:
        folder.chmod(0o777)
        shutil.rmtree(folder)


async def test_a_locked_database_is_refused_at_opening(path: Path, engine: SQLiteEngine) -> None:
    with locked(path), pytest.raises(StorageError, match=r"locked.*busy_timeout"):
        await SQLiteEngine(path, busy_timeout=0.05).open()


async def test_a_locked_database_refuses_commits_and_takes_them_again_afterwards(
    path: Path, engine: SQLiteEngine, changes: Changes
) -> None:
    await engine.commit(changes.start())
    with locked(path):
        results = await asyncio.gather(
            engine.commit(changes.chunk()),
            engine.commit(changes.start("another")),
            engine.claim(WORKER, [AGENT], 1, 0),
            engine.commit(changes.move(context=b"lost")),
            return_exceptions=True,
        )
    for result in results:
        assert isinstance(result, StorageError)
        assert "is locked: another process" in str(result)
    assert len({id(result) for result in results}) == 4
    assert (await engine.commit(changes.chunk())).version == 3
    assert (await engine.list(ListQuery(scope=ME))).total_size == 1
    assert await engine.load_context(ME, "c") is None


async def test_a_refused_commit_is_seen_by_nobody(path: Path, engine: SQLiteEngine, changes: Changes) -> None:
    await engine.commit(changes.start())
    subscription = engine.subscribe("t", ME, 2)
    with locked(path), pytest.raises(StorageError):
        await engine.commit(changes.chunk())
    assert await subscription.next(timeout=0.01) == []
    subscription.close()


async def test_a_full_disk_refuses_the_whole_batch_and_half_of_nothing_is_written(
    engine: SQLiteEngine, changes: Changes
) -> None:
    await engine.commit(changes.start())
    # SQLite's own bound on the file's size gives the same error as a full disk.
    await engine.store.do(lambda connection: connection.execute("PRAGMA max_page_count = 1").fetchone())
    results = await asyncio.gather(
        engine.commit(changes.start("small")),
        engine.commit(changes.chunk(text="x" * 1_000_000)),
        return_exceptions=True,
    )
    for result in results:
        assert isinstance(result, StorageError)
        assert "full" in str(result)
        assert "Free some space" in str(result)
    assert len(await log_of(engine)) == 2
    assert (await engine.list(ListQuery(scope=ME))).total_size == 1
    await engine.store.do(lambda connection: connection.execute("PRAGMA max_page_count = 100000").fetchone())
    assert (await engine.commit(changes.chunk(text="x" * 1_000_000))).version == 3


async def test_a_disk_that_refuses_to_write_refuses_the_commit_and_nothing_else(
    path: Path, engine: SQLiteEngine, changes: Changes
) -> None:
    await engine.commit(changes.start())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_name("tasks.db-wal").stat().st_size, hard))
    try:
        with pytest.raises(StorageError, match="disk"):
            await engine.commit(changes.chunk(text="x" * 100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (await engine.load("t", ME)).version == 2
    assert (await engine.commit(changes.chunk())).version == 3


async def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(path: Path) -> None:
    overwrite(path, 0, b"Dear diary, " * 1000)
    before = content(path)
    with pytest.raises(StorageError, match="not a SQLite database"):
        await SQLiteEngine(path).open()
    assert content(path) == before


async def test_an_overwritten_header_is_recognised(path: Path, changes: Changes) -> None:
    async with SQLiteEngine(path) as engine:
        await engine.commit(changes.start())
    overwrite(path, 0, b"\xff" * 64)
    with pytest.raises(StorageError, match="backup"):
        await SQLiteEngine(path).open()


async def test_a_damaged_database_says_so_when_it_is_read_and_written(path: Path, changes: Changes) -> None:
    async with SQLiteEngine(path) as engine:
        for number in range(50):
            await engine.commit(changes.start(f"t{number}"))
    with closing(sqlite3.connect(path)) as connection:
        roots = connection.execute("SELECT rootpage FROM sqlite_master WHERE tbl_name = 'tasks' AND rootpage > 0")
        pages = [page for (page,) in roots.fetchall()]
    for page in pages:
        overwrite(path, (page - 1) * 4096, b"\x5a" * 4096)
    async with SQLiteEngine(path) as engine:
        for call in (engine.load("t1", ME), engine.commit(changes.chunk("t1"))):
            with pytest.raises(StorageError, match=r"damaged.*\.recover"):
                await call


async def test_a_path_that_is_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be opened"):
        await SQLiteEngine(tmp_path).open()


async def test_a_parent_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="directory"):
        await SQLiteEngine(tmp_path / "file" / "tasks.db").open()


async def test_a_directory_that_may_not_be_written_to_is_refused(open_folder: Path) -> None:
    os.chmod(open_folder, 0o555)
    with unprivileged(), pytest.raises(StorageError, match="permissions"):
        await SQLiteEngine(open_folder / "tasks.db").open()


async def test_a_directory_that_may_not_be_made_is_refused(open_folder: Path) -> None:
    os.chmod(open_folder, 0o555)
    with unprivileged(), pytest.raises(StorageError, match="cannot be made: Permission denied"):
        await SQLiteEngine(open_folder / "deeper" / "tasks.db").open()


async def test_a_file_that_may_not_be_read_is_refused(open_folder: Path, changes: Changes) -> None:
    path = open_folder / "tasks.db"
    async with SQLiteEngine(path) as engine:
        await engine.commit(changes.start())
    os.chmod(path, 0o000)
    with unprivileged(), pytest.raises(StorageError, match="permissions"):
        await SQLiteEngine(path).open()


async def test_a_file_that_may_not_be_written_is_refused(open_folder: Path, changes: Changes) -> None:
    path = open_folder / "tasks.db"
    async with SQLiteEngine(path) as engine:
        await engine.commit(changes.start())
    os.chmod(path, 0o444)
    before = content(path)
    with unprivileged(), pytest.raises(StorageError, match="read-only"):
        await SQLiteEngine(path).open()
    assert content(path) == before


async def test_a_file_that_becomes_read_only_refuses_commits(engine: SQLiteEngine, changes: Changes) -> None:
    await engine.commit(changes.start())
    await engine.store.do(lambda connection: connection.execute("PRAGMA query_only = ON").fetchone())
    with pytest.raises(StorageError, match=r"read-only.*write permission"):
        await engine.commit(changes.chunk())


async def test_an_opening_that_failed_leaves_nothing_behind(path: Path, changes: Changes) -> None:
    overwrite(path, 0, b"no database")
    engine = SQLiteEngine(path)
    with pytest.raises(StorageError):
        await engine.open()
    os.unlink(path)
    await engine.open()
    assert (await engine.commit(changes.start())).version == 2
    await engine.close()


@pytest.mark.parametrize("damage", ["tasks SET owner", "tasks SET worker", "events SET kind"])
async def test_a_text_that_is_not_utf_8_concerns_one_task_only(
    engine: SQLiteEngine, path: Path, changes: Changes, clock: ManualClock, damage: str
) -> None:
    await engine.commit(changes.start("bad"))
    await engine.commit(changes.start("good"))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE {damage} = CAST(x'ff' AS TEXT) WHERE rowid IN (1, 1 << 28 | 1)")
    assert {stored.task.id for stored in (await engine.list(ListQuery(scope=ME))).tasks} >= {"good"}
    assert "good" in {task.task_id for task in await engine.running()}
    clock.advance(LEASE_MS)
    claimed = await engine.claim(WORKER, [AGENT], 10, clock() + LEASE_MS)
    assert "good" in {stored.task.id for stored in claimed}
    assert await engine.sweep() == 0


async def test_whatever_stands_in_the_row_of_a_task_it_concerns_no_other(
    path: Path, changes: Changes, clock: ManualClock
) -> None:
    retention = Retention(ended_after=1, events_per_task=3)
    async with SQLiteEngine(path, clock=clock, retention=retention) as engine:
        fields = set(Head.__struct_fields__) - {"pushes"}
        columns = [*sorted(fields), "context_id", "folded", "trimmed"]
        damages = [(column, value) for column in columns for value in ("x", "", -1, 1.5, 2**62)]
        for number in range(len(damages)):
            await engine.commit(changes.start(f"bad {number}"))
        await engine.commit(changes.start("good"))
        for _ in range(5):
            await engine.commit(changes.chunk("good"))
        with closing(sqlite3.connect(path)) as connection, connection:
            for number, (column, value) in enumerate(damages):
                connection.execute(f"UPDATE tasks SET {column} = ? WHERE id = ?", (value, f"bad {number}"))
        everything = ListQuery(scope=ME, page_size=1000)
        assert "good" in {stored.task.id for stored in (await engine.list(everything)).tasks}
        assert "good" in {task.task_id for task in await engine.running()}
        leases = [Lease("good", 1), *(Lease(f"bad {number}", 1) for number in range(len(damages)))]
        lost = {signal.task_id for signal in await engine.extend(WORKER, leases, clock() + LEASE_MS) if signal.lost}
        assert "good" not in lost
        clock.advance(LEASE_MS)
        claimed = await engine.claim("another", [AGENT], 1000, clock() + LEASE_MS)
        assert "good" in {stored.task.id for stored in claimed}
        assert not any(stored.damage for stored in claimed)
        clock.advance(2000)
        await engine.sweep()
        assert (await engine.read("good", ME, 0)).gap
        async for stored in engine.every_task():
            if stored.damage:
                await engine.delete(stored.task.id, stored.scope)
        assert not [stored.task.id async for stored in engine.every_task() if stored.damage]


# A file that is deleted or replaced while it is served


def delete(path: Path) -> None:
    path.unlink()


def move(path: Path) -> None:
    path.rename(path.with_suffix(".old"))


def replace(path: Path) -> None:
    """Puts another database in its place, as a restored backup would be."""
    with closing(sqlite3.connect(path.with_suffix(".new"))) as other:
        other.execute("VACUUM")
    path.with_suffix(".new").rename(path)


def delete_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


async def commit_until_refused(engine: SQLiteEngine, changes: Changes) -> None:
    async with asyncio.timeout(SOON):
        while True:
            await engine.commit(changes.chunk(text="x" * 1000))


@pytest.fixture
def always_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the writer look for its file at every commit."""
    monkeypatch.setattr(store, "CHECK_FILE_EVERY", 0.0)


@pytest.mark.usefixtures("always_looking")
@pytest.mark.parametrize("take_away", [delete, move, replace, delete_folder])
async def test_nothing_is_accepted_into_a_file_that_is_gone(
    path: Path, engine: SQLiteEngine, changes: Changes, take_away: Callable[[Path], None]
) -> None:
    await engine.commit(changes.start())
    take_away(path)
    results = await asyncio.gather(
        engine.commit(changes.chunk()),
        engine.commit(changes.start("another")),
        engine.claim(WORKER, [AGENT], 1, 0),
        return_exceptions=True,
    )
    for result in results:
        assert isinstance(result, StorageError)
        assert "was deleted, moved or replaced" in str(result)
        assert "restart" in str(result)
    with pytest.raises(StorageError, match="replaced"):
        await engine.commit(changes.start("later"))
    with pytest.raises(StorageError, match="replaced"):
        await engine.check()
    # Readers that connect later do not make a new file, nor read from one.
    loaded = await asyncio.gather(*(engine.load("t", ME) for _ in range(8)), return_exceptions=True)
    assert all(isinstance(result, StorageError | StoredTask) for result in loaded)
    if take_away in (delete, move):
        assert path.name not in os.listdir(path.parent)


@pytest.mark.usefixtures("always_looking")
async def test_a_file_that_is_put_back_is_used_again(path: Path, engine: SQLiteEngine, changes: Changes) -> None:
    await engine.commit(changes.start())
    move(path)
    with pytest.raises(StorageError, match="replaced"):
        await engine.commit(changes.start("refused"))
    os.rename(path.with_suffix(".old"), path)
    await engine.commit(changes.start("taken"))
    await engine.check()


@pytest.mark.usefixtures("always_looking")
@pytest.mark.parametrize("beside", ["-wal", "-shm"])
async def test_nothing_is_accepted_into_a_log_that_is_gone(
    path: Path, engine: SQLiteEngine, changes: Changes, beside: str
) -> None:
    await engine.commit(changes.start())
    delete(path.with_name(f"tasks.db{beside}"))
    with pytest.raises(StorageError, match=f"tasks.db{beside} was deleted"):
        await engine.commit(changes.chunk())
    with pytest.raises(StorageError, match=f"tasks.db{beside} was deleted"):
        await engine.check()


async def test_a_relative_path_is_that_of_the_moment_it_was_opened(
    tmp_path: Path, changes: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    async with SQLiteEngine("tasks.db") as engine:
        monkeypatch.chdir(tmp_path / "elsewhere")
        await engine.commit(changes.start())
        assert (await engine.load("t", ME)).version == 2
        await engine.check()


async def test_processes_that_share_a_file_do_not_take_each_other_for_a_replacement(
    path: Path, engine: SQLiteEngine, changes: Changes
) -> None:
    await engine.commit(changes.start())
    async with SQLiteEngine(path) as other:
        await other.commit(changes.start("other"))
    await engine.commit(changes.chunk())
    await engine.check()


# Readiness


async def set_max_pages(engine: SQLiteEngine, pages: int) -> None:
    """SQLite's own bound on the file's size gives the same error as a full disk."""
    await engine.store.do(lambda connection: connection.execute(f"PRAGMA max_page_count = {pages}").fetchone())


async def test_a_full_disk_is_told_and_so_is_its_end(engine: SQLiteEngine, changes: Changes) -> None:
    await engine.commit(changes.start())
    assert await trouble_of(engine) == ""
    await set_max_pages(engine, 1)
    with pytest.raises(StorageError, match="full"):
        await commit_until_refused(engine, changes)
    await until_trouble(engine, "full")
    await set_max_pages(engine, 100_000)
    assert await trouble_of(engine) == ""


async def test_a_disk_that_refuses_to_write_is_told(path: Path, engine: SQLiteEngine, changes: Changes) -> None:
    await engine.commit(changes.start())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_name("tasks.db-wal").stat().st_size, hard))
    try:
        await until_trouble(engine, "disk")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert await trouble_of(engine) == ""


async def test_a_database_that_stays_locked_is_told(path: Path, engine: SQLiteEngine) -> None:
    with locked(path):
        await until_trouble(engine, "locked")
    assert await trouble_of(engine) == ""


async def test_asking_whether_it_is_well_leaves_nothing_behind(path: Path, engine: SQLiteEngine) -> None:
    for _ in range(3):
        await engine.check()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM events").fetchone() == (0,)
