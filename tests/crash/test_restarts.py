"""What counts against a task: a process that dies on it does, one that is restarted in good order does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from errands import A2AClient, ClientResult
from tests.cluster.cluster import Replica
from tests.conftest import STORAGES
from tests.crash.patient import MAX_ATTEMPTS
from tests.soak import LONG

pytestmark = [pytest.mark.anyio, pytest.mark.crash, pytest.mark.timeout(300)]

#: More than a task has attempts.
RESTARTS = 10 if LONG else MAX_ATTEMPTS + 1


@pytest.fixture(params=["sqlite", "postgresql", "redis"])
def store(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def server(store: str, tmp_path: Path) -> Iterator[Replica]:
    replica = Replica(STORAGES[store](tmp_path), module="tests.crash.patient")
    try:
        yield replica
    finally:
        replica.kill()


async def seen(server: Replica, task_id: str, wanted: Callable[[ClientResult], bool]) -> ClientResult:
    """The task once it is as wanted."""
    async with A2AClient(server.url) as client:
        while not wanted(task := await client.get_task(task_id)):
            await asyncio.sleep(0.02)
        return task


async def begun(server: Replica, task_id: str) -> int:
    """Which attempt it is, once the process that runs now has begun one."""
    task = await seen(server, task_id, lambda task: str(task.text).endswith(f" {server.pid}"))
    return int(str(task.text).split()[0])


async def begin(server: Replica, word: Path) -> str:
    """A new server with a task under way."""
    server.start()
    await server.ready()
    async with A2AClient(server.url) as client:
        task_id = (await client.send(str(word), blocking=False)).task_id
    assert await begun(server, task_id) == 1
    return task_id


async def restart(server: Replica) -> None:
    await asyncio.to_thread(server.stop)
    server.start()
    await server.ready()


async def test_a_task_outlives_more_restarts_than_it_has_attempts(server: Replica, tmp_path: Path) -> None:
    word = tmp_path / "word"
    task_id = await begin(server, word)
    for attempt in range(2, RESTARTS + 2):
        await restart(server)
        # A handler that begins again is told so.
        assert await begun(server, task_id) == attempt
    word.write_text("go on")
    assert (await seen(server, task_id, lambda task: task.is_terminal)).completed


async def test_a_task_that_kills_its_process_is_stopped_after_so_many_attempts_whatever_restarts_there_are(
    server: Replica, tmp_path: Path
) -> None:
    word = tmp_path / "word"
    task_id = await begin(server, word)
    for _ in range(MAX_ATTEMPTS):
        await restart(server)
        await begun(server, task_id)
        word.write_text("die")
        while not server.has_died:
            await asyncio.sleep(0.02)
        word.unlink()
        server.start()
        await server.ready()
    failed = await seen(server, task_id, lambda task: task.is_terminal)
    assert failed.failed
    assert failed.raw_task is not None
    assert f"interrupted {MAX_ATTEMPTS} times" in str(failed.raw_task.status.message)
