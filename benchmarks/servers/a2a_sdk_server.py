"""The benchmark agent on the official a2a-sdk, with its own request handler, stores, routes and gRPC handler."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import DatabaseTaskStore, InMemoryTaskStore, TaskStore
from a2a.types.a2a_pb2_grpc import add_A2AServiceServicer_to_server
from a2a_sdk_executor import BenchAgent, card
from bench_agent import DATABASE, GRPC_PORT, STORAGE, URL
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette

JOURNAL = os.environ.get("BENCH_JOURNAL", "DELETE")


def set_journal(connection: Any, _record: Any) -> None:
    """The store leaves the journal to its user; WAL is faster and as durable: `synchronous` stays FULL."""
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA journal_mode={JOURNAL}")
    cursor.close()


def task_store() -> TaskStore:
    if STORAGE == "memory":
        return InMemoryTaskStore()
    if STORAGE == "postgresql":
        return DatabaseTaskStore(create_async_engine(URL.replace("postgresql://", "postgresql+asyncpg://")))
    engine = create_async_engine(f"sqlite+aiosqlite:///{DATABASE}")
    event.listen(engine.sync_engine, "connect", set_journal)
    return DatabaseTaskStore(engine)


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
