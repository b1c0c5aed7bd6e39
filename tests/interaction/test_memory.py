"""The memory of a server after many large messages: they are in the store, and no longer in the process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.processes import Process
from tests.waiting import SOON

pytestmark = pytest.mark.anyio

MEGABYTE = 2**20
#: Of each message.
LARGE = 8 * MEGABYTE
#: Sends under way at once, round after round: the store writes them in batches of different sizes.
ROUNDS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 4, 1]
#: What the process may keep: the memory engine's ended tasks, or the page caches of SQLite, and some buffers.
KEPT = 256 * MEGABYTE


class GivingBack(Process):
    """A server whose allocator gives large blocks back at once, so that its size tells what it holds."""

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "MALLOC_MMAP_THRESHOLD_": "65536"}


def resident(process: Process) -> int:
    """The resident size of a process in bytes."""
    status = Path(f"/proc/{process.pid}/status").read_text("utf-8")
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


async def send(client: httpx.AsyncClient, size: int) -> None:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}, {"raw": "A" * size}]}
    body = {"message": {**message, "messageId": f"m{id(message)}"}}
    response = await client.post("/message:send", json=body, headers={"A2A-Version": "1.0"})
    assert response.status_code == 200, response.text


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
        assert resident(process) - before < KEPT
    finally:
        process.kill()
