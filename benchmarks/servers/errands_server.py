"""The benchmark agent on errands."""

import os

from bench_agent import DATABASE, GRPC_PORT, STORAGE, chunks, echo

from errands import A2AServer, AgentCardConfig, CapabilitiesConfig, TaskContext, Worker

#: NORMAL is what errands does by itself; FULL also survives the loss of power, as SQLite does by itself.
SYNCHRONOUS = os.environ.get("BENCH_SYNCHRONOUS", "NORMAL")


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
    grpc_port=GRPC_PORT,
    storage=f"sqlite:///{DATABASE}?synchronous={SYNCHRONOUS}" if STORAGE == "sqlite" else "memory",
)
app = server.app
