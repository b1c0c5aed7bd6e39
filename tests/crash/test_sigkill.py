"""A server under load is killed with SIGKILL again and again; nothing that was acknowledged may be gone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import msgspec
import pytest

from errands.model.core import TERMINAL_STATES, Task, TaskState
from tests.clients import HEADERS, Acknowledged, decode, events_of, sending
from tests.crash.agent import whole
from tests.processes import Process
from tests.soak import LONG

pytestmark = [pytest.mark.anyio, pytest.mark.crash, pytest.mark.timeout(600)]

#: By the kind of agent.
KILLS = {"worker": 100, "executor": 33} if LONG else {"worker": 8, "executor": 4}
STREAMERS = 8
SENDERS = 8


@contextmanager
def agent_process(database: Path, kind: str) -> Iterator[Process]:
    """The agent at a fixed address, on a fixed file."""
    process = Process("tests.crash.agent", f"sqlite:///{database}", kind)
    try:
        yield process
    finally:
        process.kill()


class Load(Acknowledged):
    """Sends and streams without end, and notes everything the server has acknowledged."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        #: Every event we were shown, by task and version.
        self.seen: dict[str, dict[int, str]] = {}
        self.stopped = False

    async def send(self, client: httpx.AsyncClient) -> None:
        text = uuid4().hex[:8]
        body = sending(text, returnImmediately=random.random() < 0.5)
        answer = await client.post(f"{self._url}/message:send", json=body, headers=HEADERS)
        if answer.status_code == 200:
            self.accept(answer.json()["task"]["id"], text)

    async def stream(self, client: httpx.AsyncClient) -> None:
        text = uuid4().hex[:8]
        async with client.stream("POST", f"{self._url}/message:stream", json=sending(text), headers=HEADERS) as answer:
            if answer.status_code != 200:
                return
            task_id = ""
            async for event in events_of(answer):
                response = decode(event.data)
                if response.task is not None:
                    task_id = response.task.id
                    self.accept(task_id, text)
                assert event.id is not None
                self.seen.setdefault(task_id, {})[int(event.id)] = event.data

    async def run(self, work: Any) -> None:
        async with httpx.AsyncClient(timeout=10.0) as client:
            while not self.stopped:
                try:
                    await work(client)
                except httpx.HTTPError:
                    await asyncio.sleep(0.1)


@asynccontextmanager
async def under_load(load: Load) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        for _ in range(STREAMERS):
            group.create_task(load.run(load.stream))
        for _ in range(SENDERS):
            group.create_task(load.run(load.send))
        yield
        load.stopped = True


async def final_task(client: httpx.AsyncClient, url: str, task_id: str) -> Task:
    while True:
        answer = await client.get(f"{url}/tasks/{task_id}", headers=HEADERS)
        assert answer.status_code == 200, (task_id, answer.text)
        task = msgspec.json.decode(answer.content, type=Task)
        if task.status.state in TERMINAL_STATES:
            return task
        await asyncio.sleep(0.01)


async def log_of(client: httpx.AsyncClient, url: str, task_id: str) -> dict[int, str]:
    """The whole log of an ended task, as a subscriber that starts at the beginning is shown it."""
    headers = {**HEADERS, "Last-Event-ID": "0"}
    async with client.stream("POST", f"{url}/tasks/{task_id}:subscribe", headers=headers) as answer:
        assert answer.status_code == 200
        return {int(event.id or 0): event.data async for event in events_of(answer)}


@pytest.mark.parametrize(("kind", "kills"), KILLS.items())
async def test_a_server_killed_at_random_moments_loses_nothing_it_has_acknowledged(
    tmp_path: Path, kind: str, kills: int
) -> None:
    with agent_process(tmp_path / "tasks.db", kind) as server:
        load = Load(server.url)
        server.start()
        await server.ready()
        async with under_load(load):
            for _ in range(kills):
                # While work is under way, at a moment nobody has chosen.
                await load.accept_more(random.randint(1, 30))
                server.kill()
                server.start()
                await server.ready()
        async with httpx.AsyncClient(timeout=30.0) as client:
            assert len(load.accepted) >= kills
            for task_id, text in load.accepted.items():
                task = await final_task(client, server.url, task_id)
                assert task.status.state is TaskState.COMPLETED
                assert task.artifacts is not None
                assert [part.text for part in task.artifacts[0].parts] == [whole(text)]
            for task_id, seen in load.seen.items():
                log = await log_of(client, server.url, task_id)
                assert {version: log.get(version) for version in seen} == seen
