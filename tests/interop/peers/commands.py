"""What the executors of both SDKs do for the first word of a message: all that the two spell alike.

`contract_0_3.py` and `contract_1_3.py` add what each of them has in a way of its own.
"""

import asyncio
from typing import Any

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater


class Commands(AgentExecutor):
    def __init__(self) -> None:
        self.granted = asyncio.Event()
        self.late: set[asyncio.Task[None]] = set()

    def words(self, text: str, **identifiers: str) -> Any:
        """A message of the agent."""
        raise NotImplementedError

    def part(self, text: str) -> Any:
        raise NotImplementedError

    def new_task(self, message: Any) -> Any:
        raise NotImplementedError

    def first_words(self, task: Any) -> str:
        """What the user said first."""
        raise NotImplementedError

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        command, _, rest = context.get_user_input().partition(" ")
        if context.current_task is not None:
            command, rest = "again", context.get_user_input()
        await getattr(self, command)(context, event_queue, rest)

    async def begin(self, context: RequestContext, queue: EventQueue) -> TaskUpdater:
        task = self.new_task(context.message)
        await queue.enqueue_event(task)
        return TaskUpdater(queue, task.id, task.context_id)

    async def message(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        await queue.enqueue_event(self.words(f"Echo: {rest}"))

    async def task(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        updater = await self.begin(context, queue)
        await updater.start_work(self.words("Thinking"))
        await updater.add_artifact([self.part(f"Echo: {rest}")], name="echo")
        await updater.complete(self.words("Done"))

    async def stream(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        updater = await self.begin(context, queue)
        pieces = rest.split()
        for index, piece in enumerate(pieces):
            last = index == len(pieces) - 1
            await updater.add_artifact([self.part(piece)], artifact_id="a", append=index > 0, last_chunk=last)
        await updater.complete()

    async def ask(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        updater = await self.begin(context, queue)
        await updater.requires_input(self.words("Which city?"))

    async def auth(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        updater = await self.begin(context, queue)
        await updater.requires_auth(self.words("Who are you?"))

    async def again(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        updater = TaskUpdater(queue, context.task_id, context.context_id)
        first = self.first_words(context.current_task)
        await updater.add_artifact([self.part(f"{first}: {rest}")])
        await updater.complete()

    async def outside(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        """Waits for an authentication that happens elsewhere."""
        self.granted.clear()
        updater = await self.begin(context, queue)
        await updater.requires_auth(self.words("Sign in over there"))
        await self.granted.wait()
        await updater.start_work()
        await updater.add_artifact([self.part("in")])
        await updater.complete()

    async def grant(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        self.granted.set()
        await queue.enqueue_event(self.words("granted"))

    async def hold(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        updater = await self.begin(context, queue)
        await updater.start_work()
        await asyncio.Event().wait()

    async def failed(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        updater = await self.begin(context, queue)
        await updater.failed(self.words(rest))

    async def reject(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        updater = await self.begin(context, queue)
        await updater.reject(self.words(rest))

    async def explode(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        await self.begin(context, queue)
        raise RuntimeError(rest)

    async def nothing(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        await self.begin(context, queue)

    async def statuses(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        """Only status events, and no task before them."""
        updater = TaskUpdater(queue, context.task_id, context.context_id)
        await updater.submit()
        await updater.start_work()
        await updater.complete(self.words(rest))

    async def data(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        """Gives back everything after the first part."""
        updater = await self.begin(context, queue)
        await updater.add_artifact(context.message.parts[1:])
        await updater.complete()

    async def mixed(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        """Puts identifiers where they do not belong, as is easily done with the SDK's helpers."""
        updater = await self.begin(context, queue)
        await updater.complete(self.words(rest, context_id=context.task_id, task_id="another"))

    async def linger(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        """Publishes once more when it has long returned."""
        updater = await self.begin(context, queue)
        await updater.requires_input()

        async def later() -> None:
            await asyncio.sleep(0.05)
            await updater.add_artifact([self.part("too late")])

        task = asyncio.create_task(later())
        self.late.add(task)
        task.add_done_callback(lambda done: (self.late.discard(done), done.exception()))

    async def close(self, context: RequestContext, queue: EventQueue, rest: str) -> None:
        """Closes the queue itself, as older executors do."""
        await queue.enqueue_event(self.words(rest))
        await queue.close()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        if self.first_words(context.current_task) == "hold stubbornly":
            raise NotImplementedError("cancel is not supported")
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.cancel(self.words("Stopped"))
