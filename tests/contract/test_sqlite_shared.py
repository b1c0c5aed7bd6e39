"""Several engines on one SQLite file, where nobody tells the others: each looks whether somebody wrote."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from errands.engines.sqlite import SQLiteEngine
from errands.model.log import Lease
from tests.contract.changes import LEASE_MS, ME, WORKER, Changes, ManualClock, collect

pytestmark = pytest.mark.anyio

Pair = tuple[SQLiteEngine, SQLiteEngine]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture
async def pair(path: Path, clock: ManualClock) -> AsyncIterator[Pair]:
    async with (
        SQLiteEngine(path, clock=clock, poll_interval=0.01) as one,
        SQLiteEngine(path, clock=clock, poll_interval=0.01) as other,
    ):
        yield one, other


async def test_a_subscriber_does_not_skip_what_the_other_wrote_between_two_of_ours(
    path: Path, changes: Changes, clock: ManualClock
) -> None:
    # Nobody looks for the other's writes while the test runs.
    async with (
        SQLiteEngine(path, clock=clock, poll_interval=3600) as one,
        SQLiteEngine(path, clock=clock, poll_interval=3600) as other,
    ):
        await one.commit(changes.start())
        subscription = one.subscribe("t", ME, 2, caught_up=True)
        for engine in (one, one, other, one, other, other, one):
            await engine.commit(changes.chunk())
        assert await collect(subscription, 9) == list(range(3, 10))
        subscription.close()


async def test_workers_are_not_woken_when_the_other_only_works_on(
    pair: Pair, changes: Changes, clock: ManualClock
) -> None:
    one, other = pair
    await one.commit(changes.start())
    subscription = one.subscribe("t", ME, 2)
    woken = asyncio.Event()
    one.on_work(woken.set)
    for version in range(3, 8):
        await other.extend(WORKER, [Lease("t", 1)], clock() + LEASE_MS)
        await other.commit(changes.chunk())
        # What the subscriber hears comes from the same look that decides about the workers.
        assert await collect(subscription, version) == [version]
    assert not woken.is_set()
    subscription.close()
