"""An agent that has handed work to several others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from errands import Settings
from errands.agents.delegation import Delegate, Delegated, Delegation
from tests.agents.rig import AGENT, at_work, call

pytestmark = pytest.mark.anyio

PARENT = AGENT + "\ncapabilities:\n  a: {url: https://a.example}\n  b: {url: https://b.example}\n"


class Together(Delegate):
    """Works without end. The cancel of one child is through when that of the other has begun."""

    def __init__(self, both: asyncio.Barrier) -> None:
        self._both = both
        self.begun = asyncio.Event()
        self.canceled: list[str | None] = []

    async def run(self, delegation: Delegation) -> Delegated:
        await delegation.began(f"child of {delegation.message}")
        self.begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def cancel(self, delegation: Delegation) -> None:
        await self._both.wait()
        self.canceled.append(delegation.task_id)


async def test_children_are_canceled_at_the_same_time(tmp_path: Path) -> None:
    both = asyncio.Barrier(2)
    a, b = Together(both), Together(both)
    asks = call(("a", {"message": "one"}), ("b", {"message": "two"}))
    settings = Settings(storage="memory", cancel_force_timeout=170)
    options = {"delegates": {"a": a, "b": b}, "server": {"settings": settings}}
    async with at_work(tmp_path, PARENT, asks, **options) as desk:  # type: ignore[arg-type]
        task_id = (await desk.client.send("Go", blocking=False)).task_id
        await a.begun.wait()
        await b.begun.wait()
        assert (await desk.client.cancel(task_id)).state == "canceled"
    assert (a.canceled, b.canceled) == (["child of one"], ["child of two"])
