"""Agents under a policy, of every kind, and what became of their tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
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
from errands.agents.loop.manifest_worker import ManifestWorker
from errands.agents.models.base import Answer, Model, OnText, Question, UserSaid
from errands.agents.tools.python import PythonTool
from errands.client import ClientResult
from errands.policy import records
from errands.policy.document import POLICY, Policy
from errands.policy.records import AnyRecord, Decided
from errands.testing import connect, serve
from tests.agents import rig
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
        """By names as the policy has them."""
        decided = [record for record in await self.records(result) if isinstance(record, Decided)]
        return [(record.step.removeprefix(POLICY), record.outcome) for record in decided]


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


class Thinks(Model):
    """A model that answers as a function of what the user said last, and how often it was asked before."""

    def __init__(self, answer: Callable[[str, int], Answer | Awaitable[Answer]]) -> None:
        self._answer = answer

    async def ask(self, question: Question, on_text: OnText | None = None) -> Answer:
        said = [one for one in question.said if isinstance(one, UserSaid)]
        answer = self._answer(said[-1].parts[0]["text"], len(question.said) - len(said))
        answer = answer if isinstance(answer, Answer) else await answer
        if on_text is not None:
            await on_text(answer.text)
        return answer


def manifest(model: Model, more: str = "", *tools: PythonTool[..., Any], closes: bool = True) -> ManifestWorker:
    """An agent from a manifest, which completes its task with its first answer, or waits for more."""
    text = f"{rig.AGENT}{'close_after: 1' if closes else ''}\n{more}"
    with TemporaryDirectory() as folder:
        return rig.worker(Path(folder), text, model, tools=tools)


def echoes(heard: list[str]) -> dict[str, Any]:
    """The same agent, of every kind; what it hears is put into `heard`."""

    def answer(text: str, _: int) -> Answer:
        heard.append(text)
        return rig.say(f"Echo: {text}")

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
        "manifest": manifest(Thinks(answer)),
    }


#: Agents that are Python code, whose handlers are opaque.
HANDLERS = ("worker", "thread", "function", "executor")
KINDS = (*HANDLERS, "manifest")

__all__ = ["ANYBODY", "Handle"]
