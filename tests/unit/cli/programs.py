"""Programs that `errands serve` is given, and the tasks that it leaves on disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

from errands.engines.urls import engine_from_url
from errands.model.log import Scope, StoredTask

ECHO = """
from errands import agent

@agent(name="Echo", description="Echoes.")
async def echo(text: str) -> str:
    return f"first {text}"
"""


def write(folder: Path, code: str) -> Path:
    path = folder / "program.py"
    path.write_text(code)
    return path


def stored(folder: Path, task_id: str, agent: str = "Patient") -> StoredTask:
    """The task as it is on disk."""

    async def load() -> StoredTask:
        async with engine_from_url(f"sqlite:///{folder / '.errands' / 'tasks.db'}") as engine:
            return await engine.load(task_id, Scope(agent=agent))

    return asyncio.run(load())
