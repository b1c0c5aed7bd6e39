"""The interoperability agent on a2a-sdk 0.3.26, over all its bindings: `python server_0_3.py`."""

import asyncio
from typing import Any

import grpc
from a2a.grpc.a2a_pb2_grpc import add_A2AServiceServicer_to_server
from a2a.server.apps import A2ARESTFastAPIApplication, A2AStarletteApplication
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.tasks import InMemoryTaskStore
from executor_0_3 import Interop, card
from serving import bound_socket, serve, url_of


async def main() -> None:
    bound, grpc_server = bound_socket(), grpc.aio.server()
    url = url_of(bound)
    address = f"127.0.0.1:{grpc_server.add_insecure_port('127.0.0.1:0')}"
    cards: dict[str, Any] = {
        "agent_card": card(url, address, "public"),
        "extended_agent_card": card(url, address, "public", "extended"),
    }
    handler = DefaultRequestHandler(agent_executor=Interop(), task_store=InMemoryTaskStore())
    add_A2AServiceServicer_to_server(GrpcHandler(cards["agent_card"], handler), grpc_server)
    await grpc_server.start()
    app = A2ARESTFastAPIApplication(http_handler=handler, **cards).build()
    A2AStarletteApplication(http_handler=handler, **cards).add_routes_to_app(app)
    await serve(app, bound)


asyncio.run(main())
