"""An executor of a2a-sdk 0.3.26 that can be stopped in the middle of its work: `errands serve writer_0_3.py`."""

import asyncio

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentSkill, Part, TextPart
from a2a.utils import new_task
from pieces import HALF, PIECES, TICK_S, is_gate_open

from errands import A2AServer


class Writer(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        if context.current_task is not None:
            raise ValueError("there was no message before this one")
        task = new_task(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        for index, piece in enumerate(PIECES):
            while index == HALF and not is_gate_open():
                await asyncio.sleep(TICK_S)
            await updater.add_artifact([Part(root=TextPart(text=piece))], artifact_id="text", append=index > 0)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


server = A2AServer(
    executor=Writer(),
    agent_card=AgentCard(
        name="Writer",
        description="Writes.",
        version="1.0.0",
        url="http://elsewhere/",
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        capabilities=AgentCapabilities(streaming=True),
        skills=[AgentSkill(id="write", name="Write", description="Writes.", tags=["test"])],
    ),
)
