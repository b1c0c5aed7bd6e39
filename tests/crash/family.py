"""A parent and a child that the crash tests kill: the child works until a file appears, and says who has begun."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import uvicorn

from errands import Settings, TaskContext, Worker
from tests.unit.delegation.support import family


class Child(Worker):
    """Begins by leaving a file with its process's number in it, and ends when there is a file `go`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def handle(self, ctx: TaskContext) -> None:
        (self._folder / f"begun-{os.getpid()}").touch()
        while not (self._folder / "go").exists():
            await asyncio.sleep(0.01)
        await ctx.respond(f"child: {ctx.user_text}")


if __name__ == "__main__":
    port, folder, lease = int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    storage = f"sqlite:///{folder / 'tasks.db'}"
    settings = Settings(
        storage=storage, lease_seconds=lease, poll_interval=0.2, max_attempts=1000, cancel_force_timeout=1.0
    )
    server = family(Child(folder), storage=storage, settings=settings)
    uvicorn.run(server.app, host="127.0.0.1", port=port, log_level="error")
