"""The interoperability agent on a2a-sdk 1.3.0, over all its bindings: `python server_1_3.py`."""

import asyncio

import grpc
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.types.a2a_pb2_grpc import add_A2AServiceServicer_to_server
from executor_1_3 import Interop, card
from serving import bound_socket, serve, url_of
from starlette.applications import Starlette


async def main() -> None:
    bound, grpc_server = bound_socket(), grpc.aio.server()
    url = url_of(bound)
    address = f"127.0.0.1:{grpc_server.add_insecure_port('127.0.0.1:0')}"
    public = card(url, address, "public")
    handler = DefaultRequestHandler(
        agent_executor=Interop(),
        task_store=InMemoryTaskStore(),
        agent_card=public,
        extended_agent_card=card(url, address, "public", "extended"),
    )
    add_A2AServiceServicer_to_server(GrpcHandler(handler), grpc_server)
    await grpc_server.start()
    routes = [*create_agent_card_routes(public), *create_jsonrpc_routes(handler, "/"), *create_rest_routes(handler)]
    await serve(Starlette(routes=routes), bound)


asyncio.run(main())
