"""Agents under a policy, of every kind, and what became of their tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from errands import (
    A2AClient,
    A2AServer,
    AgentExecutor,
    EventQueue,
    Part,
    RequestContext,
    TaskContext,
    TaskUpdater,
    agent,
)
from errands.client import ClientResult
from errands.policy import records
from errands.policy.document import Policy
from errands.policy.records import AnyRecord, Decided
from errands.testing import connect, serve
from tests.unit.support import ANYBODY, Agent, Handle, ThreadedAgent


def policy(**fields: Any) -> Policy:
    """A policy as a file has it."""
    return msgspec.convert({"version": "v1", **fields}, Policy)


def before(*steps: dict[str, str], **fields: Any) -> Policy:
    return policy(guardrails={"before": steps}, **fields)


def after(*steps: dict[str, str], **fields: Any) -> Policy:
    return policy(guardrails={"after": steps}, **fields)


def around(capability: str, **phases: Sequence[dict[str, str]]) -> Policy:
    return policy(capabilities={capability: phases})


class Server:
    """A server and its client, and a way to look at the records of a task."""

    def __init__(self, server: A2AServer, client: A2AClient) -> None:
        self._server = server
        self.client = client

    async def records(self, result: ClientResult) -> list[AnyRecord]:
        assert result.task_id is not None
        return [records.decode(event.data) for event in await self._server.engine.records(result.task_id, ANYBODY)]

    async def kinds(self, result: ClientResult) -> list[str]:
        return [type(record).__name__ for record in await self.records(result)]

    async def decisions(self, result: ClientResult) -> list[tuple[str, str]]:
        return [(r.step, r.outcome) for r in await self.records(result) if isinstance(r, Decided)]


@asynccontextmanager
async def serving(worker: Any, **options: Any) -> AsyncIterator[Server]:
    server = serve(worker, **options)
    async with connect(server) as client:
        yield Server(server, client)


def reason(result: ClientResult) -> Any:
    """Why a policy ended the task, as the status says."""
    assert result.raw_task is not None
    message = result.raw_task.status.message
    return None if message is None or message.metadata is None else message.metadata.get("reason")


class Echo(AgentExecutor):
    """Says what it was told, by an executor."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.heard.append(context.get_user_input())
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.start_work()
        await updater.add_artifact([Part(text=f"Echo: {context.get_user_input()}")], "answer")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        pass


def echoes(heard: list[str]) -> dict[str, Any]:
    """The same agent, of every kind; what it hears is put into `heard`."""

    async def handle(ctx: TaskContext) -> None:
        heard.append(ctx.user_text)
        await ctx.complete(f"Echo: {ctx.user_text}")

    def handle_in_thread(ctx: Any) -> None:
        heard.append(ctx.user_text)
        ctx.complete(f"Echo: {ctx.user_text}")

    @agent(name="Test agent")
    async def echo(text: str) -> str:
        heard.append(text)
        return f"Echo: {text}"

    executor = Echo()
    executor.heard = heard
    return {
        "worker": Agent(handle),
        "thread": ThreadedAgent(handle_in_thread),
        "function": echo,
        "executor": executor,
    }


KINDS = tuple(echoes([]))

__all__ = ["ANYBODY", "Handle"]
