"""An agent whose first word says what it does: it writes, holds, fails, asks, or answers with hostile text.

It also runs by itself, to look at the console:

    errands serve tests/console/busy.py
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from errands import A2AServer, AgentCardConfig, CapabilitiesConfig, SkillConfig, TaskContext, Worker

#: Texts that would do something if a page took them for HTML, a script or a link.
HOSTILE = (
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "\"><svg onload='window.hacked = 1'>",
    "[click](javascript:window.hacked=1)",
    "{{constructor.constructor('window.hacked = 1')()}}",
    "\u202egnp.exe\u202c</title></table><h1>",
)


class Busy(Worker):
    """Does what the first word says."""

    def __init__(self) -> None:
        #: A piece of `write` is written for each permit.
        self._permits = threading.Semaphore(0)

    def permit(self) -> None:
        """Let one piece of `write` be written; from any thread."""
        self._permits.release()

    async def handle(self, ctx: TaskContext) -> None:
        word, _, rest = ctx.user_text.partition(" ")
        if word == "write":
            await self._write(ctx)
        elif word == "burst":
            await self._burst(ctx, int(rest))
        elif word == "shout":
            async with ctx.artifact(name="shout") as shout:
                for one in rest.split():
                    await asyncio.sleep(0.2)
                    await shout.write(one.upper() + " ")
            await ctx.complete()
        elif word == "hold":
            await ctx.send_status("Holding until it is canceled")
            while not ctx.is_cancelled:
                await asyncio.sleep(0.01)
        elif word == "fail":
            await ctx.fail(rest or "The printer is on fire")
        elif word == "ask":
            await ctx.request_input(
                "Which colour?", schema={"type": "object", "properties": {"colour": {"type": "string"}}}
            )
        elif word == "hostile":
            await self._be_hostile(ctx)
        else:
            await ctx.complete(f"Echo: {ctx.user_text}")

    async def _write(self, ctx: TaskContext) -> None:
        async with ctx.artifact(name="story") as story:
            for number in range(3):
                await asyncio.to_thread(self._permits.acquire)
                await story.write(f"piece {number}. ")
        await ctx.complete()

    async def _burst(self, ctx: TaskContext, count: int) -> None:
        async with ctx.artifact(name="log") as log:
            for number in range(count):
                await log.write(f"line {number} of {count}\n")
                if number % 100 == 99:
                    await asyncio.sleep(0.02)
        await ctx.complete()

    async def _be_hostile(self, ctx: TaskContext) -> None:
        for text in HOSTILE:
            await ctx.send_status(text)
            await ctx.emit_text_artifact(text, artifact_id=text)
        await ctx.emit_data_artifact({text: text for text in HOSTILE}, artifact_id="data")
        await ctx.fail(" ".join(HOSTILE))


def busy_server(worker: Busy | None = None, **options: Any) -> A2AServer:
    """Return a server of the busy agent, whose card is hostile, too."""
    return A2AServer(
        worker=worker or Busy(),
        agent_card=AgentCardConfig(
            name="Busy",
            description="Does what the first word of a message says.",
            capabilities=CapabilitiesConfig(streaming=True, push_notifications=True),
            skills=[
                SkillConfig(
                    id="echo",
                    name="Echo",
                    description="Says it again.",
                    tags=["text"],
                    examples=["hello", "fail loudly"],
                ),
                SkillConfig(
                    id="hostile", name=HOSTILE[0], description=HOSTILE[1], tags=[HOSTILE[2]], examples=[HOSTILE[3]]
                ),
            ],
        ),
        **options,
    )


server = busy_server()
