"""An agent whose turns last as long as the tests of restarts want: it tells each try, and waits for a word."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import uvicorn

from errands import A2AServer, AgentCardConfig, Settings, TaskContext, Worker

MAX_ATTEMPTS = 2


class Patient(Worker):
    """The message names a file: once it is there, the task is completed, or the process dies if the file says so."""

    async def handle(self, ctx: TaskContext) -> None:
        await ctx.emit_text_artifact(f"{ctx.attempt} {os.getpid()}", artifact_id="attempt")
        while not (word := _word(Path(ctx.user_text))):
            await asyncio.sleep(0.01)
        if word == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        await ctx.complete("done")


def _word(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def build(storage: str) -> A2AServer:
    return A2AServer(
        worker=Patient(),
        agent_card=AgentCardConfig(name="Patient", description="Waits."),
        storage=storage,
        settings=Settings(lease_seconds=3.0, poll_interval=0.05, drain_timeout=0.0, max_attempts=MAX_ATTEMPTS),
    )


if __name__ == "__main__":
    port, storage = int(sys.argv[1]), sys.argv[2]
    uvicorn.run(build(storage).app, host="127.0.0.1", port=port, log_level="error")
