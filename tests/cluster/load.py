"""Clients that use a cluster as clients do: they ask any replica, and another one when it does not answer.

Every message is sent until some replica has acknowledged it, always with the same id, so that each of them must have
led to exactly one task, whatever broke in between.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import msgspec

from errands.model.core import TERMINAL_STATES, StreamResponse, Task
from tests.clients import HEADERS, Acknowledged, decode, events_of, sending
from tests.cluster.cluster import Cluster, Replica

#: Seconds between two tries of a client.
PAUSE = 0.05
#: Seconds at most between two things that a client does: what is measured is a busy cluster, not one that is overrun.
THOUGHT = 0.3

read_task = msgspec.json.Decoder(Task).decode

Seen = list[tuple[int, StreamResponse]]
Work = Callable[[], Awaitable[None]]


class _UnavailableError(Exception):
    """The replica cannot say; another may."""


def _checked(answer: httpx.Response) -> httpx.Response:
    if answer.status_code in (429, 500, 502, 503):
        raise _UnavailableError(answer.status_code)
    return answer


class Load(Acknowledged):
    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster
        self._client = httpx.AsyncClient(timeout=20.0)
        self._stopped = False
        #: What each reader of a task was shown, over all its connections.
        self.seen: list[tuple[str, Seen]] = []
        #: Seconds from asking one replica for a cancel to its being seen in the handler, on another.
        self.cancels: list[float] = []
        self.reconnects = 0

    # The kinds of load

    async def send(self) -> None:
        task = await self._send("write", blocking=True)
        assert task.status.state in TERMINAL_STATES

    async def stream(self) -> None:
        """Sends a message and reads its task to the end."""
        body = sending("write")
        tries, task_id, seen = 0, "", Seen()
        while not task_id:
            tries += 1
            async with self._trying():
                task_id = await self._read("/message:stream", seen, json=body)
        self.accept(task_id, "write")
        if tries > 1:
            seen.clear()  # a message that was known already is answered with how its task stands
        await self._follow(task_id, seen)

    async def watch(self) -> None:
        """Reads, from the beginning, a task that another replica has accepted."""
        task = await self._send("write", blocking=False)
        await self._follow(task.id, Seen())

    async def converse(self) -> None:
        task = await self._send("ask", blocking=True)
        if task.status.state not in TERMINAL_STATES:
            task = await self._send("write", blocking=True, task_id=task.id)
        assert task.status.state in TERMINAL_STATES

    async def cancel(self) -> None:
        """Cancels a task by way of a replica that does not run it."""
        task = await self._send("hold", blocking=False)
        holder = await self.holder(task.id)
        asked = asyncio.get_running_loop().time()
        while True:
            async with self._trying():
                await self.cancel_at(self._cluster.any(but=holder), task.id)
                break
        task = await self._get(task.id)
        with suppress(ValueError, AttributeError, TypeError):  # somebody else than the handler may have ended it
            self.cancels.append(float(task.status.message.parts[0].text or "") - asked)  # type: ignore[union-attr]

    # Requests

    async def cancel_at(self, replica: Replica, task_id: str) -> None:
        _checked(await self._client.post(f"{replica.url}/tasks/{task_id}:cancel", headers=HEADERS))

    async def send_to(self, replica: Replica, text: str) -> Task:
        """Sends to this replica and no other, without waiting for the end."""
        return await self._post(replica, sending(text, returnImmediately=True))

    async def _post(self, replica: Replica, body: dict[str, Any]) -> Task:
        answer = _checked(await self._client.post(f"{replica.url}/message:send", json=body, headers=HEADERS))
        assert answer.status_code == 200, answer.text
        task = msgspec.convert(answer.json()["task"], Task)
        self.accept(task.id, body["message"]["parts"][0]["text"])
        return task

    async def _send(self, text: str, *, blocking: bool, task_id: str | None = None) -> Task:
        body = sending(text, returnImmediately=not blocking)
        if task_id is not None:
            body["message"]["taskId"] = task_id
        while True:
            async with self._trying():
                return await self._post(self._cluster.any(), body)

    async def _get(self, task_id: str) -> Task:
        while True:
            async with self._trying():
                answer = _checked(await self._client.get(f"{self._cluster.any().url}/tasks/{task_id}", headers=HEADERS))
                assert answer.status_code == 200, answer.text
                return read_task(answer.content)

    async def holder(self, task_id: str) -> Replica | None:
        """The replica that runs a task, once it has said something."""
        while True:
            task = await self._get(task_id)
            if task.artifacts and task.artifacts[0].parts[0].text:
                return self._cluster.running(int(task.artifacts[0].parts[0].text.split()[1]))
            await asyncio.sleep(PAUSE / 10)

    async def _follow(self, task_id: str, seen: Seen) -> None:
        """Reads on where the last connection broke off, by way of any replica, until the task has ended."""
        self.seen.append((task_id, seen))
        while not seen or not _ends(seen[-1][1]):
            async with self._trying():
                await self._read(f"/tasks/{task_id}:subscribe", seen)

    async def _read(self, path: str, seen: Seen, json: Any = None) -> str:
        """Reads one stream as far as it goes; returns the task's id when it was told."""
        headers = HEADERS if json else {**HEADERS, "Last-Event-ID": str(seen[-1][0] if seen else 0)}
        task_id = ""
        with suppress(httpx.HTTPError):
            url = f"{self._cluster.any().url}{path}"
            async with self._client.stream("POST", url, json=json, headers=headers) as answer:
                if answer.status_code == 200:
                    async for event in events_of(answer):
                        if event.id is None:
                            break  # an error: the store was away for too long
                        response = decode(event.data)
                        seen.append((int(event.id), response))
                        task_id = task_id or (response.task.id if response.task else "")
                    else:
                        return task_id
                else:
                    await answer.aread()
                    assert _checked(answer).status_code == 200, answer.text
        self.reconnects += 1
        return task_id

    @asynccontextmanager
    async def _trying(self) -> AsyncIterator[None]:
        try:
            yield
        except (httpx.HTTPError, _UnavailableError):
            await asyncio.sleep(PAUSE)

    # Running

    async def __aenter__(self) -> Load:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def _repeat(self, work: Work) -> None:
        while not self._stopped:
            await work()
            await asyncio.sleep(random.uniform(0, THOUGHT))

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Load while the block runs; when it is over, every client finishes what it has begun."""
        kinds = [self.send, self.stream, self.watch, self.converse, self.cancel]
        async with asyncio.TaskGroup() as group:
            for work in kinds * 2:
                group.create_task(self._repeat(work))
            yield
            self._stopped = True


def _ends(response: StreamResponse) -> bool:
    update, task = response.status_update, response.task
    state = update.status.state if update else task.status.state if task else None
    return state in TERMINAL_STATES
