"""Executors made of functions, and what their tests say and hear."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from errands import (
    A2AClient,
    AgentExecutor,
    EventQueue,
    Message,
    Part,
    RequestContext,
    Role,
    Task,
    TaskState,
    TaskStatus,
    TaskUpdater,
)
from errands.testing import connect

Act = Callable[[RequestContext, EventQueue], Awaitable[None]]


class Executor(AgentExecutor):
    """An executor whose two methods are functions of the test; `canceled` counts the calls of `cancel`."""

    def __init__(self, execute: Act, cancel: Act | None = None) -> None:
        self._execute = execute
        self._cancel = cancel
        self.canceled = 0

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await self._execute(context, event_queue)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.canceled += 1
        if self._cancel is not None:
            await self._cancel(context, event_queue)


def executing(
    execute: Act, storage: str, cancel: Act | None = None, **options: Any
) -> AbstractAsyncContextManager[A2AClient]:
    """A connected client of an agent with this `execute`."""
    return connect(Executor(execute, cancel), storage=storage, **options)


def updater_of(context: RequestContext, queue: EventQueue) -> TaskUpdater:
    return TaskUpdater(queue, context.task_id, context.context_id)


def words(text: str, **options: Any) -> Message:
    """A message of the agent."""
    return Message(message_id=f"said {text}", role=Role.AGENT, parts=[Part(text=text)], **options)


def new_task(context: RequestContext, state: TaskState = TaskState.SUBMITTED, **options: Any) -> Task:
    """The task that an executor begins with, as the official helpers make it."""
    assert context.task_id is not None
    assert context.message is not None
    return Task(
        id=context.task_id,
        context_id=context.context_id,
        status=TaskStatus(state=state),
        history=[context.message],
        **options,
    )


class Never:
    """Something that an executor waits for and that does not come."""

    def __init__(self) -> None:
        self.awaited = asyncio.Event()
        self.interrupted = False

    async def __call__(self) -> None:
        self.awaited.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.interrupted = True
            raise


class Works:
    """An `execute` that begins, and works until it is interrupted."""

    def __init__(self) -> None:
        self.work = Never()

    async def __call__(self, context: RequestContext, queue: EventQueue) -> None:
        await updater_of(context, queue).start_work()
        await self.work()
