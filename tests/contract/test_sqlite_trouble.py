"""When the file cannot be used: what happened, what to do, and nothing half-written."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from errands.engines.sqlite import SQLiteEngine
from errands.errors import StorageError
from errands.model.log import ListQuery
from tests.contract.changes import AGENT, ME, WORKER, Changes, ManualClock, log_of

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
            engine.save_context(ME, "c", b"lost"),
            return_exceptions=True,
        )
    for result in results:
        assert isinstance(result, StorageError)
        assert "is locked: another process" in str(result)
    assert len({id(result) for result in results}) == 4
    assert await engine.commit(changes.chunk()) == 3
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
    assert engine._writer is not None
    # SQLite's own bound on the file's size gives the same error as a full disk.
    await engine._writer.submit(lambda connection: connection.execute("PRAGMA max_page_count = 1").fetchone())
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
    await engine._writer.submit(lambda connection: connection.execute("PRAGMA max_page_count = 100000").fetchone())
    assert await engine.commit(changes.chunk(text="x" * 1_000_000)) == 3


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
    assert await engine.commit(changes.chunk()) == 3


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
    overwrite(path, 4096, b"\x5a" * (len(content(path)) - 4096))
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
    assert engine._writer is not None
    await engine._writer.submit(lambda connection: connection.execute("PRAGMA query_only = ON").fetchone())
    with pytest.raises(StorageError, match=r"read-only.*write permission"):
        await engine.commit(changes.chunk())


async def test_an_opening_that_failed_leaves_nothing_behind(path: Path, changes: Changes) -> None:
    overwrite(path, 0, b"no database")
    engine = SQLiteEngine(path)
    with pytest.raises(StorageError):
        await engine.open()
    os.unlink(path)
    await engine.open()
    assert await engine.commit(changes.start()) == 2
    await engine.close()
