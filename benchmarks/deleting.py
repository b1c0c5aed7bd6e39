"""Measure commits while a task with a very long log is deleted: python benchmarks/deleting.py EVENTS URL...

Fills a store with one ended task of that many events, deletes it while short tasks are written one after the other,
and prints how long those commits took before and during the deletion. Use an empty store: its ended tasks are deleted.
"""

from __future__ import annotations

import asyncio
import sys
import time
from statistics import median
from uuid import uuid4

from errands.clock import system_clock, to_iso
from errands.engines.base import Engine, Retention
from errands.engines.urls import engine_from_url
from errands.model.base import encode
from errands.model.core import Artifact, Part, StreamResponse, Task, TaskArtifactUpdateEvent, TaskState, TaskStatus
from errands.model.log import Change, Draft, Scope, Work

SCOPE = Scope("", "", "bench")
#: Events in one commit while the store is filled.
PIECE = 5000


def _create(task_id: str) -> Change:
    now = system_clock()
    task = Task(id=task_id, context_id="c", status=TaskStatus(state=TaskState.WORKING, timestamp=to_iso(now)))
    return Change(
        task_id=task_id,
        scope=SCOPE,
        events=[Draft("task", encode(StreamResponse(task=task)))],
        expected=0,
        at=now,
        state=TaskState.WORKING,
        work=Work.LEASE,
        worker="bench",
        due_at=now + 3_600_000,
        context_id="c",
    )


async def _fill(engine: Engine, task_id: str, events: int) -> None:
    artifact = Artifact(artifact_id="a", parts=[Part(text="some words of an answer, as a model streams them ")])
    update = TaskArtifactUpdateEvent(task_id=task_id, context_id="c", artifact=artifact, append=True)
    draft = Draft("artifact", encode(StreamResponse(artifact_update=update)))
    await engine.commit(_create(task_id))
    for _ in range(events // PIECE):
        await engine.commit(Change(task_id=task_id, scope=SCOPE, events=[draft] * PIECE, at=system_clock()))
    await engine.commit(
        Change(task_id=task_id, scope=SCOPE, at=system_clock(), state=TaskState.COMPLETED, work=Work.IDLE)
    )


async def _commits(engine: Engine, until: asyncio.Future[int]) -> list[float]:
    """Return the milliseconds of each commit in order."""
    took: list[float] = []
    while not until.done():
        began = time.perf_counter()
        await engine.commit(_create(str(uuid4())))
        took.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0)
    return took


def _figures(took: list[float]) -> str:
    ordered = sorted(took)
    return (
        f"{len(took):6} commits, median {median(took):7.2f} ms, 99 % {ordered[int(len(took) * 0.99)]:7.2f} ms, "
        f"longest {ordered[-1]:7.2f} ms"
    )


async def main(events: int, urls: list[str]) -> None:
    for url in urls:
        async with engine_from_url(url, Retention(ended_after=0)) as engine:
            await _fill(engine, str(uuid4()), events)
            idle: asyncio.Future[int] = asyncio.ensure_future(asyncio.sleep(3.0, 0))
            alone = await _commits(engine, idle)
            sweeping = asyncio.ensure_future(engine.sweep())
            began = time.perf_counter()
            beside = await _commits(engine, sweeping)
            print(f"{engine.name}: {events:,} events deleted in {time.perf_counter() - began:.2f} s")
            print(f"  before:    {_figures(alone)}")
            print(f"  meanwhile: {_figures(beside)}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    asyncio.run(main(int(sys.argv[1]), sys.argv[2:]))
