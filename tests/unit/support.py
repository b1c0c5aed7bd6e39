"""What the tests of contexts and states share: workers made of functions, and ways to wait for what happens."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

import msgspec

from errands.client import A2AClient, ClientResult
from errands.client.conversation import Content
from errands.client.results import StreamEvent
from errands.engines.base import Engine
from errands.engines.memory import MemoryEngine
from errands.model.base import encode
from errands.model.card_config import AgentCardConfig, CapabilitiesConfig
from errands.model.core import (
    Message,
    Part,
    Role,
    StreamResponse,
    Task,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from errands.model.log import Change, Draft, Event, Head, Scope, StoredTask, Work
from errands.policy.agent_oversight import AgentOversight
from errands.runtime.context import TaskContext
from errands.runtime.journal import Journal
from errands.runtime.turn import Turn
from errands.runtime.worker import Worker
from errands.testing import connect

Handle = Callable[[TaskContext], Awaitable[None]]

#: The eight methods of which a handler calls exactly one, and where each leads.
LIFECYCLE: dict[str, tuple[Handle, str]] = {
    "complete": (lambda ctx: ctx.complete("done"), "completed"),
    "complete_json": (lambda ctx: ctx.complete_json({"done": True}), "completed"),
    "respond": (lambda ctx: ctx.respond("done"), "completed"),
    "reply_directly": (lambda ctx: ctx.reply_directly("done"), "completed"),
    "fail": (lambda ctx: ctx.fail("broken"), "failed"),
    "reject": (lambda ctx: ctx.reject("not mine"), "rejected"),
    "request_input": (lambda ctx: ctx.request_input("which?"), "input-required"),
    "request_auth": (lambda ctx: ctx.request_auth("token?"), "auth-required"),
}

#: Whose tasks `errands.testing.serve` serves to callers without a name.
ANYBODY = Scope(agent="Test agent")


class Agent(Worker):
    """A worker whose handler is a function of the test."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def handle(self, ctx: TaskContext) -> None:
        await self._handle(ctx)


class ThreadedAgent(Worker):
    """The same with a plain `def`, which runs in a thread."""

    def __init__(self, handle: Callable[[Any], None]) -> None:
        self._handle = handle

    def handle(self, ctx: Any) -> None:  # type: ignore[override]
        self._handle(ctx)


class Gate:
    """Where a handler stops until the test lets it go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._opened = asyncio.Event()

    async def __call__(self) -> None:
        self.reached.set()
        await self._opened.wait()

    def open(self) -> None:
        self._opened.set()


def running(handle: Handle, storage: str = "memory", **options: Any) -> AbstractAsyncContextManager[A2AClient]:
    """A connected client of an agent with this handler."""
    return connect(Agent(handle), storage=storage, **options)


async def run(handle: Handle, content: Content = "hi", *, storage: str = "memory", **options: Any) -> ClientResult:
    """What one blocking send to an agent with this handler gives."""
    async with running(handle, storage) as client:
        return await client.send(content, **options)


async def stream(
    handle: Handle, content: Content = "hi", *, storage: str = "memory", **options: Any
) -> list[StreamEvent]:
    """Everything that one streaming send to an agent with this handler shows."""
    async with running(handle, storage) as client:
        return [event async for event in client.stream(content, **options)]


async def first(events: AsyncGenerator[StreamEvent, None], wanted: Callable[[StreamEvent], bool]) -> StreamEvent:
    """The first of these events that is wanted."""
    async with aclosing(events):
        async for event in events:
            if wanted(event):
                return event
    raise AssertionError("the stream ended without the wanted event")


async def reaches(client: A2AClient, task_id: str, *states: str) -> ClientResult:
    """The task once it has been seen in one of these states."""
    await first(client.subscribe(task_id), lambda event: event.state in states)
    return await client.get_task(task_id)


async def until_cancelled(ctx: TaskContext) -> None:
    """Looks whether a cancel is wanted, as a long loop would, until it is."""
    while True:
        if ctx.is_cancelled:
            return
        await asyncio.sleep(0)


def open_card(**options: Any) -> AgentCardConfig:
    """The card of an agent that takes every type of input."""
    return AgentCardConfig(
        name="Test agent",
        description="Takes everything.",
        capabilities=CapabilitiesConfig(streaming=True),
        input_modes=["*/*"],
        **options,
    )


def signature(function: Callable[..., Any]) -> str:
    """The signature as the founding document writes it: without `self` and without types."""
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self"
    ]
    return str(inspect.Signature(parameters))


def said(result: ClientResult) -> str | None:
    """The text of the status message."""
    assert result.raw_task is not None
    message = result.raw_task.status.message
    return None if message is None else "".join(part.text or "" for part in message.parts)


def spoken(result: ClientResult) -> list[str]:
    """The texts of the task's history, in order."""
    assert result.raw_task is not None
    return ["".join(part.text or "" for part in message.parts) for message in result.raw_task.history or []]


async def heard(client: A2AClient, task_id: str, text: str) -> None:
    """Returns once this text is in the task's history. Messages are not streamed, so it looks again and again."""
    while text not in spoken(await client.get_task(task_id)):
        pass


def lone_context(
    *, context_id: str | None = "conversation", journal: Journal | None = None, **options: Any
) -> TaskContext:
    """A context outside any server, for what a server never hands out."""
    message = Message(message_id="m1", role=Role.USER, parts=[Part(text="hi")])
    stored = StoredTask(
        task=Task(id="t1", context_id=context_id, status=TaskStatus(state=TaskState.WORKING), history=[message]),
        head=Head(version=1, state=TaskState.WORKING, attempt=1, worker="here", unread=1),
        scope=ANYBODY,
    )
    return TaskContext(Turn(journal or Journal(MemoryEngine()), stored, oversight=AgentOversight(), **options))


def status_draft(task_id: str, state: TaskState) -> Draft:
    update = TaskStatusUpdateEvent(task_id=task_id, context_id="c", status=TaskStatus(state=state))
    return Draft("status", encode(StreamResponse(status_update=update)))


def opening(task_id: str = "t1", *, text: str = "hi", **options: Any) -> Change:
    """The change that creates a submitted task which waits for a worker."""
    message = Message(message_id=f"first of {task_id}", role=Role.USER, parts=[Part(text=text)])
    task = Task(id=task_id, context_id="c", status=TaskStatus(state=TaskState.SUBMITTED), history=[message])
    change = Change(
        task_id=task_id,
        scope=ANYBODY,
        events=(Draft("task", encode(StreamResponse(task=task))),),
        expected=0,
        at=1,
        state=TaskState.SUBMITTED,
        work=Work.READY,
        due_at=1,
        unread=1,
        context_id="c",
    )
    return msgspec.structs.replace(change, **options)


def step(task_id: str, state: TaskState, /, **options: Any) -> Change:
    """The change that takes a task to `state` and leaves its place in the queue alone."""
    change = Change(task_id=task_id, scope=ANYBODY, events=(status_draft(task_id, state),), at=2, state=state)
    return msgspec.structs.replace(change, **options)


async def bring(engine: Engine, state: TaskState, task_id: str = "t1") -> StoredTask:
    """Creates a task and takes it to `state` the shortest legal way."""
    await engine.commit(opening(task_id, work=Work.IDLE))
    if state is not TaskState.SUBMITTED:
        await engine.commit(step(task_id, TaskState.WORKING))
    if state not in (TaskState.SUBMITTED, TaskState.WORKING):
        await engine.commit(step(task_id, state))
    return await engine.load(task_id, ANYBODY)


async def log_of(engine: Engine, task_id: str) -> list[Event]:
    """Every event of the task."""
    return (await engine.read(task_id, ANYBODY, 0)).events
