"""An executor of a2a-sdk 1.3.0 that does what the first word of a message says: `errands serve contract_1_3.py`."""

import asyncio
from typing import Any

from a2a.helpers import new_task_from_user_message, new_text_artifact, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
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
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value

from errands import A2AServer, SimpleRequestContextBuilder


def data_part(data: Any) -> Part:
    return Part(data=ParseDict(data, Value()))


class Contract(AgentExecutor):
    def __init__(self) -> None:
        self.granted = asyncio.Event()
        self.late: set[asyncio.Task[None]] = set()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        command, _, rest = context.get_user_input().partition(" ")
        if context.current_task is not None:
            command, rest = "again", context.get_user_input()
        await getattr(self, command)(context, event_queue, rest)

    async def begin(self, context: RequestContext, queue: EventQueue) -> TaskUpdater:
        task = new_task_from_user_message(context.message)
        await queue.enqueue_event(task)
        return TaskUpdater(queue, task.id, task.context_id)

    async def message(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        await queue.enqueue_event(new_text_message(f"Echo: {rest}"))

    async def task(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        updater = await self.begin(context, queue)
        await updater.start_work(new_text_message("Thinking"))
        await updater.add_artifact([new_text_part(f"Echo: {rest}")], name="echo")
        await updater.complete(new_text_message("Done"))

    async def whole(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        """A finished task in one event, artifact and all."""
        task = new_task_from_user_message(context.message)
        task.artifacts.append(new_text_artifact("echo", f"Echo: {rest}"))
        task.status.state = TaskState.TASK_STATE_COMPLETED
        await queue.enqueue_event(task)

    async def stream(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        updater = await self.begin(context, queue)
        pieces = rest.split()
        for index, piece in enumerate(pieces):
            last = index == len(pieces) - 1
            await updater.add_artifact([new_text_part(piece)], artifact_id="a", append=index > 0, last_chunk=last)
        await updater.complete()

    async def ask(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        updater = await self.begin(context, queue)
        await updater.requires_input(new_text_message("Which city?"))

    async def auth(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        updater = await self.begin(context, queue)
        await updater.requires_auth(new_text_message("Who are you?"))

    async def again(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        updater = TaskUpdater(queue, context.task_id, context.context_id)
        first = context.current_task.history[0].parts[0].text
        await updater.add_artifact([new_text_part(f"{first}: {rest}")])
        await updater.complete()

    async def outside(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        """Waits for an authentication that happens elsewhere."""
        self.granted.clear()
        updater = await self.begin(context, queue)
        await updater.requires_auth(new_text_message("Sign in over there"))
        await self.granted.wait()
        await updater.start_work()
        await updater.add_artifact([new_text_part("in")])
        await updater.complete()

    async def grant(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        self.granted.set()
        await queue.enqueue_event(new_text_message("granted"))

    async def hold(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        updater = await self.begin(context, queue)
        await updater.start_work()
        await asyncio.Event().wait()

    async def failed(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        updater = await self.begin(context, queue)
        await updater.failed(new_text_message(rest))

    async def reject(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        updater = await self.begin(context, queue)
        await updater.reject(new_text_message(rest))

    async def explode(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        await self.begin(context, queue)
        raise RuntimeError(rest)

    async def refuse(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        raise InvalidParamsError(message=rest)

    async def nothing(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        await self.begin(context, queue)

    async def statuses(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        """Only status events, and no task before them."""
        updater = TaskUpdater(queue, context.task_id, context.context_id)
        await updater.submit()
        await updater.start_work()
        await updater.complete(new_text_message(rest))

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

    async def data(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        """Gives back everything after the first part."""
        updater = await self.begin(context, queue)
        await updater.add_artifact(context.message.parts[1:])
        await updater.complete()

    async def wrong(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        """Publishes something that nobody may publish."""
        await self.begin(context, queue)
        status = TaskStatus(state=TaskState.TASK_STATE_WORKING)
        events: dict[str, Any] = {
            "text": "just text",
            "message": new_text_message("too late"),
            "stranger": TaskStatusUpdateEvent(task_id="another", context_id=context.context_id, status=status),
            "part": Message(message_id="m", role=Role.ROLE_AGENT, parts=[Part()]),
            "empty": Task(id=context.task_id, context_id="another"),
        }
        await queue.enqueue_event(events[rest])

    async def wordless(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        """A status whose message has neither an id nor parts, as protobuf lets it be written."""
        updater = await self.begin(context, queue)
        await updater.update_status(TaskState.TASK_STATE_WORKING, Message(role=Role.ROLE_AGENT))
        await updater.complete(Message(role=Role.ROLE_AGENT, parts=[new_text_part(rest)]))

    async def mixed(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        """Puts identifiers where they do not belong, as is easily done with the SDK's helpers."""
        updater = await self.begin(context, queue)
        await updater.complete(new_text_message(rest, context_id=context.task_id, task_id="another"))

    async def configured(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        is_there = isinstance(context.configuration, SendMessageConfiguration)
        await queue.enqueue_event(new_text_message(str(is_there)))

    async def linger(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        """Publishes once more when it has long returned."""
        updater = await self.begin(context, queue)
        await updater.requires_input()

        async def later() -> None:
            await asyncio.sleep(0.05)
            await updater.add_artifact([new_text_part("too late")])

        task = asyncio.create_task(later())
        self.late.add(task)
        task.add_done_callback(lambda done: (self.late.discard(done), done.exception()))

    async def close(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        """Closes the queue itself, as older executors do."""
        await queue.enqueue_event(new_text_message(rest))
        await queue.close()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        if context.current_task.history[0].parts[0].text == "hold stubbornly":
            raise NotImplementedError("cancel is not supported")
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.cancel(new_text_message("Stopped"))


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
