"""Several engines on one store: two in this process, and others in processes of their own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import errands
from errands.engines.base import Engine
from errands.engines.postgres import PostgresEngine
from errands.engines.urls import engine_from_url
from tests.contract.changes import ManualClock

#: Seconds between looks of an engine that shall not look while a test runs.
NEVER = 3600.0

#: A process of its own: appends to the shared task, creates tasks, claims some, and says what it got.
PROCESS = """
import asyncio, json, sys
from tests.contract.changes import AGENT, LEASE_MS, Changes, ManualClock
from tests.contract.sharing import engine_at

async def main(url, name):
    clock = ManualClock()
    changes = Changes(clock)
    async with engine_at(url, clock) as engine:
        await asyncio.gather(
            engine.commit(changes.start("shared")), return_exceptions=True
        )
        versions = []
        for number in range(30):
            head = await engine.commit(changes.chunk("shared", f"{name}:{number};"))
            versions.append(head.version)
            await engine.commit(changes.create(f"{name}-{number}"))
        claimed = []
        while share := await engine.claim(name, [AGENT], 4, clock() + LEASE_MS):
            claimed += [stored.task.id for stored in share]
        print(json.dumps([versions, claimed]))

asyncio.run(main(*sys.argv[1:]))
"""

#: A process that claims the task, says so, and works until it is killed or hears that the task is wanted canceled.
HOLDER = """
import asyncio, sys
from errands.model.core import TaskState
from tests.contract.changes import AGENT, LEASE_MS, Changes, ManualClock
from tests.contract.sharing import engine_at

async def main(url):
    clock = ManualClock()
    changes = Changes(clock)
    async with engine_at(url, clock) as engine:
        woken = asyncio.Event()
        engine.on_work(woken.set)
        (stored,) = await engine.claim("holder", [AGENT], 1, clock() + LEASE_MS)
        await engine.commit(changes.working(fence=stored.head.attempt))
        print("working", flush=True)
        while not await engine.wanted_canceled("holder"):
            await woken.wait()
            woken.clear()
        await engine.commit(changes.status("t", TaskState.CANCELED, fence=stored.head.attempt))

asyncio.run(main(*sys.argv[1:]))
"""


def engine_at(url: str, clock: ManualClock) -> Engine:
    engine = engine_from_url(url)
    engine.clock = clock
    return engine


@asynccontextmanager
async def pair_at(url: str, clock: ManualClock) -> AsyncIterator[tuple[Engine, Engine]]:
    async with engine_at(url, clock) as one, engine_at(url, clock) as other:
        yield one, other


@asynccontextmanager
async def listening_pair(url: str, clock: ManualClock) -> AsyncIterator[tuple[PostgresEngine, PostgresEngine]]:
    """Two that never look by themselves: what they hear was told."""
    async with (
        PostgresEngine(url, clock=clock, poll_interval=NEVER) as one,
        PostgresEngine(url, clock=clock, poll_interval=NEVER) as other,
    ):
        await is_listening(one)
        await is_listening(other)
        yield one, other


async def is_listening(engine: PostgresEngine) -> None:
    """Waits until it hears what others tell."""
    await engine.parts.notifications.is_listening.wait()


async def spawn(script: str, *arguments: str) -> asyncio.subprocess.Process:
    roots = [str(Path(errands.__file__).parents[1]), str(Path(__file__).parents[2])]
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(roots)},
    )


async def run_process(url: str, name: str) -> tuple[list[int], list[str]]:
    """The versions that a process has written to the shared task, and the tasks that it has claimed."""
    process = await spawn(PROCESS, url, name)
    output, _ = await process.communicate()
    assert process.returncode == 0
    versions, claimed = json.loads(output)
    return versions, claimed


async def hold(url: str) -> asyncio.subprocess.Process:
    """A process that works on the task."""
    process = await spawn(HOLDER, url)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"working\n"
    return process
