"""An executor of a2a-sdk 0.3.26 that does what the first word of a message says: `errands serve contract_0_3.py`."""

from typing import Any

from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentSkill,
    DataPart,
    InvalidParamsError,
    Message,
    MessageSendConfiguration,
    Part,
    Role,
    Task,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
    TextPart,
)
from a2a.utils import new_agent_text_message, new_task, new_text_artifact
from a2a.utils.errors import ServerError
from callers import Headers
from commands import Commands

from errands import A2AServer, SimpleRequestContextBuilder


class Contract(Commands):
    def words(self, text: str, **identifiers: str) -> Message:
        return new_agent_text_message(text, **identifiers)

    def part(self, text: str) -> Part:
        return Part(root=TextPart(text=text))

    def new_task(self, message: Message) -> Task:
        return new_task(message)

    def first_words(self, task: Task) -> str:
        return task.history[0].parts[0].root.text

    async def whole(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        """A finished task in one event, artifact and all."""
        task = self.new_task(context.message)
        task.artifacts = [new_text_artifact("echo", f"Echo: {rest}")]
        task.status.state = TaskState.completed
        await queue.enqueue_event(task)

    async def refuse(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        raise ServerError(error=InvalidParamsError(message=rest))

    async def shown(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        """What the executor is given, as data."""
        updater = await self.begin(context, queue)
        call = context.call_context
        seen = {
            "types": [
                isinstance(context, RequestContext),
                isinstance(queue, EventQueue),
                isinstance(context.message, Message),
                isinstance(context.configuration, MessageSendConfiguration),
            ],
            "ids": [context.task_id == context.message.task_id, context.context_id == context.message.context_id],
            "metadata": context.metadata,
            "message metadata": context.message.metadata,
            "extensions": sorted(context.requested_extensions),
            "user": [call.user.is_authenticated, call.user.user_name],
            "tenant": "",
            "state": dict(call.state),
            "history length": context.configuration.history_length,
            "related": [task.artifacts[0].parts[0].root.text for task in context.related_tasks],
        }
        await updater.add_artifact([Part(root=DataPart(data=seen))], metadata={"kind": "seen"})
        await updater.update_status(TaskState.completed, final=True, metadata={"count": 1})

    async def wrong(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        """Publishes something that nobody may publish."""
        await self.begin(context, queue)
        status = TaskStatus(state=TaskState.working)
        events: dict[str, Any] = {
            "text": "just text",
            "message": self.words("too late"),
            "stranger": TaskStatusUpdateEvent(task_id="another", context_id="another", status=status, final=False),
            "part": Message(message_id="m", role=Role.agent, parts=[]),
            "empty": Task(id=context.task_id, context_id="another", status=status),
        }
        await queue.enqueue_event(events[rest])

    async def wordless(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        """A status whose message has neither an id nor parts, as the SDK lets it be written."""
        updater = await self.begin(context, queue)
        await updater.update_status(TaskState.working, Message(message_id="", role=Role.agent, parts=[]))
        await updater.complete(Message(message_id="", role=Role.agent, parts=[self.part(rest)]))

    async def configured(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        is_there = isinstance(context.configuration, MessageSendConfiguration)
        await queue.enqueue_event(self.words(str(is_there)))


card = AgentCard(
    name="Contract",
    description="Does what it is told.",
    version="1.2.3",
    capabilities=AgentCapabilities(streaming=True),
    url="http://elsewhere/",
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
