"""Two servers on one store: what is asked of one reaches the task that the other runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from errands import Settings, TaskContext, Worker
from errands.model.core import TaskState
from errands.testing import connect, serve
from tests.conftest import STORAGES
from tests.interaction.agents import Gated

pytestmark = pytest.mark.anyio


class SeesCancel(Worker):
    """Works until it is told to stop, and says that it was told."""

    def __init__(self) -> None:
        self.started = asyncio.Event()

    async def handle(self, ctx: TaskContext) -> None:
        self.started.set()
        while not ctx.is_cancelled:
            await asyncio.sleep(0)
        await ctx.fail("I was told to stop")


@pytest.fixture(params=[name for name in STORAGES if name != "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A storage URL of each engine that processes can share."""
    return STORAGES[request.param](tmp_path)


async def test_a_cancel_asked_of_one_reaches_the_worker_of_the_other(store: str) -> None:
    worker = SeesCancel()
    # The next heartbeat, which would tell it too, is far away.
    settings = Settings(lease_seconds=3600, cancel_force_timeout=3600)
    async with (
        connect(worker, storage=store, settings=settings) as here,
        connect(Gated(), storage=store, settings=settings) as there,
    ):
        task = await here.send("go", blocking=False)
        await worker.started.wait()
        canceled = await there.cancel(task.task_id)
        # By force there would be no message: the worker itself has ended its turn.
        assert (canceled.state, canceled.text) == ("canceled", "I was told to stop")


async def test_a_subscriber_of_one_is_shown_what_the_other_does(store: str) -> None:
    worker = Gated()
    async with connect(worker, storage=store) as here, connect(Gated(), storage=store) as there:
        task = await here.send("go", blocking=False)
        await worker.started.wait()
        events = there.subscribe(task.task_id)
        assert (await anext(events)).text == "first "
        worker.gate.set()
        assert [event.text or event.state async for event in events] == ["second", "completed"]


class Unrepeatable(Gated):
    on_interrupted = "fail"


async def test_a_turn_that_must_not_be_repeated_fails_when_its_server_stops(store: str) -> None:
    worker = Unrepeatable()
    server = serve(worker, storage=store, settings=Settings(drain_timeout=0.01))
    async with connect(server) as client:
        task = await client.send("go", blocking=False)
        await worker.started.wait()
    async with connect(Gated(), storage=store) as client:
        failed = await client.get_task(task.task_id)
        assert failed.raw_task is not None
        assert failed.raw_task.status.state is TaskState.FAILED
        assert failed.text == "The agent was stopped while it worked on this task."
        assert [artifact.text for artifact in failed.artifacts] == ["first "]
