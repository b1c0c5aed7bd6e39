"""An agent from YAML, and a model that says what a test wants, in a whole server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from errands import A2AClient, A2AServer, AgentCardConfig, CapabilitiesConfig
from errands.agents.delegation import Delegate
from errands.agents.loop.manifest_worker import ManifestWorker
from errands.agents.manifests import load
from errands.agents.models.base import Answer, FunctionCall, FunctionSaid, Model, OnText, Question
from errands.agents.mounts import Mounts
from errands.agents.tools.python import PythonTool
from errands.agents.tools.toolbox import Toolbox
from errands.client.conversation import Content
from errands.engines.base import Engine
from errands.model.core import SETTLED_STATES, Task
from errands.outbound import Outbound
from errands.policy.cel.evaluators import Evaluators
from errands.policy.context_object import Context, replay
from errands.policy.records import AnyRecord
from errands.policy.reviews import ReviewDesk
from errands.policy.run import stored_records
from errands.runtime.journal import Journal
from errands.testing import connect

#: What the model does when it is asked: an answer, or a function of the question that gives one.
Reply = Answer | str | Callable[[Question], Answer]

AGENT = """
kind: commonagents.info/v1beta2/agent
namespace: shop
name: clerk
description: A clerk.
prompt: You are a clerk.
model: test/model
"""

TOOL = """
---
kind: commonagents.info/v1beta2/tool
namespace: shop
"""


#: An agent with one tool, which is written in CEL.
ADDING = (
    AGENT
    + """
capabilities:
  adder: "*"
"""
    + TOOL
    + """
name: adder
description: Adds numbers.
actions:
  - name: add
    description: Adds two numbers.
    parameters: {properties: {a: {type: integer}, b: {type: integer, default: 1}}}
    execute: {cel: {expression: "{'sum': input.a + input.b}"}}
"""
)


def say(text: str, **tokens: Any) -> Answer:
    return Answer(text=text, model="test/model", **tokens)


def call(*calls: tuple[str, dict[str, Any]] | FunctionCall, text: str = "", **tokens: Any) -> Answer:
    made = [
        one if isinstance(one, FunctionCall) else FunctionCall(_id(number, one[0]), *one)
        for number, one in enumerate(calls)
    ]
    return Answer(text=text, calls=tuple(made), model="test/model", **tokens)


_made = 0


def _id(number: int, name: str) -> str:
    global _made
    _made += 1
    return f"{name}-{_made}-{number}"


class Replies(Model):
    """A model that gives these replies in turn, and keeps what it was asked."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.questions: list[Question] = []

    async def ask(self, question: Question, on_text: OnText | None = None) -> Answer:
        self.questions.append(question)
        reply = self.replies.pop(0)
        answer = say(reply) if isinstance(reply, str) else reply if isinstance(reply, Answer) else reply(question)
        if on_text is not None:
            for word in answer.text.split(" "):
                await on_text(word if word == answer.text.split(" ")[0] else f" {word}")
        return answer

    def results(self, number: int = -1) -> list[Any]:
        """What the functions had answered when the model was asked, the newest exchange first to last."""
        return [said.content for said in self.questions[number].said if isinstance(said, FunctionSaid)]


class Desk:
    """One agent under test."""

    def __init__(self, server: A2AServer, client: A2AClient, model: Replies) -> None:
        self.server = server
        self.client = client
        self.model = model
        self.task: Task | None = None

    async def say(self, text: Content, **options: Any) -> Task:
        """Sends a message to the task that is open, or to a new one, and waits for the turn's end."""
        task_id = self.task.id if self.task is not None else None
        result = await self.client.send(text, task_id=task_id, **options)
        assert result.raw_task is not None
        self.task = result.raw_task
        return self.task

    async def answer(self, approved: bool, *, by: str = "boss@example.com") -> str:
        """Answers a review, and says in which state the task then comes to rest."""
        assert self.task is not None
        await ReviewDesk(Journal(self.server.engine)).answer(self.task.id, approved, by=by)
        return await self.settled()

    async def settled(self) -> str:
        """The user who is asked, or else the state in which the task has come to rest."""
        assert self.task is not None
        stored = await self.server.engine.wait_for_state(self.task.id, self.server.scope(), SETTLED_STATES, None)
        self.task = stored.task
        return stored.head.asks or stored.state.short

    async def records(self, owner: str = "") -> list[AnyRecord]:
        assert self.task is not None
        return await stored_records(self.server.engine, self.task.id, self.server.scope(owner))

    async def context(self) -> Context:
        return replay(await self.records())


def worker(
    folder: Path,
    text: str,
    model: Model,
    *,
    tools: Sequence[PythonTool[..., Any]] = (),
    delegates: dict[str, Delegate] | None = None,
    settings: dict[str, dict[str, Any]] | None = None,
    name: str | None = None,
    evaluators: Evaluators | None = None,
) -> ManifestWorker:
    folder.mkdir(exist_ok=True)
    (folder / "agent.yaml").write_text(text, "utf-8")
    manifests = load(folder, tools=list(tools))
    agent = next(agent for agent in manifests.agents if name in (None, agent.name))
    toolbox = Toolbox(
        manifests,
        agent,
        settings=settings or {},
        outbound=Outbound(allow=["127.0.0.1"]),
        runtime={"version": "1"},
        auth={},
    )
    return ManifestWorker(
        agent,
        manifests=manifests,
        toolbox=toolbox,
        model=model,
        model_name=agent.model or "test/model",
        mounts=Mounts(manifests.mount, folder / "files"),
        delegates=delegates or {},
        runtime={"version": "1"},
        evaluators=evaluators,
    )


@asynccontextmanager
async def at_work(
    folder: Path,
    text: str,
    *replies: Reply,
    storage: str | Engine = "memory",
    model: Replies | None = None,
    server: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Desk]:
    """The agent of `text` (its first), served in this process."""
    model = model or Replies(*replies)
    card = AgentCardConfig(name="clerk", description="A clerk.", capabilities=CapabilitiesConfig(streaming=True))
    made = A2AServer(worker=worker(folder, text, model, **options), agent_card=card, storage=storage, **(server or {}))
    async with connect(made) as client:
        yield Desk(made, client, model)


def told(task: Task) -> str:
    """What the status says."""
    assert task.status.message is not None
    return task.status.message.parts[0].text or ""


def reason(task: Task) -> Any:
    """Why the task was ended, as the status says."""
    assert task.status.message is not None
    return (task.status.message.metadata or {}).get("reason")
