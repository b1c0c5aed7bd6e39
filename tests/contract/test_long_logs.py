"""A log that is too long to be removed in one go goes in pieces; from the first of them on nobody sees it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from redis.asyncio import Redis

from errands.engines.base import Engine, Retention
from errands.engines.postgres import retention as postgres_retention
from errands.engines.postgres.connection import PostgresOptions, connect
from errands.engines.postgres.queries import QUERIES
from errands.engines.redis import retention as redis_retention
from errands.engines.redis.connection import RedisOptions
from errands.engines.sqlite import retention as sqlite_retention
from errands.engines.sqlite.connection import SQLiteOptions, open_reader
from errands.engines.urls import engine_from_url
from errands.errors import TaskNotFoundError
from errands.model.log import Draft, ListQuery
from tests.conftest import STORAGES
from tests.contract.changes import ME, Changes, ManualClock, text_in
from tests.contract.conftest import OpenEngine
from tests.contract.interrupted import BATCH, EVERYTHING_ENDED, KEPT, TRIMMED

pytestmark = pytest.mark.anyio

PIECES = 20


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sqlite_retention, postgres_retention, redis_retention):
        monkeypatch.setattr(module, "SWEEP_EVENTS", BATCH)


async def long_task(engine: Engine, changes: Changes, *, ended: bool = True) -> None:
    """A task with many events, a record in every piece, and a few receipts."""
    await engine.commit(changes.start(receipt=b"first"))
    for piece in range(PIECES):
        drafts = [changes.chunk(text=f"{piece}.{number} ").events[0] for number in range(BATCH)]
        drafts.append(Draft("record", b"%d" % piece))
        await engine.commit(changes.chunk(events=tuple(drafts), receipt=b"%d" % piece))
    if ended:
        await engine.commit(changes.complete())


WHOLE = "".join(f"{piece}.{number} " for piece in range(PIECES) for number in range(BATCH))


async def is_gone(engine: Engine) -> bool:
    for look in (engine.load, engine.records, engine.delete):
        with pytest.raises(TaskNotFoundError):
            await look("t", ME)
    with pytest.raises(TaskNotFoundError):
        await engine.read("t", ME, 0)
    page = await engine.list(ListQuery(scope=ME))
    return (page.tasks, page.total_size) == ([], 0)


@pytest.mark.usefixtures("small_batches")
async def test_a_deleted_task_is_gone_at_once_with_its_receipts(open_engine: OpenEngine, changes: Changes) -> None:
    engine = await open_engine(Retention())
    await long_task(engine, changes)
    await engine.delete("t", ME)
    assert await is_gone(engine)
    # Nothing of the first is found by others, nor by a second task of the same name.
    await engine.commit(changes.start("other", receipt=b"5"))
    await engine.commit(changes.start(receipt=b"first"))
    assert text_in(await engine.load("t", ME)) == ""
    assert await engine.records("t", ME) == []
    assert await engine.sweep() == 0
    assert await engine.records("t", ME) == []
    assert (await engine.load("other", ME)).version == 2


@pytest.mark.usefixtures("small_batches")
async def test_long_and_short_tasks_are_swept_together(
    open_engine: OpenEngine, changes: Changes, clock: ManualClock
) -> None:
    engine = await open_engine(Retention(ended_after=0))
    await long_task(engine, changes)
    for name in ("a", "b"):
        await engine.commit(changes.start(name))
        await engine.commit(changes.complete(name))
    clock.advance(1)
    assert await engine.sweep() == 3
    assert await is_gone(engine)


@pytest.mark.usefixtures("small_batches")
async def test_a_log_that_is_cut_in_pieces_loads_as_before(open_engine: OpenEngine, changes: Changes) -> None:
    engine = await open_engine(Retention(events_per_task=BATCH))
    await long_task(engine, changes, ended=False)
    await engine.sweep()
    version = 2 + PIECES * (BATCH + 1)
    kept = (await engine.read("t", ME, version - BATCH)).events
    assert [event.version for event in kept] == list(range(version - BATCH + 1, version + 1))
    assert (await engine.read("t", ME, version - BATCH - 1)).gap
    assert text_in(await engine.load("t", ME)) == WHOLE
    assert [event.data for event in await engine.records("t", ME)] == [b"%d" % piece for piece in range(PIECES)]
    assert (await engine.commit(changes.chunk(text="end"))).version == version + 1


# A process that is killed at it


async def _rows_in_sqlite(storage: str) -> int:
    connection = open_reader(SQLiteOptions(storage.removeprefix("sqlite:///"), "NORMAL", 5.0))
    try:
        return sum(
            connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("tasks", "events", "remains")  # receipts go when their window has passed
        )
    finally:
        connection.close()


async def _rows_in_postgres(storage: str) -> int:
    connection = await connect(PostgresOptions.parse(storage))
    try:
        return sum(
            [
                await connection.fetchval(f"SELECT count(*) FROM {table}")
                for table in ("tasks", "events", "remains")  # receipts go when their window has passed
            ]
        )
    finally:
        await connection.close()


async def _keys_in_redis(storage: str) -> int:
    """Without those that expire, that say when it was swept, and which agents there were."""
    options = RedisOptions.from_url(storage)
    async with Redis(host=options.host, port=options.port, db=options.db) as client:
        keys = [key async for key in client.scan_iter(f"{{{options.prefix}}}:*")]
    return sum(b":task:" in key or b":log:" in key or b":records:" in key for key in keys)


async def _unlock_redis(storage: str) -> None:
    """Takes away what keeps others from sweeping, for a minute, after the process that was at it died."""
    options = RedisOptions.from_url(storage)
    async with Redis(host=options.host, port=options.port, db=options.db) as client:
        assert await client.delete(f"{{{options.prefix}}}:sweeper") == 1


async def _unlock_postgres(storage: str) -> None:
    """Waits until the server has noticed that the process died, and lets others sweep."""
    connection = await connect(PostgresOptions.parse(storage))
    try:
        while not await connection.fetchval(QUERIES["sweeper"]):
            await asyncio.sleep(0.01)
        await connection.fetchval(QUERIES["swept"])
    finally:
        await connection.close()


COUNTS: dict[str, Callable[[str], Awaitable[int]]] = {
    "sqlite": _rows_in_sqlite,
    "postgresql": _rows_in_postgres,
    "redis": _keys_in_redis,
}


#: What has to be done before others can sweep.
UNLOCKS: dict[str, Callable[[str], Awaitable[None]]] = {"postgresql": _unlock_postgres, "redis": _unlock_redis}


async def sweep_until_killed(store: str, storage: str, what: str) -> None:
    """Lets a process begin to remove, that dies on the way."""
    killed = await anyio.run_process([sys.executable, "-m", "tests.contract.interrupted", storage, what], check=False)
    assert killed.returncode == -9
    if store in UNLOCKS:
        await UNLOCKS[store](storage)


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
async def test_a_task_that_is_half_deleted_is_gone_and_the_next_sweep_goes_on(store: str, tmp_path: Path) -> None:
    storage = STORAGES[store](tmp_path)
    async with engine_from_url(storage) as engine:
        await long_task(engine, Changes(ManualClock()))
    whole = await COUNTS[store](storage)
    await sweep_until_killed(store, storage, "delete")
    assert 0 < await COUNTS[store](storage) < whole
    async with engine_from_url(storage, EVERYTHING_ENDED) as engine:
        assert await is_gone(engine)
        assert await engine.sweep() == 0
    assert await COUNTS[store](storage) == 0


@pytest.mark.parametrize("store", COUNTS)
async def test_a_log_that_is_half_cut_loads_as_before_and_the_next_sweep_goes_on(store: str, tmp_path: Path) -> None:
    storage = STORAGES[store](tmp_path)
    async with engine_from_url(storage) as engine:
        await long_task(engine, Changes(ManualClock()))
    await sweep_until_killed(store, storage, "trim")
    async with engine_from_url(storage, TRIMMED) as engine:
        version = (await engine.load("t", ME)).version
        assert (await engine.read("t", ME, 0)).gap
        assert not (await engine.read("t", ME, version - KEPT - BATCH)).gap
        assert text_in(await engine.load("t", ME)) == WHOLE
        await engine.sweep()
        assert (await engine.read("t", ME, version - KEPT - 1)).gap
        assert not (await engine.read("t", ME, version - KEPT)).gap
        assert text_in(await engine.load("t", ME)) == WHOLE
        assert len(await engine.records("t", ME)) == PIECES


async def test_what_redis_frees_is_all_of_a_task(tmp_path: Path) -> None:
    storage = STORAGES["redis"](tmp_path)
    async with engine_from_url(storage, EVERYTHING_ENDED) as engine:
        await long_task(engine, Changes(ManualClock()))
        await engine.sweep()
    assert await COUNTS["redis"](storage) == 0
