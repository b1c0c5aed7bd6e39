"""An agent that is killed once, between a blob and the commit that would refer to it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import uvicorn

from errands import A2AServer, AgentCardConfig, Settings, TaskContext, Worker
from errands.runtime.blobs import Blob, Blobs
from errands.server import configuration

#: Larger than a piece of a blob.
CONTENT = bytes(range(256)) * 4000


class Writer(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        (file,) = ctx.files
        await ctx.emit_artifact(artifact_id="copy", file_bytes=(file.content or b"")[::-1])
        await ctx.complete()


class DeadlyBlobs(Blobs):
    """Kills the process after it has kept this number of blobs, unless that was done before."""

    left = 0
    trace = Path()

    async def put(self, *args: Any, **kwargs: Any) -> Blob:
        blob = await super().put(*args, **kwargs)
        DeadlyBlobs.left -= 1
        if not DeadlyBlobs.left and not self.trace.exists():
            self.trace.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return blob


def build(folder: Path) -> A2AServer:
    return A2AServer(
        worker=Writer(),
        agent_card=AgentCardConfig(name="Writer", description="Writes.", input_modes=["*/*"]),
        storage=f"sqlite:///{folder / 'tasks.db'}",
        settings=Settings(lease_seconds=1.0, poll_interval=0.2, blobs=str(folder / "blobs")),
    )


if __name__ == "__main__":
    port, place, count = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    DeadlyBlobs.left, DeadlyBlobs.trace = count, place / "killed"
    setattr(configuration, "Blobs", DeadlyBlobs)  # noqa: B010 - not a name that the module exports
    uvicorn.run(build(place).app, host="127.0.0.1", port=port, log_level="error")
