"""The smallest agent: it echoes the message.

Run it:

    errands serve examples/echo.py

Try:

    errands send http://localhost:8000 "hello"          # Echo: hello
    errands tasks list http://localhost:8000            # the task survives a restart
"""

from errands import A2AServer, AgentCardConfig, TaskContext, Worker


class Echo(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete(f"Echo: {ctx.user_text}")


server = A2AServer(worker=Echo(), agent_card=AgentCardConfig(name="Echo", description="Echoes.", version="1.0.0"))
app = server.app  # ASGI: `uvicorn examples.echo:app` works as well
