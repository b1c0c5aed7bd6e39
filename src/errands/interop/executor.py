"""`SdkExecutor`: an executor of the official SDK as one of ours."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from errands.interop.sdk import Sdk
from errands.model.core import Task
from errands.runtime.executor.agent import AgentExecutor
from errands.runtime.executor.queue import EventQueue
from errands.runtime.executor.request import RequestContext


class SdkExecutor(AgentExecutor):
    """Gives the executor what its SDK would give it, and takes from it what its SDK would take."""

    def __init__(self, executor: Any, sdk: Sdk, builder: Any = None) -> None:
        """`builder` is a request context builder of the SDK."""
        self._executor = executor
        self._sdk = sdk
        self._builder = builder
        self.on_interrupted = getattr(executor, "on_interrupted", self.on_interrupted)

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await self._run(self._execute(context, event_queue))

    async def _execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task = _task_before(context)
        if self._builder is None:
            sdk_context = self._sdk.context(context, task)
        else:
            sdk_context = await self._sdk.built(self._builder, context, task)
        await self._executor.execute(sdk_context, self._sdk.queue(event_queue))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        sdk_context = self._sdk.context(context, context.current_task)
        await self._run(self._executor.cancel(sdk_context, self._sdk.queue(event_queue)))

    async def _run(self, call: Awaitable[None]) -> None:
        try:
            await call
        except Exception as raised:
            error = self._sdk.error(raised)
            if error is None:
                raise
            raise error from raised


def _task_before(context: RequestContext) -> Task | None:
    """The task that the message continues. A task that it began is none, also when the message is delivered again.

    The SDK delivers a message once, so its executors take a current task for the sign of a further message.
    """
    task, message = context.current_task, context.message
    if task is None or message is None or not task.history:
        return task
    return None if task.history[0].message_id == message.message_id else task
