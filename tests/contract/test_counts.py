"""`CommitCounts`: what every engine counts of the changes that it has made durable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from errands.engines.base import Engine, Retention
from errands.engines.commit import CommitCounts, Histogram
from errands.errors import ConcurrencyError
from errands.model.core import TaskState
from tests.contract.changes import AGENT, LEASE_MS, WORKER, Changes, ManualClock
from tests.contract.conftest import ENGINES

pytestmark = pytest.mark.anyio


@pytest.fixture(params=ENGINES)
async def counting(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Engine]:
    """An engine of each kind in turn that counts."""
    engine = ENGINES[request.param](tmp_path, clock, Retention())
    engine.counts = CommitCounts()
    async with engine:
        yield engine


def states(engine: Engine) -> dict[str, int]:
    assert engine.counts is not None
    return {state.short: count for state, count in engine.counts.states.items() if count}


def attempts(engine: Engine) -> list[int]:
    assert engine.counts is not None
    return [engine.counts.attempts[cause] for cause in ("new", "expired", "given back")]


async def test_states_are_counted_when_they_are_entered(counting: Engine, changes: Changes) -> None:
    await counting.commit(changes.create("waits"))
    assert states(counting) == {"submitted": 1}
    # It passes through `submitted` in the same change.
    await counting.commit(changes.start("t"))
    assert states(counting) == {"submitted": 2, "working": 1}
    await counting.commit(changes.chunk(fence=1))
    await counting.commit(changes.working(fence=1))
    assert states(counting) == {"submitted": 2, "working": 1}
    await counting.commit(changes.complete(fence=1))
    assert states(counting) == {"submitted": 2, "working": 1, "completed": 1}


async def test_a_change_that_is_refused_is_not_counted(counting: Engine, changes: Changes) -> None:
    await counting.commit(changes.start())
    with pytest.raises(ConcurrencyError):
        await counting.commit(changes.start())
    with pytest.raises(ConcurrencyError):
        await counting.commit(changes.complete(expected=7))
    assert states(counting) == {"submitted": 1, "working": 1}


async def test_attempts_are_counted_by_why_they_were_made(
    counting: Engine, changes: Changes, clock: ManualClock
) -> None:
    await counting.commit(changes.start())
    assert attempts(counting) == [1, 0, 0]
    clock.advance(LEASE_MS + 1)
    [claimed] = await counting.claim(WORKER, [AGENT], 5, clock() + LEASE_MS)
    # Not durable in the log before the next event.
    assert attempts(counting) == [1, 0, 0]
    await counting.commit(changes.chunk(fence=claimed.head.attempt))
    assert attempts(counting) == [1, 1, 0]
    given_back = changes.move(fence=2, work=changes.create().work, due_at=clock(), gives_back=True)
    await counting.commit(given_back)
    [claimed] = await counting.claim(WORKER, [AGENT], 5, clock() + LEASE_MS)
    await counting.commit(changes.chunk(fence=claimed.head.attempt))
    assert attempts(counting) == [1, 1, 1]


async def test_batches_are_counted_with_their_size_and_time(counting: Engine, changes: Changes) -> None:
    await asyncio.gather(*(counting.commit(changes.start(f"t{number}")) for number in range(20)))
    counts = counting.counts
    assert counts is not None
    assert counts.states[TaskState.WORKING] == 20
    if counting.name == "memory":
        assert sum(counts.changes.counts) == 0
        return
    assert counts.changes.sum == 20
    assert 1 <= sum(counts.changes.counts) < 20
    assert sum(counts.seconds.counts) == sum(counts.changes.counts)
    assert counts.seconds.sum > 0


def test_a_histogram_counts_a_value_at_the_first_bound_that_is_not_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 99.0):
        histogram.observe(value)
    assert (histogram.counts, histogram.sum) == ([2, 2, 1], 104.0)
