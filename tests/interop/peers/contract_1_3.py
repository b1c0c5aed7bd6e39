"""An executor of a2a-sdk 1.3.0 that does what the first word of a message says: `errands serve contract_1_3.py`."""

from typing import Any

from a2a.helpers import new_task_from_user_message, new_text_artifact, new_text_message, new_text_part
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentSkill,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    Task,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import InvalidParamsError
from callers import Headers
from commands import Commands
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value

from errands import A2AServer, SimpleRequestContextBuilder


def data_part(data: Any) -> Part:
    return Part(data=ParseDict(data, Value()))


class Contract(Commands):
    def words(self, text: str, **identifiers: str) -> Message:
        return new_text_message(text, **identifiers)

    def part(self, text: str) -> Part:
        return new_text_part(text)

    def new_task(self, message: Message) -> Task:
        return new_task_from_user_message(message)

    def first_words(self, task: Task) -> str:
        return task.history[0].parts[0].text

    async def whole(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        """A finished task in one event, artifact and all."""
        task = self.new_task(context.message)
        task.artifacts.append(new_text_artifact("echo", f"Echo: {rest}"))
        task.status.state = TaskState.TASK_STATE_COMPLETED
        await queue.enqueue_event(task)

    async def refuse(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        raise InvalidParamsError(message=rest)

    async def shown(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        """What the executor is given, as data."""
        updater = await self.begin(context, queue)
        call = context.call_context
        seen = {
            "types": [
                isinstance(context, RequestContext),
                isinstance(queue, EventQueue),
                isinstance(context.message, Message),
                isinstance(context.configuration, SendMessageConfiguration),
            ],
            "ids": [context.task_id == context.message.task_id, context.context_id == context.message.context_id],
            "metadata": context.metadata,
            "message metadata": MessageToDict(context.message.metadata),
            "extensions": sorted(context.requested_extensions),
            "user": [call.user.is_authenticated, call.user.user_name],
            "tenant": context.tenant,
            "state": dict(call.state),
            "history length": context.configuration.history_length,
            "related": [task.artifacts[0].parts[0].text for task in context.related_tasks],
        }
        await updater.add_artifact([data_part(seen)], metadata={"kind": "seen"})
        await updater.update_status(TaskState.TASK_STATE_COMPLETED, metadata={"count": 1})

    async def wrong(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        """Publishes something that nobody may publish."""
        await self.begin(context, queue)
        status = TaskStatus(state=TaskState.TASK_STATE_WORKING)
        events: dict[str, Any] = {
            "text": "just text",
            "message": self.words("too late"),
            "stranger": TaskStatusUpdateEvent(task_id="another", context_id=context.context_id, status=status),
            "part": Message(message_id="m", role=Role.ROLE_AGENT, parts=[Part()]),
            "empty": Task(id=context.task_id, context_id="another"),
        }
        await queue.enqueue_event(events[rest])

    async def wordless(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        """A status whose message has neither an id nor parts, as protobuf lets it be written."""
        updater = await self.begin(context, queue)
        await updater.update_status(TaskState.TASK_STATE_WORKING, Message(role=Role.ROLE_AGENT))
        await updater.complete(Message(role=Role.ROLE_AGENT, parts=[self.part(rest)]))

    async def configured(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        is_there = isinstance(context.configuration, SendMessageConfiguration)
        await queue.enqueue_event(self.words(str(is_there)))


card = AgentCard(
    name="Contract",
    description="Does what it is told.",
    version="1.2.3",
    capabilities=AgentCapabilities(streaming=True),
    default_input_modes=["*/*"],
    default_output_modes=["text/plain"],
    skills=[AgentSkill(id="do", name="Do", description="Does.", tags=["test"])],
)
server = A2AServer(
    executor=Contract(),
    agent_card=card,
    storage="memory",
    middlewares=[Headers()],
    request_context_builder=SimpleRequestContextBuilder(should_populate_referred_tasks=True),
)
