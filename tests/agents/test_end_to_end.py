"""Everything real and over sockets: a process that serves a manifest over every dialect, a model behind HTTP, HTTP
tools, a session, an OpenAPI service, and an MCP server over stdio. Nothing is mocked."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Header
from pydantic import BaseModel

from errands import A2AClient
from errands.engines.urls import engine_from_url
from errands.model.log import Scope
from errands.policy.context_object import Context, replay
from errands.policy.run import stored_records
from tests.agents.openai_server import Call, OpenAIServer, Reply
from tests.live import live
from tests.unit.cli.processes import Served

pytestmark = pytest.mark.anyio

MCP_SERVER = Path(__file__).parent.parent / "unit" / "tools" / "mcp_server.py"

MANIFEST = """
kind: commonagents.info/v1beta2/agent
namespace: shop
name: clerk
description: A clerk.
prompt: You are a clerk of {context.agent.namespace}. It is {now}.
model: openai/test-model
mount: task
capabilities:
  stock: {bindings: {shop: "'north'"}, after: [{transform: "output.put('checked', true)"}]}
  basket: "*"
  orders: "*"
  sums: "*"
  notes: "*"
---
kind: commonagents.info/v1beta2/tool
namespace: shop
name: stock
description: What is in stock.
settings: {properties: {token: {type: string, format: password}}}
actions:
  - name: look
    description: Looks up an item.
    parameters: {properties: {item: {type: string}, shop: {type: string, require_binding: true}}}
    execute:
      stateless_http:
        method: GET
        url: "URL/stock/{parameters.shop}/{parameters.item}"
        headers: {Authorization: "Bearer {settings.token}"}
        response_path: $.found
---
kind: commonagents.info/v1beta2/tool
namespace: shop
name: basket
description: A basket.
actions:
  - name: put
    description: Puts something into the basket.
    parameters: {properties: {item: {type: string}}}
    execute:
      stateful_session:
        create: {method: POST, url: "URL/baskets"}
        extract: {id: $.id}
        execute: {method: POST, url: "URL/baskets/{session.id}", body: {item: "{parameters.item}"}}
        destroy: {method: DELETE, url: "URL/baskets/{session.id}"}
---
kind: commonagents.info/v1beta2/tool
namespace: shop
name: orders
description: Orders.
openapi: {url: "URL/openapi.json"}
---
kind: commonagents.info/v1beta2/tool
namespace: shop
name: sums
description: Sums.
mcp: {transport: stdio, command: "PYTHON", args: ["MCP"]}
actions:
  - name: add
    description: Adds two numbers.
    execute: {mcp: {tool_name: add}}
---
kind: commonagents.info/v1beta2/tool
namespace: shop
name: notes
description: Notes.
actions:
  - name: keep
    description: Keeps a note.
    parameters: {properties: {text: {type: string}}}
    execute: {cel: {expression: "mount.write('note.txt', input.text)"}}
  - name: read
    description: Reads the note.
    execute: {cel: {expression: "mount.read('note.txt')"}}
"""


class Order(BaseModel):
    item: str
    amount: int = 1


class Shop:
    """A service with a document of its own, as FastAPI writes it."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.baskets: dict[str, list[str]] = {}
        app = self.app = FastAPI(title="Shop", version="1")

        @app.get("/stock/{shop}/{item}", include_in_schema=False)
        def look(shop: str, item: str, authorization: str = Header()) -> dict[str, Any]:
            self.seen.append(f"{shop}/{item} {authorization}")
            return {"found": {"item": item, "left": 3}}

        @app.post("/baskets", include_in_schema=False)
        def create() -> dict[str, str]:
            self.baskets["b1"] = []
            return {"id": "b1"}

        @app.post("/baskets/{name}", include_in_schema=False)
        def put(name: str, order: Order) -> dict[str, int]:
            self.baskets[name].append(order.item)
            return {"size": len(self.baskets[name])}

        @app.delete("/baskets/{name}", include_in_schema=False)
        def destroy(name: str) -> None:
            del self.baskets[name]

        @app.post("/orders/{customer}", operation_id="place")
        def place(customer: str, order: Order, urgent: bool = False) -> dict[str, Any]:
            """Places an order."""
            return {"customer": customer, "item": order.item, "amount": order.amount, "urgent": urgent}


@pytest.fixture
def shop() -> Iterator[tuple[Shop, str]]:
    made = Shop()
    with live(made.app) as url:
        yield made, url


@pytest.fixture
async def model() -> AsyncIterator[OpenAIServer]:
    async with OpenAIServer() as server:
        yield server


def serve(folder: Path, url: str, model: OpenAIServer) -> Served:
    text = MANIFEST.replace("URL", url).replace("PYTHON", sys.executable).replace("MCP", str(MCP_SERVER))
    (folder / "agent.yaml").write_text(text, "utf-8")
    return Served(
        folder / "agent.yaml",
        cwd=folder,
        storage=f"sqlite:///{folder / 'tasks.db'}",
        model_base_url=model.url,
        model_api_key="sk-secret",
        outbound_allow="127.0.0.1",
        tool_stock__token="t-secret",
    )


def stored_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("tasks.db*"))


async def context_of(folder: Path, task_id: str) -> Context:
    async with engine_from_url(f"sqlite:///{folder / 'tasks.db'}") as engine:
        return replay(await stored_records(engine, task_id, Scope("", "", "clerk")))


async def test_an_agent_works_with_real_tools_and_a_real_model_endpoint(
    tmp_path: Path, shop: tuple[Shop, str], model: OpenAIServer
) -> None:
    service, url = shop
    model.replies += [
        Reply(
            calls=[
                Call(name="stock", arguments='{"item": "kettle"}'),
                Call(name="basket", arguments='{"item": "kettle"}'),
                Call(name="orders_place", arguments='{"customer": "ann", "item": "kettle", "urgent": true}'),
            ]
        ),
        Reply(
            calls=[
                Call(name="sums", arguments='{"a": 40, "b": 2}'),
                Call(name="basket", arguments='{"item": "cup"}'),
                Call(name="notes_keep", arguments='{"text": "kettle for ann"}'),
            ]
        ),
        Reply(text="All done."),
        Reply(calls=[Call(name="notes_read")]),
        Reply(text="It says so."),
    ]
    with await asyncio.to_thread(serve, tmp_path, url, model) as process:
        async with A2AClient(process.url) as client:
            pieces = [piece async for piece in client.stream_text("Order a kettle for ann")]
            assert "".join(pieces) == "All done."
            [task] = [task async for task in client.list_tasks()]
            second = await client.send("What does the note say?", task_id=task.task_id)
            assert (second.state, second.text) == ("input-required", "It says so.")
            assert service.baskets == {"b1": ["kettle", "cup"]}
            assert (await client.cancel(task.task_id)).state == "canceled"
            assert service.baskets == {}
    context = await context_of(tmp_path, task.task_id)
    outputs = {name: record.outputs for name, record in context.capabilities.items()}
    assert outputs["stock"] == [{"item": "kettle", "left": 3}]
    assert outputs["basket"] == [{"size": 1}, {"size": 2}]
    assert outputs["orders_place"] == [{"customer": "ann", "item": "kettle", "amount": 1, "urgent": True}]
    assert outputs["notes_read"] == ["kettle for ann"]
    assert len(context.invocations) == 7
    assert service.seen == ["north/kettle Bearer t-secret"]
    told = [message for message in model.requests[1].body["messages"] if message["role"] == "tool"]
    assert '"checked":true' in told[0]["content"].replace(" ", "")
    assert model.requests[0].headers["authorization"] == "Bearer sk-secret"
    assert not any(secret in stored_bytes(tmp_path) for secret in (b"t-secret", b"sk-secret"))


GREETINGS: dict[str, dict[str, Any]] = {
    "SendMessage": {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "Hi"}]},
    "message/send": {"messageId": "m2", "role": "user", "parts": [{"kind": "text", "text": "Hi"}]},
}


async def test_a_manifest_is_served_in_every_dialect(
    tmp_path: Path, shop: tuple[Shop, str], model: OpenAIServer
) -> None:
    with await asyncio.to_thread(serve, tmp_path, shop[1], model) as process:
        async with httpx.AsyncClient(timeout=30) as http:
            for method, message in GREETINGS.items():
                model.replies.append(Reply(text=f"Hello over {method}."))
                body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message}}
                headers = {"A2A-Version": "1.0"} if method == "SendMessage" else {}
                answer = (await http.post(process.url, json=body, headers=headers)).json()
                assert f"Hello over {method}." in str(answer["result"])
