"""An agent that answers in the form that the client accepts: JSON for programs, a sentence for people.

Run it:

    errands serve examples/json_negotiation.py

Try:

    errands send http://localhost:8000 "a b a"                                 # {"words":3,"different":2}
    errands send http://localhost:8000 "a b a" --accept text/plain             # 3 words, 2 of them different
    errands send http://localhost:8000 --data '{"text": "a b a"}'              # a question in JSON
"""

from errands import A2AServer, AgentCardConfig, TaskContext, Worker


class WordCounter(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        text = ctx.data_parts[0]["text"] if ctx.data_parts else ctx.user_text
        words = text.lower().split()
        # A client that names no types accepts all.
        if ctx.accepts("application/json"):
            await ctx.complete_json({"words": len(words), "different": len(set(words))})
        else:
            await ctx.complete(f"{len(words)} words, {len(set(words))} of them different")


server = A2AServer(
    worker=WordCounter(),
    agent_card=AgentCardConfig(name="Word counter", description="Counts words."),
)
