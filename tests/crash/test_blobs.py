"""A process that dies after a blob was written and before it was referred to: nothing is lost, and nothing stays."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from errands.engines.urls import engine_from_url
from errands.model.log import Scope
from errands.runtime.blobs import GROUPS, Blobs, DirectoryBucket
from tests.clients import HEADERS
from tests.crash.blob_agent import CONTENT
from tests.processes import Process

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

BODY = {
    "message": {
        "messageId": "m",
        "role": "ROLE_USER",
        "parts": [{"raw": base64.b64encode(CONTENT).decode(), "mediaType": "x/y"}],
    }
}


@asynccontextmanager
async def killed_after(blobs: int, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """The client of a process that has killed itself while it handled the message, and was started again."""
    process = Process("tests.crash.blob_agent", str(folder), str(blobs))
    try:
        process.start()
        await process.ready()
        async with httpx.AsyncClient(base_url=process.url, headers=HEADERS, timeout=30.0) as client:
            with pytest.raises(httpx.TransportError):
                await client.post("/message:send", json=BODY)
            process.kill()
            process.start()
            await process.ready()
            yield client
    finally:
        process.kill()


async def finished(client: httpx.AsyncClient) -> dict[str, Any]:
    """The task of the message, sent again."""
    task: dict[str, Any] = (await client.post("/message:send", json=BODY)).json()["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    (artifact,) = task["artifacts"]
    assert (await client.get(artifact["parts"][0]["url"])).content == CONTENT[::-1]
    assert (await client.get(task["history"][0]["parts"][0]["url"])).content == CONTENT
    return task


def contents(folder: Path) -> int:
    return sum(path.is_file() and path.suffix == ".json" for path in (folder / "blobs").rglob("*"))


@pytest.mark.parametrize("point", [1, 2], ids=["before the task", "in the turn"])
async def test_a_blob_without_its_commit_is_written_again_and_removed(tmp_path: Path, point: int) -> None:
    async with killed_after(point, tmp_path) as client:
        task = await finished(client)
    # The two that the task refers to, and the one that the first process has left.
    assert await asyncio.to_thread(contents, tmp_path) == 3
    async with engine_from_url(f"sqlite:///{tmp_path / 'tasks.db'}") as engine:
        bucket = DirectoryBucket(tmp_path / "blobs")
        async with Blobs(bucket, engine.clock, above=1, inline=1, orphans_kept=0) as blobs:
            await blobs.sweep(engine, GROUPS)
            # What belongs to no task is gone; what belongs to the task goes with it.
            assert await asyncio.to_thread(contents, tmp_path) == (2 if point == 1 else 3)
            await engine.delete(task["id"], Scope("", "", "Writer"))
            await blobs.sweep(engine, GROUPS)
            assert await asyncio.to_thread(contents, tmp_path) == 0
