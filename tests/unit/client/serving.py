"""A real server on loopback that tests start, stop and start again on the same port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()


@asynccontextmanager
async def serving(app: Any, port: int = 0, host: str = "127.0.0.1") -> AsyncIterator[str]:
    """The address of `app` while it is served; leaving stops it at once, open streams and all."""
    config = uvicorn.Config(app, host=host, port=port, log_level="critical", ws="none", timeout_graceful_shutdown=0)
    bound = config.bind_socket()
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[bound]))
    try:
        await server.is_up.wait()
        yield f"http://{host}:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        bound.close()
