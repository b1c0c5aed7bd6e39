"""Requests as they are on the wire, for the tests that look at bytes, headers and statuses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx

from errands import A2AServer
from errands.operations import OPERATIONS
from errands.testing import http_client
from errands.wire.status import STATUS

CARD = "/.well-known/agent-card.json"


@asynccontextmanager
async def http(server: A2AServer, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with server, http_client(server, **options) as client:
        yield client


def message(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": text}], **fields}


def rpc(method: str, params: Any, request_id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


async def call(client: httpx.AsyncClient, operation: str, params: dict[str, Any], binding: str, **headers: str) -> Any:
    """The operation over either binding: (reason or None, document)."""
    if binding == "jsonrpc":
        answer = await client.post("/", json=rpc(operation, params), headers=headers)
        document = answer.json()
        if "error" in document:
            return document["error"]["data"][0]["reason"], document["error"]
        return None, document["result"]
    row = OPERATIONS[operation]
    values = {name: str(params.get(camel)) for name, camel in (("id", "id"), ("task_id", "taskId"))}
    path = row.path.format(**values)
    if row.http_method == "POST":
        answer = await client.post(path, json=params, headers=headers)
    else:
        answer = await client.request(row.http_method, path, params=params, headers=headers)
    document = answer.json()
    if "error" in document:
        reason = document["error"]["details"][0]["reason"]
        assert answer.status_code == STATUS[reason].http
        assert document["error"]["status"] == STATUS[reason].grpc
        return reason, document["error"]
    return None, document
