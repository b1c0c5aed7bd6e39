"""An agent that can be canceled while it works, and cleans up.

Run it:

    errands serve examples/cancellation.py

Try:

    errands send http://localhost:8000 "60" --no-wait       # prints the task's id
    errands tasks watch http://localhost:8000 TASK_ID       # one line a second
    errands tasks cancel http://localhost:8000 TASK_ID      # from another terminal

The canceled task keeps what was counted so far. A worker that does not check `is_cancelled` is canceled by force after
`cancel_force_timeout`.
"""

import asyncio

from errands import A2AServer, AgentCardConfig, CapabilitiesConfig, TaskContext, Worker


class Counter(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        for second in range(int(ctx.user_text)):
            if ctx.is_cancelled:
                await ctx.fail(f"Stopped after {second} seconds.")  # after a cancel request the task ends as canceled
                return
            await ctx.emit_text_artifact(f"{second + 1} ", append=second > 0)
            await asyncio.sleep(1)
        await ctx.complete()


server = A2AServer(
    worker=Counter(),
    agent_card=AgentCardConfig(
        name="Counter",
        description="Counts seconds until it is told to stop.",
        capabilities=CapabilitiesConfig(streaming=True),
    ),
    cancel_force_timeout=5,
)
