"""Compressed answers are neither requested nor accepted."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from errands.agents.delegation import DelegationError
from errands.agents.tools.base import Bounds, BrokenToolError, ToolError
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
        self.url = ""
        self.app = Starlette(
            routes=[
                Route("/openapi.json", lambda request: self._packed(json.dumps(DOCUMENT))),
                Route("/text", self._text),
                Route("/mcp/{kind:path}", self._mcp, methods=["POST", "GET", "DELETE"]),
                Route("/agent/.well-known/agent-card.json", lambda request: self._packed(json.dumps(self.text))),
            ]
        )

    async def _text(self, request: Request) -> Response:
        self.asked.append(request.headers.get("accept-encoding", ""))
        return self._packed(self.text, "text/plain")

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
        return self._packed(f"data: {said}\n\n" if kind == "text/event-stream" else said, kind)


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
        rf"the answer of 127.0.0.1 cannot be read: it is compressed with {service.encoding}, which was not requested"
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
