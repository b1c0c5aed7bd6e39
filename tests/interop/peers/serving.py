"""A server on a port of its own whose address is printed as soon as it takes connections."""

import asyncio
import json
import socket
from typing import Any

import uvicorn


def bound_socket() -> socket.socket:
    bound = socket.create_server(("127.0.0.1", 0))
    bound.listen()  # from here on connections wait in the queue, so the address can be told
    return bound


def url_of(bound: socket.socket) -> str:
    return f"http://127.0.0.1:{bound.getsockname()[1]}"


async def serve(app: Any, bound: socket.socket) -> None:
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=0))
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    print(json.dumps({"url": url_of(bound)}), flush=True)
    await serving
