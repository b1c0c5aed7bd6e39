"""The benchmark agent as an executor of the official a2a-sdk, served by its own server and by errands."""

from a2a.helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from bench_agent import chunks, echo

ARTIFACT_ID = "answer"


class BenchAgent(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        if context.message is None:
            raise ValueError("The request carries no message.")
        task = new_task_from_user_message(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        # The states of every contender: submitted, working, artifact, completed.
        await updater.start_work()
        text = context.get_user_input()
        pieces = chunks(text) or [echo(text)]
        last = len(pieces) - 1
        for index, piece in enumerate(pieces):
            await updater.add_artifact(
                [new_text_part(piece)], artifact_id=ARTIFACT_ID, append=index > 0, last_chunk=index == last
            )
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


card = AgentCard(
    name="Bench",
    description="Echoes and streams.",
    version="1.0.0",
    capabilities=AgentCapabilities(streaming=True),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    skills=[AgentSkill(id="echo", name="Echo", description="Echoes and streams.", tags=["bench"])],
    supported_interfaces=[AgentInterface(url="http://127.0.0.1/", protocol_binding="JSONRPC", protocol_version="1.0")],
)
