"""What clients and `/health/ready` are told while the store takes no writes."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from errands import TaskContext, Worker
from errands.engines.sqlite import store
from errands.testing import connect, http_client, serve
from tests.waiting import SOON

pytestmark = pytest.mark.anyio


class Echo(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete(ctx.user_text)


async def send(http: httpx.AsyncClient, text: str) -> int:
    message = {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}]}
    answer = await http.post("/message:send", json={"message": message}, headers={"A2A-Version": "1.0"})
    return answer.status_code


async def readiness(http: httpx.AsyncClient, wanted: int) -> None:
    """Waits until the server says that it is ready, or that it is not."""
    async with asyncio.timeout(SOON):
        while (await http.get("/health/ready")).status_code != wanted:
            await asyncio.sleep(0.01)


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """No file of this process can grow beyond what the log of the database has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_name(f"{path.name}-wal").stat().st_size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_server_whose_disk_is_full_is_not_ready(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    async with serve(Echo(), storage=f"sqlite:///{path}") as server, http_client(server) as http:
        assert await send(http, "before") == 200
        await readiness(http, 200)
        with full_disk(path):
            assert await send(http, "refused") == 503
            await readiness(http, 503)
        await readiness(http, 200)
        assert await send(http, "after") == 200


async def test_a_server_whose_file_was_deleted_acknowledges_nothing_until_it_is_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "CHECK_FILE_EVERY", 0.0)
    path = tmp_path / "tasks.db"
    async with serve(Echo(), storage=f"sqlite:///{path}") as server, http_client(server) as http:
        assert await send(http, "before") == 200
        for name in os.listdir(tmp_path):
            os.unlink(tmp_path / name)
        assert await send(http, "refused") == 503
        assert (await http.get("/health/ready")).status_code == 503
        assert await send(http, "refused again") == 503
    async with connect(Echo(), storage=f"sqlite:///{path}") as client:
        assert (await client.send("after")).completed
