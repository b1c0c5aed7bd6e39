"""An agent written as an executor: it gets a request and a queue, and publishes events.

Run it:

    errands serve examples/executor.py

Try:

    errands send http://localhost:8000 "ping"                   # a single message and no task
    errands send http://localhost:8000 "a table for two"        # a task; it asks for the day
    errands send http://localhost:8000 "friday" --task TASK_ID  # continues the same task

The second command prints the third.
"""

from errands import (
    A2AServer,
    AgentCardConfig,
    AgentExecutor,
    CapabilitiesConfig,
    EventQueue,
    Message,
    Part,
    RequestContext,
    TaskUpdater,
)


class Host(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        wish = context.get_user_input()
        if wish == "ping":
            await event_queue.enqueue_event(say(updater, "pong"))
        elif context.current_task is None:
            await updater.requires_input(say(updater, "For which day?"))
        else:
            await updater.start_work()
            await updater.add_artifact([Part(text=f"Booked for {wish}.")], name="booking")
            await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.cancel(say(updater, "The table is free again."))


def say(updater: TaskUpdater, text: str) -> Message:
    return updater.new_agent_message([Part(text=text)])


server = A2AServer(
    executor=Host(),
    agent_card=AgentCardConfig(
        name="Host", description="Books tables.", capabilities=CapabilitiesConfig(streaming=True)
    ),
)
