"""The benchmark agent on a2akit."""

from a2akit import A2AServer, AgentCardConfig, CapabilitiesConfig, TaskContext, Worker
from bench_agent import DATABASE, STORAGE, URL, chunks, echo

#: Only with Redis can its queue and events be in the same store.
SHARED = URL if STORAGE == "redis" else "memory"
STORES = {
    "sqlite": f"sqlite+aiosqlite:///{DATABASE}",
    "postgresql": URL.replace("postgresql://", "postgresql+asyncpg://"),
    "redis": URL,
}


class BenchAgent(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        pieces = chunks(ctx.user_text)
        if not pieces:
            await ctx.complete(echo(ctx.user_text))
            return
        last = len(pieces) - 1
        for index, piece in enumerate(pieces):
            await ctx.emit_text_artifact(piece, append=index > 0, last_chunk=index == last)
        await ctx.complete()


server = A2AServer(
    worker=BenchAgent(),
    agent_card=AgentCardConfig(
        name="Bench",
        description="Echoes and streams.",
        version="1.0.0",
        capabilities=CapabilitiesConfig(streaming=True),
    ),
    storage=STORES.get(STORAGE, "memory"),
    broker=SHARED,
    event_bus=SHARED,
)
app = server.as_fastapi_app()
