"""A server that stops in good order gives its tasks back; for an agent that goes on from its records that is no try."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from errands import Settings
from errands.agents.tools.python import tool
from tests.agents.rig import AGENT, at_work, call, say

pytestmark = pytest.mark.anyio

WAITING = AGENT + "\nclose_after: 1\ncapabilities:\n  wait: '*'\n"


async def test_a_task_outlives_any_number_of_deployments(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'tasks.db'}"
    settings = Settings(storage=storage, drain_timeout=0.0, max_attempts=2, poll_interval=0.05)
    begun, done = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Waits."""
        begun.set()
        await done.wait()
        return "done"

    options: dict[str, Any] = {"storage": storage, "tools": [wait], "server": {"settings": settings}}
    async with at_work(tmp_path, WAITING, call(("wait", {})), **options) as desk:
        task_id = (await desk.client.send("Go", blocking=False)).task_id
        await begun.wait()
    for _ in range(3):
        begun.clear()
        async with at_work(tmp_path, WAITING, **options):
            await begun.wait()
    done.set()
    async with at_work(tmp_path, WAITING, say("Finished."), **options) as desk:
        async for event in desk.client.subscribe(task_id):
            if event.is_final:
                break
        assert (await desk.client.get_task(task_id)).text == "Finished."
