"""One fixture for every engine. A later engine needs one line in `ENGINES`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from errands.clock import Clock
from errands.engines.base import Engine, Retention
from errands.engines.memory import MemoryEngine
from errands.engines.postgres import PostgresEngine
from errands.engines.redis import RedisEngine
from errands.engines.sqlite import SQLiteEngine
from tests.contract.changes import Changes, ManualClock
from tests.postgres import url_for
from tests.redis_server import shared_url

Build = Callable[[Path, Clock, Retention], Engine]

ENGINES: dict[str, Build] = {
    "memory": lambda folder, clock, retention: MemoryEngine(clock=clock, retention=retention),
    "sqlite": lambda folder, clock, retention: SQLiteEngine(folder / "tasks.db", clock=clock, retention=retention),
    "postgresql": lambda folder, clock, retention: PostgresEngine(url_for(folder), clock=clock, retention=retention),
    "redis": lambda folder, clock, retention: RedisEngine(shared_url(folder), clock=clock, retention=retention),
}


class OpenEngine(Protocol):
    async def __call__(self, retention: Retention = ...) -> Engine: ...


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def changes(clock: ManualClock) -> Changes:
    return Changes(clock)


@asynccontextmanager
async def opening(build: Build, folder: Path, clock: ManualClock) -> AsyncIterator[OpenEngine]:
    async with AsyncExitStack() as stack:

        async def open_engine(retention: Retention = Retention()) -> Engine:  # noqa: B008
            return await stack.enter_async_context(build(folder, clock, retention))

        yield open_engine


@pytest.fixture(params=ENGINES)
async def open_engine(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[OpenEngine]:
    """Opens an engine of each kind in turn; closed when the test is over."""
    async with opening(ENGINES[request.param], tmp_path, clock) as open_one:
        yield open_one


@pytest.fixture(params=[name for name in ENGINES if name != "memory"])
async def open_shared(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[OpenEngine]:
    """Opens engines of each kind that processes can share, all on one store."""
    async with opening(ENGINES[request.param], tmp_path, clock) as open_one:
        yield open_one


@pytest.fixture
async def engine(open_engine: OpenEngine) -> Engine:
    """An open and empty engine that keeps everything."""
    return await open_engine()


@pytest.fixture
async def stored_engine(open_shared: OpenEngine) -> Engine:
    """The same on a store that outlives it."""
    return await open_shared()
