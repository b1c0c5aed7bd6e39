"""Replicas are killed with SIGKILL while the receiver fails, hangs, dies and comes back.

What must come out: every event of every config arrives, in order per config, and what arrives twice has the same id.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import httpx
import pytest

from errands.engines.base import Engine
from errands.engines.urls import engine_from_url
from errands.model.core import TERMINAL_STATES
from errands.model.log import STREAMED_KINDS, Event, Scope
from errands.runtime.webhooks import delivery_id
from tests.clients import HEADERS, sending
from tests.cluster.cluster import Cluster, Replica
from tests.conftest import STORAGES
from tests.push.receiver import Received, Receiver
from tests.push.replica import NAME
from tests.soak import LONG

pytestmark = [pytest.mark.anyio, pytest.mark.crash, pytest.mark.timeout(600)]

KILLS = 40 if LONG else 2
SENDERS = 4
SCOPE = Scope(agent=NAME)


class Unreliable(Receiver):
    """Refuses some requests, leaves some without an answer, and is down from time to time."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = self._answer
        self.accepted: set[str] = set()

    async def _answer(self, one: Received) -> int:
        luck = random.random()
        if luck < 0.1:
            return 503
        if luck < 0.15:
            await asyncio.sleep(1.0)  # longer than the sender waits
        self.accepted.add(one.headers["webhook-id"])
        return 200

    async def come_and_go(self) -> None:
        while True:
            async with self.up():
                await asyncio.sleep(random.uniform(0.5, 2.0))
            await asyncio.sleep(random.uniform(0.1, 0.5))


class Load:
    """Sends messages with webhooks to any replica until it is stopped."""

    def __init__(self, cluster: Cluster, receiver: Receiver) -> None:
        self._cluster = cluster
        self._receiver = receiver
        self.tasks: list[str] = []
        self.stopped = False

    async def run(self) -> None:
        async with httpx.AsyncClient(timeout=10.0) as client:
            while not self.stopped:
                body = sending("go", returnImmediately=True)
                body["configuration"]["taskPushNotificationConfig"] = {"url": self._receiver.url, "id": "a"}
                try:
                    answer = await client.post(f"{self._cluster.any().url}/message:send", json=body, headers=HEADERS)
                    if answer.status_code == 200:
                        self.tasks.append(answer.json()["task"]["id"])
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(0.1)


@pytest.mark.parametrize("store", [name for name in STORAGES if name != "memory"])
async def test_every_event_arrives_in_order_whatever_dies(store: str, tmp_path: Path) -> None:
    url = STORAGES[store](tmp_path)
    receiver = Unreliable()
    cluster = Cluster([], source=None)
    cluster.replicas = [Replica(url, module="tests.push.replica") for _ in range(2)]
    moods = asyncio.create_task(receiver.come_and_go())
    try:
        await cluster.start()
        load = Load(cluster, receiver)
        async with asyncio.TaskGroup() as group:
            for _ in range(SENDERS):
                group.create_task(load.run())
            for _ in range(KILLS):
                await asyncio.sleep(random.uniform(0.2, 1.0))
                await cluster.replace_one()
            load.stopped = True
        assert load.tasks
        async with engine_from_url(url) as engine:
            for task_id in load.tasks:
                await check_task(engine, receiver, task_id)
    finally:
        moods.cancel()
        await asyncio.gather(moods, return_exceptions=True)
        for replica in cluster.replicas:
            replica.kill()


async def check_task(engine: Engine, receiver: Unreliable, task_id: str) -> None:
    await engine.wait_for_state(task_id, SCOPE, TERMINAL_STATES, 120)
    events = {delivery_id(task_id, "a", event.version): event for event in await log_of(engine, task_id)}
    while not events.keys() <= receiver.accepted:
        await asyncio.sleep(0.02)
    arrived = [one for one in receiver.received if one.headers["webhook-id"] in events]
    assert list(dict.fromkeys(one.headers["webhook-id"] for one in arrived)) == list(events)
    for one in arrived:
        assert one.raw == events[one.headers["webhook-id"]].data
    assert len(arrived) == len([one for one in receiver.received if _task_of(one.body) == task_id])


def _task_of(body: dict[str, Any]) -> str:
    (told,) = body.values()
    return str(told.get("taskId") or told["id"])


async def log_of(engine: Engine, task_id: str) -> list[Event]:
    events: list[Event] = []
    while piece := (await engine.read(task_id, SCOPE, events[-1].version if events else 0)).events:
        events += piece
    return [event for event in events if event.kind in STREAMED_KINDS]
