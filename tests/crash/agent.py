"""The agent that the crash and soak tests kill: it writes a known text, piece by piece, on a SQLite file."""

from __future__ import annotations

import asyncio
import sys

import uvicorn

from errands import A2AServer, AgentCardConfig, CapabilitiesConfig, Settings, TaskContext, Worker

PIECES = 20


def piece(text: str, index: int) -> str:
    return f"{text}:{index};"


def whole(text: str) -> str:
    return "".join(piece(text, index) for index in range(PIECES))


class Writer(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        for index in range(PIECES):
            await ctx.emit_text_artifact(piece(ctx.user_text, index), append=index > 0, last_chunk=index == PIECES - 1)
            await asyncio.sleep(0.001)
        await ctx.complete()


def build(storage: str) -> A2AServer:
    return A2AServer(
        worker=Writer(),
        agent_card=AgentCardConfig(
            name="Writer", description="Writes.", capabilities=CapabilitiesConfig(streaming=True)
        ),
        storage=storage,
        settings=Settings(lease_seconds=1.0, poll_interval=0.2, max_attempts=1000),
    )


if __name__ == "__main__":
    port, storage = int(sys.argv[1]), sys.argv[2]
    uvicorn.run(build(storage).app, host="127.0.0.1", port=port, log_level="error")
