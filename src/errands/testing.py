"""Tests of agents: the whole server and its client in one process, without a socket.

async with connect(Echo()) as client:
    assert (await client.send("hi")).text == "Echo: hi"
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.types import Message

from errands.client import A2AClient
from errands.client.http_requests import grpc_origin
from errands.errors import ConfigurationError
from errands.interop import ExecutorLike, is_executor_class
from errands.model.card_config import AgentCardConfig, CapabilitiesConfig
from errands.runtime.worker import Worker
from errands.server.app import A2AServer
from errands.server.http import A2AApp

BASE_URL = "http://agent.test"


class ManualClock:
    """A clock in milliseconds that only moves when `advance` is called."""

    def __init__(self, now: int = 1_800_000_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, *, seconds: float = 0, ms: int = 0) -> None:
        """Move the clock forward."""
        self.now += int(seconds * 1000) + ms


class InProcessTransport(httpx.AsyncBaseTransport):
    """Sends requests of httpx to an ASGI application. Unlike httpx's own transport, it streams responses."""

    def __init__(self, app: A2AApp) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request. Raises what the application raises."""
        body = await request.aread()
        # As httpx's own transport: the target may have a query that is too secret for the URL.
        path, _, query = request.extensions.get("target", request.url.raw_path).partition(b"?")
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": request.method,
            "scheme": request.url.scheme,
            "path": request.url.path,
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "client": ("127.0.0.1", 1),
            "server": (request.url.host, request.url.port or 80),
        }
        exchange = _InProcessExchange(body)
        exchange.task = asyncio.create_task(self._app(scope, exchange.receive, exchange.send))
        exchange.task.add_done_callback(exchange.finished)
        start = await exchange.sent.get()
        if isinstance(start, BaseException):
            raise start
        assert start is not None
        return httpx.Response(start["status"], headers=start["headers"], stream=exchange)


class _InProcessExchange(httpx.AsyncByteStream):
    """One request in the application, seen from the client."""

    def __init__(self, body: bytes) -> None:
        self._requests: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        self._gone = asyncio.Event()
        self.sent: asyncio.Queue[Message | BaseException | None] = asyncio.Queue()
        self.task: asyncio.Task[None] | None = None

    async def receive(self) -> Message:
        if self._requests:
            return self._requests.pop()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if not self._gone.is_set():
            await self.sent.put(message)

    def finished(self, task: asyncio.Task[None]) -> None:
        failed = not task.cancelled() and task.exception()
        self.sent.put_nowait(failed or None)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while isinstance(message := await self.sent.get(), dict):
            if message["body"]:
                yield message["body"]
            if not message.get("more_body", False):
                return
        if isinstance(message, BaseException):
            raise message

    async def aclose(self) -> None:
        self._gone.set()
        if self.task is not None:
            await asyncio.wait([self.task])


def http_client(server: A2AServer, **options: Any) -> httpx.AsyncClient:
    """Return a plain HTTP client for a server in this process."""
    return httpx.AsyncClient(transport=InProcessTransport(server.app), base_url=BASE_URL, **options)


@asynccontextmanager
async def connect(
    agent: Worker | ExecutorLike | A2AServer, *, client: dict[str, Any] | None = None, **server_options: Any
) -> AsyncIterator[A2AClient]:
    """Serve an agent and yield a connected client.

    The store is in memory unless `storage` is given. `client` are the arguments of `A2AClient`.
    """
    if isinstance(agent, A2AServer) and server_options:
        raise ConfigurationError(f"pass {', '.join(server_options)} to A2AServer: this server exists already")
    server = agent if isinstance(agent, A2AServer) else serve(agent, **server_options)
    async with server, http_client(server) as http:
        # gRPC has a real address, to which credentials for this server may go.
        origins = [grpc_origin(server.cards.grpc_address)] if server.cards.grpc_address else []
        options = {"httpx_client": http, "allow_origins": origins, **(client or {})}
        async with A2AClient(BASE_URL, **options) as connected:
            yield connected


def serve(agent: Worker | ExecutorLike, **options: Any) -> A2AServer:
    """Return a server for tests: in memory, with streaming and a default card, unless the options say otherwise."""
    if getattr(agent, "agent_card", None) is None:
        options.setdefault(
            "agent_card",
            AgentCardConfig(
                name="Test agent",
                description="An agent under test.",
                capabilities=CapabilitiesConfig(streaming=True),
            ),
        )
    options.setdefault("storage", "memory")
    options["executor" if is_executor_class(type(agent)) else "worker"] = agent
    return A2AServer(**options)
