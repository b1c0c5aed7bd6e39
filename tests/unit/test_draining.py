"""A server that stops lets go of whatever it holds, also of what it has just been given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from errands import Settings, TaskContext, Worker
from errands.engines.sqlite import SQLiteEngine
from errands.model.log import Change, Head, StoredTask, Work
from errands.testing import connect
from tests.unit.support import Gate

pytestmark = pytest.mark.anyio

SETTINGS = Settings(drain_timeout=0.0, poll_interval=0.05, max_attempts=1)


class Waiting(Worker):
    def __init__(self) -> None:
        self.gate = Gate()

    async def handle(self, ctx: TaskContext) -> None:
        await self.gate()
        await ctx.complete()


class SlowToClaim(SQLiteEngine):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.gate = Gate()

    async def claim(self, worker: str, agents: Sequence[str], limit: int, until: int) -> list[StoredTask]:
        await self.gate()
        return await super().claim(worker, agents, limit, until)


class SlowToLease(SQLiteEngine):
    """Holds the commit up that creates a task and leases it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.gate = Gate()

    async def commit(self, change: Change) -> Head:
        if change.work is Work.LEASE:
            await self.gate()
        return await super().commit(change)


async def head_of(path: Path, task_id: str) -> Head:
    async with SQLiteEngine(path) as engine:
        return (await engine.load(task_id, None)).head


async def given_back(path: Path) -> str:
    """A task that a server has let go of."""
    worker = Waiting()
    async with connect(worker, storage=f"sqlite:///{path}", settings=SETTINGS) as client:
        task = await client.send("hi", blocking=False)
        await worker.gate.reached.wait()
    return task.task_id


async def test_a_turn_that_is_given_back_is_due_at_once_and_its_try_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    head = await head_of(path, await given_back(path))
    assert (head.worker, head.attempt, head.given_back) == ("", 1, 1)
    assert head.due_at is not None


async def test_a_task_that_is_claimed_while_the_server_stops_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    task_id = await given_back(path)
    engine = SlowToClaim(path)
    async with connect(Waiting(), storage=engine, settings=SETTINGS):
        await engine.gate.reached.wait()
        asyncio.get_running_loop().call_later(0.05, engine.gate.open)
    head = await head_of(path, task_id)
    assert (head.worker, head.attempt, head.given_back) == ("", 2, 2)


async def test_a_task_that_is_created_while_the_server_stops_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    engine = SlowToLease(path)
    async with connect(Waiting(), storage=engine, settings=SETTINGS) as client:
        sending = asyncio.create_task(client.send("hi", blocking=False))
        await engine.gate.reached.wait()
        asyncio.get_running_loop().call_later(0.05, engine.gate.open)
    head = await head_of(path, (await sending).task_id)
    assert (head.worker, head.attempt, head.given_back) == ("", 1, 1)
