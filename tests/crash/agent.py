"""The agent that the crash and soak tests kill: it writes a known text, piece by piece, on a SQLite file."""

from __future__ import annotations

import asyncio
import sys

import uvicorn

from errands import (
    A2AServer,
    AgentCardConfig,
    AgentExecutor,
    CapabilitiesConfig,
    EventQueue,
    ExecutorWorker,
    Part,
    RequestContext,
    Settings,
    TaskContext,
    TaskUpdater,
    Worker,
)

PIECES = 20


def piece(text: str, index: int) -> str:
    return f"{text}:{index};"


def whole(text: str) -> str:
    return "".join(piece(text, index) for index in range(PIECES))


class Writer(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        for index in range(PIECES):
            await ctx.emit_text_artifact(piece(ctx.user_text, index), append=index > 0, last_chunk=index == PIECES - 1)
            await asyncio.sleep(0.001)
        await ctx.complete()


class WriterExecutor(AgentExecutor):
    """The same as an executor."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.start_work()
        for index in range(PIECES):
            parts = [Part(text=piece(context.get_user_input(), index))]
            await updater.add_artifact(parts, "answer", append=index > 0, last_chunk=index == PIECES - 1)
            await asyncio.sleep(0.001)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        pass


WORKERS: dict[str, Worker] = {"worker": Writer(), "executor": ExecutorWorker(WriterExecutor())}


def build(storage: str, kind: str) -> A2AServer:
    return A2AServer(
        worker=WORKERS[kind],
        agent_card=AgentCardConfig(
            name="Writer", description="Writes.", capabilities=CapabilitiesConfig(streaming=True)
        ),
        storage=storage,
        settings=Settings(lease_seconds=1.0, poll_interval=0.2, max_attempts=1000),
    )


if __name__ == "__main__":
    port, storage, kind = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    uvicorn.run(build(storage, kind).app, host="127.0.0.1", port=port, log_level="error")
