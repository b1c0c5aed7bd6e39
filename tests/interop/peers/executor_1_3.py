"""The interoperability agent as an executor of a2a-sdk 1.3.0, and its card."""

from typing import Any

from a2a.helpers import new_task_from_user_message, new_text_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Role, TaskState
from behaviour import DESCRIPTION, NAME, Behaviour
from parts_1_3 import plain_part, sdk_part, text_of


class SdkTurn:
    """The SDK's side of `Turn`."""

    is_cancelled = False  # the SDK cancels the coroutine instead

    def __init__(self, context: RequestContext, queue: EventQueue) -> None:
        self._queue = queue
        self._context = context
        self._updater = TaskUpdater(queue, context.task_id, context.context_id)
        history = context.current_task.history if context.current_task else []
        self.first_text = text_of(history[0].parts) if history else None
        self.text = context.get_user_input()
        self.parts = [plain_part(part) for part in context.message.parts]

    async def begin(self) -> None:
        if self._context.current_task is None:
            task = new_task_from_user_message(self._context.message)
            task.id, task.context_id = self._context.task_id, self._context.context_id
            await self._queue.enqueue_event(task)
        await self._updater.start_work()

    async def artifact(self, name: str, part: dict[str, str], *, append: bool = False, last: bool = True) -> None:
        await self._updater.add_artifact([sdk_part(part)], artifact_id=name, append=append, last_chunk=last)

    async def status(self, text: str) -> None:
        await self._updater.update_status(TaskState.TASK_STATE_WORKING, self._message(text))

    async def complete(self) -> None:
        await self._updater.complete()

    async def ask(self, question: str) -> None:
        await self._updater.requires_input(self._message(question))

    async def reply(self, text: str) -> None:
        await self._queue.enqueue_event(self._message(text))

    async def fail(self, reason: str) -> None:
        await self._updater.failed(self._message(reason))

    def _message(self, text: str) -> Any:
        return new_text_message(text, role=Role.ROLE_AGENT)


class Interop(AgentExecutor):
    def __init__(self) -> None:
        self._behaviour = Behaviour()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        turn = SdkTurn(context, event_queue)
        if turn.text != "direct":
            await turn.begin()
        await self._behaviour.act(turn)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def card(url: str, grpc_address: str, *skills: str) -> AgentCard:
    addresses = {"JSONRPC": f"{url}/", "HTTP+JSON": url, "GRPC": grpc_address}
    return AgentCard(
        name=NAME,
        description=DESCRIPTION,
        version="1.0.0",
        capabilities=AgentCapabilities(streaming=True, extended_agent_card=True),
        default_input_modes=["*/*"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id=name, name=name, description=DESCRIPTION, tags=["test"]) for name in skills],
        supported_interfaces=[
            AgentInterface(url=address, protocol_binding=binding, protocol_version="1.0")
            for binding, address in addresses.items()
        ],
    )
