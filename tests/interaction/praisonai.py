"""A client that speaks PraisonAI's dialect at `POST /a2a`, as those of PraisonAI do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from errands import A2AServer, Worker
from errands.testing import http_client, serve
from errands.wire.sse import ServerSentEvent, SSEParser


def say(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"role": "user", "parts": [{"text": text}], **fields}


class PraisonClient:
    """What a client of PraisonAI does, with as little as possible around it."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def call(self, method: str, params: Any = None, **headers: str) -> dict[str, Any]:
        body = {"jsonrpc": "2.0", "method": method, "id": "7", "params": params or {}}
        answer = await self.http.post("/a2a", json=body, headers=headers)
        assert answer.status_code == 200
        document: dict[str, Any] = answer.json()
        assert (document["jsonrpc"], document["id"]) == ("2.0", "7")
        return document

    async def result(self, method: str, params: Any = None, **headers: str) -> Any:
        return (await self.call(method, params, **headers))["result"]

    async def send(self, text: str = "hi", configuration: Any = None, **fields: Any) -> Any:
        return await self.result("message/send", {"message": say(text, **fields), "configuration": configuration})

    async def refused(self, method: str, params: Any = None) -> tuple[int, str]:
        error = (await self.call(method, params))["error"]
        assert set(error) == {"code", "message"}
        return error["code"], error["message"]

    async def stream(self, text: str = "hi", **fields: Any) -> list[ServerSentEvent]:
        params = {"message": say(text, **fields)}
        body = {"jsonrpc": "2.0", "method": "message/stream", "id": "7", "params": params}
        answer = await self.http.post("/a2a", json=body)
        assert answer.headers["content-type"].startswith("text/event-stream")
        return SSEParser().feed(answer.content)


@asynccontextmanager
async def praison(agent: Worker | A2AServer, **options: Any) -> AsyncIterator[PraisonClient]:
    server = agent if isinstance(agent, A2AServer) else serve(agent, **options)
    async with server, http_client(server) as http:
        yield PraisonClient(http)


def texts(message: dict[str, Any]) -> list[str]:
    return [part["text"] for part in message["parts"]]


async def verify(token: str) -> dict[str, Any] | None:
    """Lets Ada and Alan in."""
    return {"sub": token} if token in ("ada", "alan") else None
