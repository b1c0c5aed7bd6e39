"""What a process holds for a task is let go of when the task has ended or its reader has left.

Every container that can be reached from a server is counted before and after a load of tasks of all kinds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from errands import A2AClient, A2AServer, Settings, TaskContext, Worker
from errands.engines.base import Engine, Retention
from errands.engines.urls import engine_from_url
from errands.runtime.settings import ServerRole
from errands.testing import connect, serve
from tests.conftest import STORAGES
from tests.soak import LONG
from tests.waiting import SOON

pytestmark = [pytest.mark.anyio, pytest.mark.soak, pytest.mark.timeout(600)]

TASKS = 10_000 if LONG else 300
AT_ONCE = 20
#: More than what is bound to be used for the first time.
WARM_UP = 60
#: All that has ended is deleted, so that the store in a process's memory does not count.
NOTHING = Retention(ended_after=0, contexts_after=0)


class Player(Worker):
    """Does what the message says."""

    async def handle(self, ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("first ")
        if ctx.user_text == "ask":
            await ctx.request_input("more?")
            return
        if ctx.user_text == "hold":
            while not ctx.is_cancelled:
                await asyncio.sleep(0.001)
            await ctx.fail("canceled")
            return
        await ctx.complete("done")


# What clients do


async def send(client: A2AClient) -> None:
    assert (await client.send("go")).completed


async def read_a_stream(client: A2AClient) -> None:
    async for _ in client.stream("go"):
        pass


async def leave_a_stream(client: A2AClient) -> None:
    async with aclosing(client.stream("hold")) as events:
        task_id = (await anext(events)).task_id
    assert task_id
    await client.cancel(task_id)


async def leave_a_subscription(client: A2AClient) -> None:
    task_id = (await client.send("hold", blocking=False)).task_id
    async with aclosing(client.subscribe(task_id)) as events:
        await anext(events)
    await client.cancel(task_id)


async def answer(client: A2AClient) -> None:
    asked = await client.send("ask")
    assert (await client.send("go", task_id=asked.task_id)).completed


async def leave_a_send(client: A2AClient) -> None:
    task_id = (await client.send("hold", blocking=False)).task_id
    waiting = asyncio.create_task(client.send("go", task_id=task_id))
    await asyncio.sleep(0)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    await client.cancel(task_id)


KINDS = [send, read_a_stream, leave_a_stream, leave_a_subscription, answer, leave_a_send]


async def load(client: A2AClient, tasks: int) -> None:
    numbers = iter(range(tasks))

    async def play() -> None:
        for number in numbers:
            await KINDS[number % len(KINDS)](client)

    await asyncio.gather(*(play() for _ in range(AT_ONCE)))


# What is held


def holdings(server: A2AServer) -> dict[str, int]:
    """How many entries each container has that can be reached from a server through objects of ours, by its path."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    left: deque[tuple[str, Any]] = deque([("server", server)])
    while left:
        path, thing = left.popleft()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, dict | set | list | deque):
            found[path] = len(thing)
            values = thing.values() if isinstance(thing, dict) else thing
            left.extend((f"{path}[]", value) for value in values)
        elif type(thing).__module__.startswith("errands."):
            left.extend((f"{path}.{name}", value) for name, value in attributes_of(thing))
    return found


def attributes_of(thing: Any) -> Iterator[tuple[str, Any]]:
    names = [*getattr(thing, "__dict__", {}), *getattr(type(thing), "__slots__", ()), *getattr(thing, "_fields", ())]
    for name in names:
        with suppress(AttributeError):
            yield name, getattr(thing, name)


async def settled(engine: Engine, *servers: A2AServer) -> None:
    """Waits until nothing runs, and deletes it all."""
    while await engine.running() or any(server.pool.running for server in servers):
        await asyncio.sleep(0.02)
    await engine.sweep()


async def let_go(wanted: Callable[[], dict[str, int]], before: dict[str, int]) -> None:
    """Waits until no container has more entries than before: some are tidied every second."""
    after: dict[str, int] = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(SOON):
            while (after := grown(wanted(), before)) != {}:
                await asyncio.sleep(0.05)
    assert after == {}


def grown(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    """Containers that have more than they had, not counting a handful."""
    return {path: count for path, count in after.items() if count > before.get(path, 0) + 10}


@asynccontextmanager
async def one_server(storage: str) -> AsyncIterator[tuple[A2AClient, Engine, list[A2AServer]]]:
    engine = engine_from_url(storage, NOTHING)
    server = serve(Player(), storage=engine, settings=Settings(poll_interval=0.05))
    async with connect(server) as client:
        yield client, engine, [server]


@asynccontextmanager
async def two_servers(storage: str) -> AsyncIterator[tuple[A2AClient, Engine, list[A2AServer]]]:
    """One that takes requests and one that runs tasks."""
    engine = engine_from_url(storage, NOTHING)
    settings = Settings(poll_interval=0.05)
    taker = serve(Player(), storage=engine, settings=settings, role=ServerRole.API)
    runner = serve(Player(), storage=engine_from_url(storage, NOTHING), settings=settings, role=ServerRole.WORKER)
    async with connect(taker) as client, runner:
        yield client, engine, [taker, runner]


async def check(client: A2AClient, engine: Engine, servers: list[A2AServer]) -> None:
    await load(client, WARM_UP)
    await settled(engine, *servers)
    await asyncio.sleep(0)
    before = [holdings(server) for server in servers]
    await load(client, TASKS)
    await settled(engine, *servers)
    for server, held in zip(servers, before, strict=True):
        await let_go(lambda server=server: holdings(server), held)  # type: ignore[misc]


async def test_a_server_holds_nothing_of_tasks_that_have_ended(storage: str) -> None:
    async with one_server(storage) as parts:
        await check(*parts)


@pytest.mark.parametrize("store", [name for name in STORAGES if name != "memory"])
async def test_neither_does_one_whose_tasks_others_run(store: str, tmp_path: Path) -> None:
    async with two_servers(STORAGES[store](tmp_path)) as parts:
        await check(*parts)
