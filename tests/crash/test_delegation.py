"""The process that runs a parent and its child is killed; whoever goes on has the same child."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from errands.client import A2AClient
from errands.engines.urls import engine_from_url
from errands.model.core import TaskState
from errands.model.log import ListQuery, Scope
from errands.policy.records import DelegationBegan
from errands.runtime.run import stored_records
from tests.processes import Process
from tests.unit.delegation.support import CHILD

pytestmark = [pytest.mark.anyio, pytest.mark.crash, pytest.mark.timeout(120)]

PARENT = Scope("", "", "Parent")


def family(folder: Path, lease: float = 1.0) -> Process:
    return Process("tests.crash.family", str(folder), str(lease))


async def begun(folder: Path, process: Process) -> None:
    while not (folder / f"begun-{process.pid}").exists():
        await asyncio.sleep(0.01)


async def check_outcome(folder: Path, url: str, task_id: str) -> None:
    """The parent ends well, with the one child that there ever was."""
    async with A2AClient(url) as client:
        async for event in client.subscribe(task_id):
            if event.kind != "artifact" and event.is_final:
                break
        result = await client.get_task(task_id)
    assert result.state == "completed"
    assert result.data == {"message": [{"mimeType": "text/plain", "text": "child: hello"}]}
    async with engine_from_url(f"sqlite:///{folder / 'tasks.db'}") as engine:
        [child] = (await engine.list(ListQuery(scope=CHILD))).tasks
        assert child.state is TaskState.COMPLETED
        records = await stored_records(engine, task_id, PARENT)
        assert [r.task_id for r in records if isinstance(r, DelegationBegan)] == [child.task.id]


@pytest.mark.parametrize("survivor", [True, False], ids=["another-process-goes-on", "it-is-started-again"])
async def test_a_parent_that_was_killed_finds_its_child_again(tmp_path: Path, survivor: bool) -> None:
    first, second = family(tmp_path), family(tmp_path)
    try:
        first.start()
        await first.ready()
        if survivor:
            second.start()
            await second.ready()
        async with A2AClient(first.url) as client:
            task = await client.send("hello", blocking=False)
        await begun(tmp_path, first)
        first.kill()
        if not survivor:
            second.start()
            await second.ready()
        await begun(tmp_path, second)
        (tmp_path / "go").touch()
        await check_outcome(tmp_path, second.url, task.task_id)
    finally:
        first.kill()
        second.kill()


@pytest.mark.parametrize("lease", [0.5, 60.0], ids=["nobody-holds-it", "the-dead-process-still-holds-it"])
async def test_the_child_of_a_killed_parent_is_canceled_with_it(tmp_path: Path, lease: float) -> None:
    first, second = family(tmp_path, lease), family(tmp_path, 60.0)
    try:
        first.start()
        await first.ready()
        async with A2AClient(first.url) as client:
            task = await client.send("hello", blocking=False)
        await begun(tmp_path, first)
        first.kill()
        second.start()
        await second.ready()
        async with A2AClient(second.url) as client:
            assert (await client.cancel(task.task_id)).state == "canceled"
        async with engine_from_url(f"sqlite:///{tmp_path / 'tasks.db'}") as engine:
            [child] = (await engine.list(ListQuery(scope=CHILD))).tasks
            ended = await engine.wait_for_state(child.task.id, CHILD, frozenset({TaskState.CANCELED}), 10)
            assert ended.state is TaskState.CANCELED
    finally:
        first.kill()
        second.kill()
