"""An executor in a module that knows nothing of the a2a package."""

from errands import AgentExecutor, EventQueue, RequestContext


class Native(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None: ...

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None: ...
