"""The interoperability agent as an executor of a2a-sdk 0.3.26, and its card."""

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, TaskState
from a2a.utils import new_agent_text_message, new_task
from behaviour import DESCRIPTION, NAME, Behaviour
from parts_0_3 import plain_part, sdk_part, text_of


class SdkTurn:
    """The SDK's side of `Turn`."""

    def __init__(self, context: RequestContext, queue: EventQueue, cancelled: set[str]) -> None:
        self._queue = queue
        self._context = context
        self._cancelled = cancelled
        self._updater = TaskUpdater(queue, context.task_id, context.context_id)
        history = (context.current_task.history or []) if context.current_task else []
        self.first_text = text_of(history[0].parts) if history else None
        self.text = context.get_user_input()
        self.parts = [plain_part(part) for part in context.message.parts]

    @property
    def is_cancelled(self) -> bool:
        return self._context.task_id in self._cancelled

    async def begin(self) -> None:
        if self._context.current_task is None:
            await self._queue.enqueue_event(new_task(self._context.message))
        await self._updater.start_work()

    async def artifact(self, name: str, part: dict[str, str], *, append: bool = False, last: bool = True) -> None:
        await self._updater.add_artifact([sdk_part(part)], artifact_id=name, append=append, last_chunk=last)

    async def status(self, text: str) -> None:
        await self._updater.update_status(TaskState.working, new_agent_text_message(text))

    async def complete(self) -> None:
        await self._updater.complete()

    async def ask(self, question: str) -> None:
        await self._updater.requires_input(new_agent_text_message(question))

    async def reply(self, text: str) -> None:
        await self._queue.enqueue_event(new_agent_text_message(text))

    async def fail(self, reason: str) -> None:
        await self._updater.failed(new_agent_text_message(reason))


class Interop(AgentExecutor):
    def __init__(self) -> None:
        self._behaviour = Behaviour()
        self._cancelled: set[str] = set()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        turn = SdkTurn(context, event_queue, self._cancelled)
        if turn.text != "direct":
            await turn.begin()
        await self._behaviour.act(turn)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        self._cancelled.add(context.task_id)
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def card(url: str, grpc_address: str, *skills: str) -> AgentCard:
    others = {"HTTP+JSON": url, "GRPC": grpc_address}
    return AgentCard(
        name=NAME,
        description=DESCRIPTION,
        version="1.0.0",
        url=f"{url}/",
        preferred_transport="JSONRPC",
        additional_interfaces=[AgentInterface(transport=name, url=address) for name, address in others.items()],
        capabilities=AgentCapabilities(streaming=True),
        supports_authenticated_extended_card=True,
        default_input_modes=["*/*"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id=name, name=name, description=DESCRIPTION, tags=["test"]) for name in skills],
    )
