"""Many clients stream at once over real sockets, and half of them vanish in the middle."""

from __future__ import annotations

import asyncio
import gc
import random
import resource
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import uvicorn

from errands import A2AServer, AgentCardConfig, CapabilitiesConfig, Settings, TaskContext, Worker
from errands.engines.base import Retention
from errands.engines.memory import MemoryEngine
from errands.engines.sqlite import SQLiteEngine
from errands.model.core import TaskState
from errands.model.log import ListQuery
from tests.soak import LONG

pytestmark = [pytest.mark.anyio, pytest.mark.soak, pytest.mark.timeout(300)]

CLIENTS, ROUNDS, CHUNKS = (1000, 5, 30) if LONG else (400, 1, 10)


class Slow(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        async with ctx.artifact(name="answer") as artifact:
            for index in range(CHUNKS):
                await artifact.write(f"piece {index} ")
                await asyncio.sleep(0.01)
        await ctx.complete()


@pytest.fixture(autouse=True)
def _room_for_sockets() -> None:
    """Both ends of every connection are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * CLIENTS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@asynccontextmanager
async def served(server: A2AServer) -> AsyncIterator[int]:
    """The server on a real port, in this very loop, so that its tasks can be counted."""
    config = uvicorn.Config(server.app, host="127.0.0.1", port=0, log_level="error", backlog=2048)
    http = uvicorn.Server(config)
    http.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    serving = asyncio.create_task(http.serve())
    while not http.started:
        await asyncio.sleep(0)
    try:
        yield http.servers[0].sockets[0].getsockname()[1]
    finally:
        http.should_exit = True
        await serving


def request(number: int) -> bytes:
    body = (
        b'{"jsonrpc":"2.0","id":%d,"method":"SendStreamingMessage","params":{"message":'
        b'{"messageId":"m%d-%d","role":"ROLE_USER","parts":[{"text":"go"}]}}}'
        % (number, number, random.getrandbits(60))
    )
    return (
        b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )


class Seen(NamedTuple):
    chunks: int
    completed: bool


async def client(port: int, number: int, vanish_after: int | None) -> Seen | None:
    """Streams to the end and tells what it saw, or cuts the connection after so many reads."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(number))
    received = b""
    reads = 0
    while chunk := await reader.read(65536):
        received += chunk
        reads += 1
        if vanish_after is not None and reads >= vanish_after:
            writer.transport.abort()
            return None
    writer.close()
    return Seen(received.count(b'"artifactUpdate"'), b'"TASK_STATE_COMPLETED"' in received)


async def crowd(port: int) -> None:
    vanishing = [random.randint(1, CHUNKS) if number % 2 else None for number in range(CLIENTS)]
    seen = await asyncio.gather(*(client(port, n, after) for n, after in enumerate(vanishing)))
    stayed = [what for what, after in zip(seen, vanishing, strict=True) if after is None]
    assert stayed == [Seen(CHUNKS + 1, completed=True)] * (CLIENTS // 2)


async def quiet(server: A2AServer, baseline: int) -> None:
    """Waits until nothing runs any more that did not run before; a leak ends in the test's timeout."""
    while server.pool.running or len(asyncio.all_tasks()) > baseline:
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)  # callbacks of what has just ended


def memory_in_use() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize("name", ["memory", "sqlite"])
async def test_clients_that_vanish_leave_no_stuck_task_no_leak_and_no_memory(name: str, tmp_path: Path) -> None:
    keep_none = Retention(ended_after=0.0, events_per_task=20_000)
    engine = (
        MemoryEngine(retention=keep_none)
        if name == "memory"
        else SQLiteEngine(tmp_path / "tasks.db", retention=keep_none)
    )
    card = AgentCardConfig(name="Slow", description="Slow.", capabilities=CapabilitiesConfig(streaming=True))
    # Swept below: what is swept while it is streamed is missing in streams that are behind.
    server = A2AServer(worker=Slow(), agent_card=card, storage=engine, settings=Settings(sweep_interval=3600.0))
    async with served(server) as port:
        baseline = len(asyncio.all_tasks())
        await client(port, 0, None)
        await quiet(server, baseline)
        tracemalloc.start()
        try:
            before = memory_in_use()
            for _ in range(ROUNDS):
                await crowd(port)
                await quiet(server, baseline)
            states = [TaskState.SUBMITTED, TaskState.WORKING]
            live = [await engine.list(ListQuery(scope=server.scope(), state=state)) for state in states]
            assert [page.total_size for page in live] == [0, 0]
            while await engine.sweep():
                pass
            grown = memory_in_use() - before
            assert grown < 4 * 1024 * 1024, f"{grown:,} bytes are still in use"
        finally:
            tracemalloc.stop()
