"""The agents that the interaction tests talk to."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import UNSET
from starlette.requests import Request

from errands import (
    A2AMiddleware,
    AgentCardConfig,
    AgentExecutor,
    CapabilitiesConfig,
    EventQueue,
    Message,
    Part,
    RequestContext,
    RequestEnvelope,
    Role,
    Task,
    TaskContext,
    TaskState,
    TaskStatus,
    TaskUpdater,
    Worker,
)


def card(**options: Any) -> AgentCardConfig:
    options.setdefault("capabilities", CapabilitiesConfig(streaming=True))
    return AgentCardConfig(name="Agent", description="An agent.", **options)


class Echo(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete(f"Echo: {ctx.user_text}")


class Parrot(Worker):
    """Gives every part back as an artifact of its own."""

    async def handle(self, ctx: TaskContext) -> None:
        for number, part in enumerate(ctx.parts):
            await ctx.emit_artifact(
                artifact_id=f"part-{number}",
                text=part.text,
                file_bytes=part.raw,
                file_url=part.url,
                data=None if part.data is UNSET else part.data,
                media_type=part.media_type,
                filename=part.filename,
                last_chunk=True,
            )
        await ctx.complete()


class Asks(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        if not ctx.history:
            await ctx.request_input("Which language?")
        else:
            await ctx.complete(f"{ctx.history[0].text} in {ctx.user_text}")


class Direct(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.reply_directly(f"You said {ctx.user_text}")


class Gated(Worker):
    """Emits a chunk, waits for the test, emits another and completes."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.gate = asyncio.Event()

    async def handle(self, ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("first ")
        await ctx._turn.catch_up()
        self.started.set()
        await self.gate.wait()
        await ctx.emit_text_artifact("second", append=True, last_chunk=True)
        await ctx.complete()


class Patient(Worker):
    """Works until it is canceled."""

    def __init__(self) -> None:
        self.started = asyncio.Event()

    async def handle(self, ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("partial")
        self.started.set()
        while not ctx.is_cancelled:
            await asyncio.sleep(0.001)


class Replies(AgentExecutor):
    """An executor whose whole answer is a message."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        text = f"You said {context.get_user_input()}"
        await event_queue.enqueue_event(Message(message_id="answer", role=Role.AGENT, parts=[Part(text=text)]))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        return None


class Executes(AgentExecutor):
    """An executor that publishes its task, works on it, and asks once before it completes it."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        if context.current_task is None:
            assert context.task_id is not None
            assert context.message is not None
            await event_queue.enqueue_event(
                Task(
                    id=context.task_id,
                    context_id=context.context_id,
                    status=TaskStatus(state=TaskState.SUBMITTED),
                    history=[context.message],
                    metadata={"made": "here"},
                )
            )
            await updater.start_work()
            await updater.requires_input(updater.new_agent_message([Part(text="Which language?")]))
            return
        await updater.start_work()
        await updater.add_artifact([Part(text=f"In {context.get_user_input()}")], artifact_id="answer")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.cancel(updater.new_agent_message([Part(text="Gone")]))


class ByHeader(A2AMiddleware):
    """The header `X-User` says who calls."""

    async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
        envelope.owner = request.headers.get("x-user", "")
