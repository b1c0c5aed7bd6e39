"""A reader who is too slow for a log that is trimmed: what they missed is told so that any client can read it."""

from __future__ import annotations

import msgspec
import pytest

from errands import lifecycle
from errands.engines.base import Retention
from errands.engines.memory import MemoryEngine
from errands.model.core import TERMINAL_STATES, StreamResponse, Task
from errands.runtime.call import CallContext, StreamItem
from errands.runtime.streams import Streams, snapshot
from tests.contract.changes import ME, Changes, ManualClock

pytestmark = pytest.mark.anyio

KEPT = 3


def responses(items: list[StreamItem]) -> list[StreamResponse]:
    return [msgspec.json.decode(item.data, type=StreamResponse) for item in items]


async def test_a_stream_shows_a_task_once_also_when_events_are_gone() -> None:
    """The client of a2a-sdk 0.3 breaks off at a second task."""
    clock = ManualClock()
    changes = Changes(clock)
    async with MemoryEngine(clock=clock, retention=Retention(events_per_task=KEPT)) as engine:
        await engine.commit(changes.start())
        await engine.commit(changes.chunk(text="one "))
        stored = await engine.load("t", ME)
        follow = Streams(engine, keep_alive=60).follow
        stream = aiter(follow(stored, CallContext(ME), stored.version, [snapshot(stored)], TERMINAL_STATES))
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
