"""A webhook receiver behind a real socket, which can fail, hang, die and come back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from starlette.types import Receive, Scope, Send

from tests.ports import free_port
from tests.unit.client.serving import serving


class Received(NamedTuple):
    path: str
    headers: dict[str, str]
    body: Any
    raw: bytes

    @property
    def state(self) -> str:
        """The state that a notification of 1.0 tells, "" for an artifact."""
        told = self.body.get("task") or self.body.get("statusUpdate") or {"status": {"state": ""}}
        return str(told["status"]["state"]).removeprefix("TASK_STATE_").lower()


class Receiver:
    """Answers with `status`, or as `answer` says; `received` has what came, refused or not."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.status = 200
        self.headers: list[tuple[bytes, bytes]] = []
        self.answer: Callable[[Received], Awaitable[int]] | None = None
        self.came = asyncio.Event()
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def states(self) -> list[str]:
        return [one.state for one in self.received]

    def ids(self) -> list[str]:
        return [one.headers["webhook-id"] for one in self.received]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        one = Received(scope["path"], headers, json.loads(body), body)
        self.received.append(one)
        self.came.set()
        status = self.status if self.answer is None else await self.answer(one)
        await send({"type": "http.response.start", "status": status, "headers": self.headers})
        await send({"type": "http.response.body", "body": b"ok"})

    @asynccontextmanager
    async def up(self) -> AsyncIterator[Receiver]:
        """Serve at the same address as before."""
        async with serving(self, self.port):
            yield self
