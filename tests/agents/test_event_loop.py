"""What a caller sends to an agent of a manifest is checked without making others wait."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from errands import Message, Part, Role
from errands.model.core import Task
from tests.agents.rig import AGENT, Desk, at_work, told
from tests.unheld import BEARABLE

pytestmark = pytest.mark.anyio

#: Takes a backtracking engine a time that doubles with each letter.
SLOW = r"^([a-zA-Z0-9]+[._-]?)+@example\.com$"


def taking(**parameters: Any) -> str:
    """An agent with these parameters."""
    return f"{AGENT}\nparameters: {json.dumps({'properties': parameters})}\n"


def sent(**values: Any) -> Message:
    return Message(role=Role.USER, message_id="m", parts=[Part(text="Go"), Part(data=values)])


async def beside_an_honest_client(desk: Desk, attack: Coroutine[Any, Any, Task]) -> Task:
    """What the attack comes to; an honest client is served all the time and never waits for long."""
    attacking, slowest = asyncio.create_task(attack), 0.0
    while not attacking.done():
        begin = time.thread_time()
        await desk.client.list_tasks()
        slowest = max(slowest, time.thread_time() - begin)
    assert slowest < BEARABLE
    return await attacking


async def test_a_pattern_is_matched_in_linear_time(tmp_path: Path) -> None:
    async with at_work(tmp_path, taking(email={"type": "string", "pattern": SLOW})) as desk:
        task = await beside_an_honest_client(desk, desk.say(sent(email="a" * 24)))
        assert "does not match" in told(task)


async def test_unique_items_are_compared_in_linear_time(tmp_path: Path) -> None:
    rows = [{"id": number} for number in range(4_000)]
    async with at_work(tmp_path, taking(rows={"type": "array", "uniqueItems": True}), "Done.") as desk:
        task = await beside_an_honest_client(desk, desk.say(sent(rows=rows)))
        assert told(task) == "Done."
