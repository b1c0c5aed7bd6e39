"""`ExecutorWorker`: an executor as the worker it is to the rest of the runtime."""

from __future__ import annotations

from errands.runtime.context import TaskContext
from errands.runtime.executor.agent import AgentExecutor
from errands.runtime.executor.request import RequestContextBuilder, SimpleRequestContextBuilder
from errands.runtime.worker import Worker


class ExecutorWorker(Worker):
    """Runs an executor's `execute` as a turn, and its `cancel` when the task is wanted canceled."""

    def __init__(self, executor: AgentExecutor, request_context_builder: RequestContextBuilder | None = None) -> None:
        self.executor = executor
        self.builder = request_context_builder or SimpleRequestContextBuilder()

    async def handle(self, ctx: TaskContext) -> None:
        raise NotImplementedError
