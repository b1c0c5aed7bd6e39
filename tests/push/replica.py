"""One replica of the crash test: an agent that streams, with short pauses between its deliveries."""

from __future__ import annotations

import asyncio
import sys

import uvicorn

from errands import A2AServer, AgentCardConfig, CapabilitiesConfig, Settings, TaskContext, Worker
from errands.runtime import push

NAME = "Pusher"


class Talker(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        for index in range(5):
            await ctx.emit_text_artifact(f"{index};", append=index > 0, last_chunk=index == 4)
            await asyncio.sleep(0.01)
        await ctx.complete("done")


def build(storage: str) -> A2AServer:
    push.FIRST_PAUSE, push.LONGEST_PAUSE = 0.05, 0.2
    push.FIRST_BREAK, push.LONGEST_BREAK = 0.1, 0.2
    settings = Settings(
        storage=storage,
        lease_seconds=1.0,
        poll_interval=0.1,
        max_attempts=1000,
        push_allow="127.0.0.1",
        push_timeout=0.4,
    )
    card = AgentCardConfig(name=NAME, description="Talks.", capabilities=CapabilitiesConfig(streaming=True))
    return A2AServer(worker=Talker(), agent_card=card, settings=settings)


if __name__ == "__main__":
    uvicorn.run(build(sys.argv[2]).app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
