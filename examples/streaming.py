"""An agent that streams its answer word by word, like a model.

Run it:

    errands serve examples/streaming.py

Try:

    errands send http://localhost:8000 "the quick brown fox"     # the words come back one by one, in capitals
    errands send http://localhost:8000 "hello" --stream --json   # one event per line

Interrupt the client and run `errands tasks watch`: the work continues, and nothing is lost.
"""

import asyncio

from errands import A2AServer, AgentCardConfig, CapabilitiesConfig, TaskContext, Worker


class Shouter(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        words = ctx.user_text.split()
        await ctx.send_status(f"Shouting {len(words)} words")
        async with ctx.artifact(name="shout") as shout:
            for word in words:
                await asyncio.sleep(0.1)  # a model thinking
                await shout.write(word.upper() + " ")
        await ctx.complete()


server = A2AServer(
    worker=Shouter(),
    agent_card=AgentCardConfig(
        name="Shouter",
        description="Says it louder, word by word.",
        capabilities=CapabilitiesConfig(streaming=True),
    ),
)
