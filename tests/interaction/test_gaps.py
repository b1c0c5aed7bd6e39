"""A reader who is too slow for a log that is trimmed: what they missed is told so that any client can read it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from errands import lifecycle
from errands.engines.base import Retention
from errands.engines.memory import MemoryEngine
from errands.errors import UnavailableError
from errands.model.core import TERMINAL_STATES, StreamResponse, Task
from errands.runtime.streams import EventStream, StreamItem, Streams, snapshot
from tests.contract.changes import ME, Changes, ManualClock

pytestmark = pytest.mark.anyio

KEPT = 3


def responses(items: list[StreamItem]) -> list[StreamResponse]:
    return [msgspec.json.decode(item.data, type=StreamResponse) for item in items]


class Slow:
    """Somebody who reads a task so slowly that parts of its log are gone before they come to them."""

    def __init__(self, engine: MemoryEngine, changes: Changes) -> None:
        self.engine, self._changes = engine, changes

    async def follow(self) -> EventStream:
        await self.engine.commit(self._changes.start())
        stored = await self.engine.load("t", ME)
        follow = Streams(self.engine, keep_alive=60).follow
        return follow(stored, TERMINAL_STATES, [snapshot(stored)])

    async def miss(self) -> None:
        for number in range(2 * KEPT):
            await self.engine.commit(self._changes.chunk(text=f"{number} "))
        await self.engine.sweep()


@pytest.fixture
async def slow() -> AsyncIterator[Slow]:
    clock = ManualClock()
    async with MemoryEngine(clock=clock, retention=Retention(events_per_task=KEPT)) as engine:
        yield Slow(engine, Changes(clock))


async def test_a_stream_shows_a_task_once_however_often_events_are_gone(slow: Slow) -> None:
    stream = aiter(await slow.follow())
    shown = responses(await anext(stream))
    for _ in range(3):
        await slow.miss()
        shown += responses(await anext(stream))
    assert [response.task is not None for response in shown] == [True] + [False] * (len(shown) - 1)


async def test_whoever_leaves_after_a_gap_is_gone(slow: Slow) -> None:
    stream = await slow.follow()
    batches = aiter(stream)
    await anext(batches)
    await slow.miss()
    await anext(batches)
    waiting = asyncio.ensure_future(anext(batches, None))
    await asyncio.sleep(0)
    stream.close()
    assert await waiting is None


async def test_a_server_that_stops_says_so_after_a_gap_too(slow: Slow) -> None:
    batches = aiter(await slow.follow())
    await anext(batches)
    await slow.miss()
    await anext(batches)
    slow.engine.disconnect()
    with pytest.raises(UnavailableError):
        await anext(batches)


async def test_a_stream_shows_a_task_once_also_when_events_are_gone() -> None:
    """The client of a2a-sdk 0.3 breaks off at a second task."""
    clock = ManualClock()
    changes = Changes(clock)
    async with MemoryEngine(clock=clock, retention=Retention(events_per_task=KEPT)) as engine:
        await engine.commit(changes.start())
        await engine.commit(changes.chunk(text="one "))
        stored = await engine.load("t", ME)
        follow = Streams(engine, keep_alive=60).follow
        stream = aiter(follow(stored, TERMINAL_STATES, [snapshot(stored)]))
        [first] = responses(await anext(stream))
        for number in range(2 * KEPT):
            await engine.commit(changes.chunk(text=f"{number} "))
        await engine.sweep()
        missed = await anext(stream)
        await engine.commit(changes.complete())
        rest = [item async for batch in stream for item in batch]
        done = await engine.load("t", ME)

    assert all(item.gap for item in missed)
    assert [item.version for item in missed] == [stored.version, stored.version + 2 * KEPT]
    later = responses([*missed, *rest])
    assert [update.task for update in later] == [None] * len(later)
    assert isinstance(first.task, Task)
    seen = lifecycle.fold_updates(first.task, later)
    assert (seen.artifacts, seen.status) == (done.task.artifacts, done.task.status)
