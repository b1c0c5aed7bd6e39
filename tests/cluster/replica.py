"""One replica of the cluster tests: an agent whose every word tells which process said it, and in which attempt."""

from __future__ import annotations

import asyncio
import os
import sys
import time

import uvicorn

from errands import A2AServer, AgentCardConfig, CapabilitiesConfig, Settings, TaskContext, Worker
from errands.engines.urls import engine_from_url

NAME = "Cluster"
PIECES = 10


class Player(Worker):
    """Does what the first word of the message says."""

    async def handle(self, ctx: TaskContext) -> None:
        if ctx.user_text.startswith("ask"):
            await ctx.request_input("more?")
        elif ctx.user_text.startswith("hold"):
            await self._hold(ctx)
        elif ctx.user_text.startswith("talk"):
            await self._talk(ctx)
        else:
            await self._write(ctx)

    async def _write(self, ctx: TaskContext) -> None:
        for index in range(PIECES):
            await self._say(ctx, index)
            await asyncio.sleep(0.005)
        await ctx.complete()

    async def _hold(self, ctx: TaskContext) -> None:
        """Works until it is canceled, and tells when it saw that: on one machine all processes share this clock."""
        await self._say(ctx, 0)
        while not ctx.is_cancelled:
            await asyncio.sleep(0.002)
        await ctx.fail(f"{time.monotonic()}")

    async def _talk(self, ctx: TaskContext) -> None:
        """Writes without end, until it is canceled."""
        index = 0
        while not ctx.is_cancelled:
            await self._say(ctx, index)
            index += 1
            await asyncio.sleep(0.02)
        await ctx.fail("enough")

    async def _say(self, ctx: TaskContext, index: int) -> None:
        text = f"{ctx.attempt} {os.getpid()} {index};"
        await ctx.emit_text_artifact(text, append=index > 0, last_chunk=index == PIECES - 1)


def build(storage: str, *, waits_for_signs: bool = False) -> A2AServer:
    """`waits_for_signs`: it never looks by itself whether something is wanted of it."""
    engine = engine_from_url(storage)
    settings = Settings(lease_seconds=2.0, poll_interval=0.5, max_attempts=1000)
    if waits_for_signs:
        engine._poll_interval = settings.lease_seconds = settings.poll_interval = 3600.0  # type: ignore[attr-defined]
        settings.cancel_force_timeout = 3600.0
    return A2AServer(
        worker=Player(),
        agent_card=AgentCardConfig(name=NAME, description="Plays.", capabilities=CapabilitiesConfig(streaming=True)),
        storage=engine,
        settings=settings,
    )


if __name__ == "__main__":
    port, storage = int(sys.argv[1]), sys.argv[2]
    server = build(storage, waits_for_signs="waits-for-signs" in sys.argv)
    uvicorn.run(server.app, host="127.0.0.1", port=port, log_level="error")
