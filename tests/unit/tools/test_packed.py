"""Compressed answers are neither requested nor accepted."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from errands.agents.delegation import DelegationError
from errands.agents.tools.base import Bounds, BrokenToolError, ToolError
from errands.model.base import encode
from errands.model.card_config import AgentCardConfig
from errands.outbound import Outbound
from errands.server.cards import build_card
from tests.live import live
from tests.unit.tools.mcp_endless_server import answer
from tests.unit.tools.support import Json, action, ask_remote_agent, calling, manifests, tool, toolbox

pytestmark = pytest.mark.anyio

BOUNDS = Bounds(timeout=30, max_bytes=10_000)
WAYS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}
DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "t", "version": "1"},
    "paths": {"/text": {"get": {"operationId": "go", "responses": {"200": {"description": "ok"}}}}},
}


class Packed:
    """Answers everything packed; what it says can be chosen."""

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding
        self.pack = WAYS[encoding]
        self.text = "as it was meant"
        self.asked: list[str] = []
        #: The only method of MCP whose answers are packed.
        self.packs: str | None = None
        #: The status of the answer to a message.
        self.status = 200
        self.url = ""
        self.app = Starlette(
            routes=[
                Route("/openapi.json", lambda request: self._packed(json.dumps(DOCUMENT))),
                Route("/text", self._text),
                Route("/mcp/{kind:path}", self._mcp, methods=["POST", "GET", "DELETE"]),
                Route("/agent/.well-known/agent-card.json", lambda request: self._packed(json.dumps(self.text))),
                Route("/packing-agent/.well-known/agent-card.json", self._card),
                Route("/packing-agent/", self._message, methods=["POST"]),
                Route("/answer", self._answer, methods=["POST", "GET", "HEAD", "DELETE"]),
            ]
        )

    async def _text(self, request: Request) -> Response:
        self.asked.append(request.headers.get("accept-encoding", ""))
        return self._packed(self.text, "text/plain")

    async def _card(self, request: Request) -> Response:
        described = AgentCardConfig(name="writer", description="Writes.")
        card = build_card(described, f"{self.url}/packing-agent", versions=["1.0"])
        return Response(encode(card), media_type="application/json")

    async def _message(self, request: Request) -> Response:
        packed = self._packed("{}")
        packed.status_code = self.status
        return packed

    async def _answer(self, request: Request) -> Response:
        """Answer with the status, and without content if that is asked for; the header always names the coding."""
        query = request.query_params
        headers = {"Content-Encoding": self.encoding, "Location": "/elsewhere", "Content-Type": "text/plain"}
        content = b"" if "empty" in query else self.pack(self.text.encode())
        if "chunked" in query:
            return StreamingResponse(iter([b"", content]), int(query["status"]), headers)
        return Response(content, int(query["status"]), headers)

    def _packed(self, text: str, kind: str = "application/json") -> Response:
        content = self.pack(text.encode())
        return Response(content, media_type=kind, headers={"Content-Encoding": self.encoding})

    async def _mcp(self, request: Request) -> Response:
        self.asked.append(request.headers.get("accept-encoding", ""))
        if request.method != "POST":
            return Response(status_code=405)
        asked = await request.json()
        if "id" not in asked:
            return Response(status_code=202)
        result: dict[str, Any] = answer(asked["method"])
        if asked["method"] == "tools/call":
            result = {"result": {"content": [{"type": "text", "text": self.text}]}}
        kind = request.path_params["kind"]
        said = json.dumps({"jsonrpc": "2.0", "id": asked["id"], **result})
        written = f"data: {said}\n\n" if kind == "text/event-stream" else said
        if self.packs not in (None, asked["method"]):
            return Response(written, media_type=kind)
        return self._packed(written, kind)


@pytest.fixture(params=WAYS)
def service(request: pytest.FixtureRequest) -> Iterator[Packed]:
    packed = Packed(request.param)
    with live(packed.app) as url:
        packed.url = url
        yield packed


@pytest.fixture(params=["http", "openapi", "mcp/application/json", "mcp/text/event-stream"])
def made(request: pytest.FixtureRequest, service: Packed) -> Json:
    if request.param == "http":
        return tool(actions=[action("go", "stateless_http", {"method": "GET", "url": f"{service.url}/text"})])
    if request.param == "openapi":
        return tool(openapi={"url": f"{service.url}/openapi.json"})
    return tool(mcp={"transport": "http", "url": f"{service.url}/{request.param}"})


async def called(folder: Path, made: Json) -> Any:
    async with calling(toolbox(manifests(folder, made), bounds=BOUNDS)) as caller:
        [name] = caller.functions
        return await caller.call(name)


async def test_a_compressed_answer_of_a_tool_is_refused(tmp_path: Path, service: Packed, made: Json) -> None:
    with pytest.raises((ToolError, BrokenToolError)):
        await called(tmp_path, made)
    assert set(service.asked) <= {"identity"}


async def test_what_a_manifest_asks_for_makes_no_difference(tmp_path: Path, service: Packed) -> None:
    request = {"method": "GET", "url": f"{service.url}/text", "headers": {"Accept-Encoding": "gzip"}}
    refused = (
        "127.0.0.1 carried out the request, but its answer cannot be read: "
        f"it is compressed with {service.encoding}, which was not requested"
    )
    with pytest.raises(ToolError, match=refused):
        await called(tmp_path, tool(actions=[action("go", "stateless_http", request)]))
    assert service.asked == ["identity"]


async def test_a_coding_that_means_nothing_is_passed_over(tmp_path: Path, service: Packed) -> None:
    service.encoding, service.pack = "utf-8", bytes
    request = {"method": "GET", "url": f"{service.url}/text"}
    assert await called(tmp_path, tool(actions=[action("go", "stateless_http", request)])) == "as it was meant"


async def test_a_compressed_answer_of_a_remote_agent_is_refused(service: Packed) -> None:
    with pytest.raises(DelegationError, match="writer could not be asked"):
        await ask_remote_agent(f"{service.url}/agent")


@pytest.mark.parametrize("bound", [None, 1_000])
@pytest.mark.parametrize(
    ("method", "query"),
    [
        ("HEAD", "status=200"),
        ("HEAD", "status=401"),
        ("GET", "status=204&empty"),
        ("DELETE", "status=204&empty"),
        ("GET", "status=304&empty"),
        ("POST", "status=200&empty"),
        ("POST", "status=202&empty&chunked"),
        ("GET", "status=302"),
        ("POST", "status=307&chunked"),
        ("GET", "status=401"),
        ("POST", "status=404&empty"),
        ("POST", "status=503&chunked"),
    ],
)
async def test_an_answer_without_content_that_is_used_has_its_status(
    service: Packed, method: str, query: str, bound: int | None
) -> None:
    async with Outbound(["127.0.0.1"]).client(max_bytes=bound) as client:
        for _ in range(2):
            answer = await client.request(method, f"{service.url}/answer?{query}")
            assert f"status={answer.status_code}" in query
            assert answer.content == b""
            assert answer.headers["Location"] == "/elsewhere"


@pytest.mark.parametrize("query", ["status=200", "status=201&chunked"])
async def test_compressed_content_of_a_success_is_refused(service: Packed, query: str) -> None:
    async with Outbound(["127.0.0.1"]).client() as client:
        for _ in range(2):
            with pytest.raises(httpx.DecodingError, match=f"compressed with {service.encoding}"):
                await client.post(f"{service.url}/answer?{query}")


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (200, r"127\.0\.0\.1 carried out the request, but its answer cannot be read: it is compressed"),
        (302, r"127\.0\.0\.1 answered 302 Found and points to /elsewhere"),
        (401, r"127\.0\.0\.1 answered 401 Unauthorized$"),
        (500, r"127\.0\.0\.1 answered 500 Internal Server Error$"),
    ],
)
async def test_a_tool_tells_what_came_of_its_request(tmp_path: Path, service: Packed, status: int, told: str) -> None:
    request = {"method": "POST", "url": f"{service.url}/answer?status={status}"}
    with pytest.raises(ToolError, match=told):
        await called(tmp_path, tool(actions=[action("go", "stateless_http", request)]))


async def test_a_tool_may_get_a_compressed_answer_without_content(tmp_path: Path, service: Packed) -> None:
    request = {"method": "POST", "url": f"{service.url}/answer?status=204&empty"}
    assert await called(tmp_path, tool(actions=[action("go", "stateless_http", request)])) is None


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_a_call_of_an_mcp_server_with_a_compressed_answer_was_carried_out(
    tmp_path: Path, service: Packed, kind: str
) -> None:
    service.packs = "tools/call"
    with pytest.raises(
        ToolError, match=r"crm carried out the call of .*, but its answer cannot be read: it is compressed"
    ):
        await called(tmp_path, tool(mcp={"transport": "http", "url": f"{service.url}/mcp/{kind}"}))


async def test_a_message_to_a_remote_agent_with_a_compressed_answer_was_sent(service: Packed) -> None:
    with pytest.raises(DelegationError, match=r"writer was asked, but gave no usable answer: .*it is compressed"):
        await ask_remote_agent(f"{service.url}/packing-agent")


async def test_the_status_of_a_remote_agent_is_told_if_its_error_is_compressed(service: Packed) -> None:
    service.status = 401
    with pytest.raises(DelegationError, match=r"writer could not be asked: .*HTTP 401"):
        await ask_remote_agent(f"{service.url}/packing-agent")
