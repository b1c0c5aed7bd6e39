"""The memory of a server after many large messages: they are in the store, and no longer in the process."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.processes import Process
from tests.soak import LONG
from tests.unit.cli.processes import Served
from tests.waiting import SOON, until

pytestmark = pytest.mark.anyio

MEGABYTE = 2**20
#: Of each message.
LARGE = 8 * MEGABYTE
#: Sends under way at once, round after round: the store writes them in batches of different sizes.
ROUNDS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 4, 1] if LONG else [1, 9, 4, 9, 9, 4]
#: What the process may keep: the memory engine's 128 MB of ended tasks, or page caches and buffers (up to 90 MB were
#: seen), and some room. All that is sent is more than 280 MB.
KEPT = 176 * MEGABYTE


class GivingBack(Process):
    """A server whose allocator gives large blocks back at once, so that its size tells what it holds."""

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "MALLOC_MMAP_THRESHOLD_": "65536"}


def resident(process: Process | Served) -> int:
    """The resident size of a process in bytes."""
    status = Path(f"/proc/{process.pid}/status").read_text("utf-8")
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


async def send(client: httpx.AsyncClient, size: int) -> None:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}, {"raw": "A" * size}]}
    body = {"message": {**message, "messageId": f"m{id(message)}"}}
    response = await client.post("/message:send", json=body, headers={"A2A-Version": "1.0"})
    assert response.status_code == 200, response.text


@pytest.mark.soak
async def test_large_messages_do_not_stay_in_memory(storage: str) -> None:
    process = GivingBack("tests.crash.agent", storage, "worker")
    process.start()
    try:
        await process.ready()
        async with httpx.AsyncClient(base_url=process.url, timeout=SOON) as client:
            await send(client, 8)
            before = resident(process)
            for at_once in ROUNDS:
                await asyncio.gather(*(send(client, LARGE) for _ in range(at_once)))
        # On a busy machine the buffers of the last batch take a moment to go.
        await until(lambda: resident(process) - before < KEPT)
    finally:
        process.kill()


FOLLOWED = """
import asyncio
from errands import A2AServer, AgentCardConfig, CapabilitiesConfig, TaskContext, Worker

class Much(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        for number in range(100):
            await ctx.emit_text_artifact("x" * 200_000, artifact_id=f"a{number}")
        await ctx.send_status("all")
        await asyncio.Event().wait()

server = A2AServer(
    worker=Much(),
    agent_card=AgentCardConfig(name="Much", description="", capabilities=CapabilitiesConfig(streaming=True)),
    storage="sqlite:///much.db",
)
"""
FOLLOWERS = 40


@pytest.mark.parametrize("position", [b"Last-Event-ID: 1\r\n", b""], ids=["from the log", "from a snapshot"])
async def test_streams_that_are_not_read_hold_little_of_a_large_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: bytes
) -> None:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
    (tmp_path / "program.py").write_text(FOLLOWED)
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}
    with Served(tmp_path / "program.py", cwd=tmp_path) as served, ExitStack() as stack:
        async with httpx.AsyncClient(base_url=served.url, headers={"A2A-Version": "1.0"}, timeout=SOON) as client:
            body = {"message": message, "configuration": {"returnImmediately": True}}
            path = f"/tasks/{(await client.post('/message:send', json=body)).json()['task']['id']}"
            while "message" not in (await client.get(path)).json()["status"]:
                pass
            before = resident(served)
            for _ in range(FOLLOWERS):
                follower = stack.enter_context(socket.create_connection(("127.0.0.1", urlsplit(served.url).port or 0)))
                follower.sendall(b"GET %b:subscribe HTTP/1.1\r\nHost: x\r\n%b\r\n" % (path.encode(), position))
                assert (await asyncio.to_thread(follower.recv, 12)) == b"HTTP/1.1 200"
                await client.get("/health")
            assert resident(served) - before < 356 * MEGABYTE
