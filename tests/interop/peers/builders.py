"""An executor of the official SDK with a request context builder of it, in either generation of the SDK."""

import itertools
from typing import Any

from a2a import types
from a2a.server.agent_execution import RequestContext, SimpleRequestContextBuilder
from a2a.server.events import EventQueue
from a2a.server.id_generator import IDGenerator, IDGeneratorContext
from a2a.server.tasks import InMemoryTaskStore

if hasattr(types.Message, "DESCRIPTOR"):
    from contract_1_3 import Contract, card
else:
    from contract_0_3 import Contract, card

from callers import Headers

from errands import A2AServer


class Counted(IDGenerator):
    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._numbers = itertools.count(1)

    def generate(self, context: IDGeneratorContext) -> str:
        assert isinstance(context, IDGeneratorContext)
        return f"{self._kind}-{next(self._numbers)}"


class Noting(SimpleRequestContextBuilder):
    """Keeps a task of its own in the store that it looks in, and leaves a note."""

    def __init__(self, store: InMemoryTaskStore) -> None:
        ids = {"task_id_generator": Counted("task"), "context_id_generator": Counted("context")}
        super().__init__(should_populate_referred_tasks=True, task_store=store, **ids)
        self._store = store

    async def build(self, *arguments: Any, **options: Any) -> RequestContext:
        call = options["context"]
        await self._store.save(Contract().new_task(options["params"].message), call)
        built = await super().build(*arguments, **options)
        built.note = f"built for {call.user.user_name or 'anybody'}"
        return built


class Referring(Contract):
    async def seen(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        """Names the tasks that the message refers to."""
        related = sorted(task.id for task in context.related_tasks)
        await queue.enqueue_event(self.words(f"{context.note}: {context.task_id} {context.context_id} {related}"))


server = A2AServer(
    executor=Referring(),
    agent_card=card,
    storage="memory",
    middlewares=[Headers()],
    request_context_builder=Noting(InMemoryTaskStore()),
)
