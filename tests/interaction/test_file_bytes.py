"""Files in A2A 0.3 over HTTP+JSON and gRPC: written as the SDK of the peer reads them."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import httpx
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2, a2a_v0_3_pb2_grpc

from errands import A2AClient, AgentCardConfig, Part, TaskContext, Worker
from errands.model.base import encode
from errands.model.card import AgentCapabilities, AgentCard, AgentInterface
from errands.testing import BASE_URL, http_client, serve
from errands.wire.v0_3_card import to_v0_3

pytestmark = pytest.mark.anyio

#: Both of them, and one that is base64 text itself.
FILES = [b"\xff\x00", b"data", b"plain text"]
JAVASCRIPT, PYTHON = "node", "python-httpx/0.28.1"
pb: Any = a2a_v0_3_pb2


class Returns(Worker):
    """Gives the files back that it gets."""

    async def handle(self, ctx: TaskContext) -> None:
        for number, file in enumerate(ctx.files):
            await ctx.emit_artifact(artifact_id=f"{number}", file_bytes=file.content, media_type=file.media_type)
        await ctx.complete()


CARD = AgentCardConfig(name="Returns", description="Returns files.", input_modes=["*/*"])


def wired(file: bytes, software: str) -> bytes:
    """Return what the SDK puts into the field of the proto."""
    return file if software in (JAVASCRIPT, "grpc-node-js/1.14.4") else base64.b64encode(file)


@pytest.mark.parametrize("software", [JAVASCRIPT, PYTHON])
async def test_a_client_over_http_json_gets_its_files_as_it_wrote_them(software: str) -> None:
    server = serve(Returns(), agent_card=CARD)
    async with server, http_client(server, headers={"User-Agent": software}) as client:
        parts = [{"file": {"fileWithBytes": base64.b64encode(wired(file, software)).decode()}} for file in FILES]
        said = {"messageId": "m", "role": "ROLE_USER", "content": parts}
        body = {"message": said, "configuration": {"blocking": True}}
        task = (await client.post("/v1/message:send", json=body)).json()["task"]
        for seen in (task, (await client.get(f"/v1/tasks/{task['id']}")).json()):
            assert [artifact["parts"] for artifact in seen["artifacts"]] == [[part] for part in parts]
            assert seen["history"][0]["content"] == parts
        modern = (await client.get(f"/tasks/{task['id']}")).json()
        raw = [base64.b64decode(artifact["parts"][0]["raw"]) for artifact in modern["artifacts"]]
        assert raw == FILES


@pytest.mark.parametrize("software", ["grpc-node-js/1.14.4", "grpc-python-asyncio/1.85.1"])
async def test_a_client_over_grpc_gets_its_files_as_it_wrote_them(software: str) -> None:
    server = serve(Returns(), agent_card=CARD, grpc_port=0)
    options = [("grpc.primary_user_agent", software)]
    async with server, grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}", options) as channel:
        stub: Any = a2a_v0_3_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]
        parts = [pb.Part(file=pb.FilePart(file_with_bytes=wired(file, software))) for file in FILES]
        said = pb.Message(message_id="m", role=pb.ROLE_USER, content=parts)
        wanted = pb.SendMessageConfiguration(blocking=True)
        task = (await stub.SendMessage(pb.SendMessageRequest(request=said, configuration=wanted))).task
        for seen in (task, await stub.GetTask(pb.GetTaskRequest(name=f"tasks/{task.id}"))):
            assert [artifact.parts[0] for artifact in seen.artifacts] == parts
        async with http_client(server) as http:
            modern = (await http.get(f"/tasks/{task.id}")).json()
        raw = [base64.b64decode(artifact["parts"][0]["raw"]) for artifact in modern["artifacts"]]
        assert raw == FILES


class OldAgent:
    """An agent of 0.3 over HTTP+JSON that gives every message back, on this software."""

    def __init__(self, software: str) -> None:
        self._software = software
        self.files: list[str] = []

    async def answer(self, request: httpx.Request) -> httpx.Response:
        headers = {"X-Powered-By": self._software} if self._software else {}
        if request.method == "GET":
            place = AgentInterface(url=BASE_URL, protocol_binding="HTTP+JSON", protocol_version="0.3")
            card = AgentCard(
                name="Old",
                description="",
                version="1",
                supported_interfaces=[place],
                capabilities=AgentCapabilities(),
                default_input_modes=[],
                default_output_modes=[],
                skills=[],
            )
            return httpx.Response(200, content=to_v0_3(card), headers=headers)
        message = httpx.Response(200, content=request.content).json()["message"]
        self.files = [part["file"]["fileWithBytes"] for part in message["content"]]
        return httpx.Response(200, content=encode({"message": {**message, "role": "ROLE_AGENT"}}), headers=headers)


@asynccontextmanager
async def client_of(agent: OldAgent) -> AsyncIterator[A2AClient]:
    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(agent.answer)) as http,
        A2AClient(BASE_URL, httpx_client=http) as client,
    ):
        yield client


@pytest.mark.parametrize(("software", "times"), [("Express", 1), ("", 2)])
async def test_an_agent_is_sent_files_as_its_sdk_writes_them(software: str, times: int) -> None:
    agent = OldAgent(software)
    async with client_of(agent) as client:
        answer = await client.send([Part(raw=file) for file in FILES])
    sent = [file.encode() for file in agent.files]
    for _ in range(times):
        sent = [base64.b64decode(file) for file in sent]
    assert sent == FILES
    assert answer.raw_message is not None
    assert [part.raw for part in answer.raw_message.parts] == FILES
