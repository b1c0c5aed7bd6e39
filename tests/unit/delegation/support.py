"""A parent that hands its message to another agent through the port, and children that do what their tests need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from errands.agents.delegation import Delegate, Delegation, DelegationError, LocalDelegate
from errands.model.card_config import AgentCardConfig, CapabilitiesConfig
from errands.model.core import COMPLETED, Message, Part, Role
from errands.model.log import Scope
from errands.model.marks import exposed_part
from errands.policy.records import DelegationBegan, Started
from errands.policy.run import Run
from errands.runtime.context import TaskContext
from errands.runtime.inner import InnerAgents
from errands.runtime.worker import Worker
from errands.server.app import A2AServer
from tests.unit.reviews import support as reviews

CALL = "call-1"


class Parent(Worker):
    """Hands each message down, and answers with what came of it, as the loop does."""

    hears_cancel = True

    def __init__(self, delegate: Delegate, **parameters: Any) -> None:
        self.delegate = delegate
        self.parameters = parameters

    async def handle(self, ctx: TaskContext) -> None:
        run = await started_run(ctx)
        if ctx.is_cancelled:
            await self._let_go(ctx, run)
        else:
            await self._hand_down(ctx, run)

    async def _hand_down(self, ctx: TaskContext, run: Run) -> None:
        delegation = delegation_of(ctx, run, parameters=self.parameters)
        try:
            delegated = await ctx._turn.until_cancelled(self.delegate.run(delegation))
        except DelegationError as error:
            await ctx.fail(str(error))
            return
        if delegated is None:
            await self._let_go(ctx, run)
        else:
            await ctx.complete_json(delegated.output)

    async def _let_go(self, ctx: TaskContext, run: Run) -> None:
        # A child may be there that was not noted, because of a crash.
        await self.delegate.cancel(delegation_of(ctx, run, parameters=self.parameters))


async def started_run(ctx: TaskContext) -> Run:
    run = await Run.open(ctx._turn, ctx._turn.stored)
    if not run.started:
        run.note(Started(at=run.now(), agent="Parent", parent=ctx._turn.options.parent, depth=ctx._turn.options.depth))
    return run


def children_of(run: Run) -> list[str]:
    return [record.task_id for record in run.records if isinstance(record, DelegationBegan)]


def delegation_of(ctx: TaskContext, run: Run, **changes: Any) -> Delegation:
    async def began(task_id: str) -> None:
        await run.append(DelegationBegan(at=run.now(), call=CALL, task_id=task_id))

    values: dict[str, Any] = {
        "call": CALL,
        "message": ctx.user_text,
        "parent": ctx.task_id,
        "scope": ctx._turn.stored.scope,
        "depth": ctx._turn.options.depth + 1,
        "task_id": next(iter(children_of(run)), None),
        "began": began,
    }
    return Delegation(**(values | changes))


def bare_delegation(parent: str, scope: Scope, **changes: Any) -> Delegation:
    """An delegation without a parent at work."""

    async def began(task_id: str) -> None:
        pass

    values: dict[str, Any] = {"call": CALL, "message": "go", "parent": parent, "scope": scope, "depth": 1}
    return Delegation(**(values | {"began": began} | changes))


def family(child: Worker, *, storage: str, parent: Callable[[Delegate], Worker] = Parent, **options: Any) -> A2AServer:
    """A server for a parent with one child."""
    inner = InnerAgents({"child": child})
    return A2AServer(
        worker=parent(LocalDelegate("child", inner)),
        agent_card=AgentCardConfig(name="Parent", description=".", capabilities=CapabilitiesConfig(streaming=True)),
        inner=inner,
        storage=storage,
        **options,
    )


CHILD = Scope("", "", "child")


class Answers(Worker):
    def __init__(self) -> None:
        self.seen: list[TaskContext] = []

    async def handle(self, ctx: TaskContext) -> None:
        self.seen.append(ctx)
        await ctx.respond(f"child: {ctx.user_text}")


class Does(Worker):
    """A worker of one function."""

    def __init__(self, handle: Callable[[TaskContext], Any]) -> None:
        self._handle = handle

    async def handle(self, ctx: TaskContext) -> None:
        await self._handle(ctx)


class Held(Worker):
    """Answers when the gate opens."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.gate = asyncio.Event()

    async def handle(self, ctx: TaskContext) -> None:
        self.started.set()
        await self.gate.wait()
        await ctx.respond(f"child: {ctx.user_text}")


class Reviewed(reviews.Reviewed):
    """Waits for a review, and does its work when that has come."""

    def __init__(self) -> None:
        super().__init__("boss@example.com")
        self.waits = asyncio.Event()

    async def handle(self, ctx: TaskContext) -> None:
        await super().handle(ctx)
        self.waits.set()


class Exposing(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        exposed = exposed_part({"pages": 3})
        await ctx.emit_text_artifact("read it")
        await ctx._turn.end(COMPLETED, message=said([Part(text="read it"), exposed]))


def said(parts: list[Part], **options: Any) -> Message:
    return Message(message_id="said", role=Role.AGENT, parts=parts, **options)
