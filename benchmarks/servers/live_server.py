"""The benchmark agent with tasks that live: `live` writes a piece of an answer twice a second until it is canceled."""

import asyncio

from bench_agent import echo
from errands_storage import storage

from errands import A2AServer, AgentCardConfig, CapabilitiesConfig, TaskContext, Worker


class LiveAgent(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        if ctx.user_text != "live":
            await ctx.complete(echo(ctx.user_text))
            return
        while not ctx.is_cancelled:
            await ctx.emit_text_artifact("a piece of an answer ", artifact_id="answer", append=True)
            await asyncio.sleep(0.5)


server = A2AServer(
    worker=LiveAgent(),
    agent_card=AgentCardConfig(
        name="Live",
        description="Echoes, and answers for ever.",
        version="1.0.0",
        capabilities=CapabilitiesConfig(streaming=True),
    ),
    storage=storage,
)
app = server.app
