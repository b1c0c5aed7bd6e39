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
from errands.policy.run import stored_records
from errands.server.app import A2AServer
from errands.testing import serve
from tests.processes import Process
from tests.unit.client.serving import serving
from tests.unit.delegation.support import CHILD, Held

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

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
        async with A2AClient(first.url) as client:
            task = await client.send("hello", blocking=False)
        await begun(tmp_path, first)
        if survivor:
            # Not earlier: it takes over what it finds when the first stands still for longer than a lease.
            second.start()
            await second.ready()
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
            ended = await engine.wait_for_state(child.task.id, CHILD, frozenset({TaskState.CANCELED}), None)
            assert ended.state is TaskState.CANCELED
    finally:
        first.kill()
        second.kill()


# A child somewhere else, whose parent dies after the message was sent and before anybody has noted the child


class ParentAlone(Process):
    def __init__(self, folder: Path, far_away: str, lease: float) -> None:
        super().__init__("tests.crash.remote_family", str(folder), str(lease), far_away)


async def lost(folder: Path, far_away: str, lease: float) -> str:
    """The id of a parent that was killed in that moment."""
    (folder / "hold").touch()
    process = ParentAlone(folder, far_away, lease)
    try:
        process.start()
        await process.ready()
        async with A2AClient(process.url) as client:
            task = await client.send("hello", blocking=False)
        while not (folder / "sent").exists():
            await asyncio.sleep(0.01)
    finally:
        process.kill()
    async with engine_from_url(f"sqlite:///{folder / 'tasks.db'}") as engine:
        records = await stored_records(engine, task.task_id, PARENT)
    assert not any(isinstance(record, DelegationBegan) for record in records)
    (folder / "hold").unlink()
    return task.task_id


async def only_child(server: A2AServer) -> TaskState:
    [child] = (await server.engine.list(ListQuery(scope=server.scope()))).tasks
    return child.state


async def test_a_remote_child_that_nobody_has_noted_is_found_again(tmp_path: Path) -> None:
    child = Held()
    far_away = serve(child)
    async with serving(far_away.app) as url:
        task_id = await lost(tmp_path, url, lease=1.0)
        again = ParentAlone(tmp_path, url, lease=1.0)
        try:
            again.start()
            await again.ready()
            child.gate.set()
            async with A2AClient(again.url) as client:
                while (result := await client.get_task(task_id)).state != "completed":
                    await asyncio.sleep(0.05)
            assert result.data == {"message": [{"mimeType": "text/plain", "text": "child: hello"}]}
            assert await only_child(far_away) is TaskState.COMPLETED
        finally:
            again.kill()


async def test_a_remote_child_that_nobody_has_noted_is_canceled_with_its_parent(tmp_path: Path) -> None:
    far_away = serve(Held(), cancel_force_timeout=0.1)
    async with serving(far_away.app) as url:
        task_id = await lost(tmp_path, url, lease=60.0)
        again = ParentAlone(tmp_path, url, lease=60.0)
        try:
            again.start()
            await again.ready()
            async with A2AClient(again.url) as client:
                assert (await client.cancel(task_id)).state == "canceled"
            while await only_child(far_away) is not TaskState.CANCELED:
                await asyncio.sleep(0.05)
        finally:
            again.kill()
