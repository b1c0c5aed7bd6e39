"""`SdkExecutor`: an executor of the official SDK as one of ours."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from errands.interop.sdk import Sdk
from errands.runtime.executor.agent import AgentExecutor
from errands.runtime.executor.queue import EventQueue
from errands.runtime.executor.request import RequestContext


class SdkExecutor(AgentExecutor):
    """Gives the executor what its SDK would give it, and takes from it what its SDK would take."""

    def __init__(self, executor: Any, sdk: Sdk) -> None:
        self._executor = executor
        self._sdk = sdk
        self.on_interrupted = getattr(executor, "on_interrupted", self.on_interrupted)

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await self._run(self._executor.execute(self._sdk.context(context), self._sdk.queue(event_queue)))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await self._run(self._executor.cancel(self._sdk.context(context), self._sdk.queue(event_queue)))

    async def _run(self, call: Awaitable[None]) -> None:
        try:
            await call
        except Exception as raised:
            error = self._sdk.error(raised)
            if error is None:
                raise
            raise error from raised
