"""An agent that asks a question and waits for the answer, for days and through restarts if necessary.

Run it:

    errands serve examples/multi_turn.py

Try:

    errands send http://localhost:8000 "Lisbon"                    # it asks for how many nights
    errands send http://localhost:8000 "many" --task TASK_ID       # not a number: it asks again
    errands send http://localhost:8000 "3" --task TASK_ID          # Booked: Lisbon, 3 nights, your trip number 1
    errands send http://localhost:8000 "Porto" --context CONTEXT   # a new task that knows your first trip

The first command prints the ids to use in the others.
"""

from errands import A2AServer, AgentCardConfig, TaskContext, Worker


class TravelAgent(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        # The task's first turn: nothing was asked yet. If an answer is not an int, errands asks again.
        nights = ctx.answer(int)
        if nights is None:
            await ctx.request_input(f"How many nights in {ctx.user_text}?", schema=int)
            return
        city = ctx.history[0].text
        trips = [*(await ctx.load_context() or []), city]
        await ctx.update_context(trips)
        await ctx.complete(f"Booked: {city}, {nights} nights, your trip number {len(trips)}")


server = A2AServer(
    worker=TravelAgent(),
    agent_card=AgentCardConfig(name="Travel agent", description="Books trips and remembers them."),
)
