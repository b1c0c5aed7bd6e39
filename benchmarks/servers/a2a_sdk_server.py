"""The benchmark agent on the official a2a-sdk, with its own request handler, stores, routes and gRPC handler."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
from a2a.helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import DatabaseTaskStore, InMemoryTaskStore, TaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from a2a.types.a2a_pb2_grpc import add_A2AServiceServicer_to_server
from bench_agent import DATABASE, GRPC_PORT, STORAGE, chunks, echo
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette

ARTIFACT_ID = "answer"
JOURNAL = os.environ.get("BENCH_JOURNAL", "DELETE")


class BenchAgent(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        if context.message is None:
            raise ValueError("The request carries no message.")
        task = new_task_from_user_message(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        # The lifecycle that every contender goes through: submitted, working, artifact, completed.
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


def set_journal(connection: Any, _record: Any) -> None:
    """The store leaves the journal to its user; WAL is faster and as durable: `synchronous` stays FULL."""
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA journal_mode={JOURNAL}")
    cursor.close()


def task_store() -> TaskStore:
    if STORAGE == "memory":
        return InMemoryTaskStore()
    engine = create_async_engine(f"sqlite+aiosqlite:///{DATABASE}")
    event.listen(engine.sync_engine, "connect", set_journal)
    return DatabaseTaskStore(engine)


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
store = task_store()
handler = DefaultRequestHandler(agent_executor=BenchAgent(), task_store=store, agent_card=card)


@asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[None]:
    """Create the tables before the first request: the store's lazy creation races with itself under load."""
    if isinstance(store, DatabaseTaskStore):
        await store.initialize()
    server = grpc.aio.server()
    add_A2AServiceServicer_to_server(GrpcHandler(handler), server)
    server.add_insecure_port(f"127.0.0.1:{GRPC_PORT}")
    await server.start()
    yield
    await server.stop(None)


app = Starlette(routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/")], lifespan=lifespan)
