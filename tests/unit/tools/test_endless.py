"""Services that never stop sending: reading ends, the model is told, and the task goes on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from errands.agents.delegation import DelegationError
from errands.agents.tools.base import Bounds, BrokenToolError, ToolError
from errands.outbound import AnswerTooLargeError, Meter
from tests.live import live
from tests.unit.tools import mcp_endless_server
from tests.unit.tools.mcp_endless_server import answer
from tests.unit.tools.support import Json, action, ask_remote_agent, calling, manifests, tool, toolbox

pytestmark = pytest.mark.anyio

BOUNDS = Bounds(timeout=30, max_bytes=10_000)
#: What a service may have sent before it notices that nobody reads any more.
MOST_SENT = 30_000_000

OPERATION = {"operationId": "go", "responses": {"200": {"description": "ok"}}}
DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "t", "version": "1"},
    "paths": {"/text/plain/200": {"get": OPERATION}},
}


class Endless:
    """Answers that have no end, and how much was sent of them."""

    def __init__(self) -> None:
        self.sent = 0
        self.app = Starlette(
            routes=[
                Route("/openapi.json", lambda request: JSONResponse(DOCUMENT)),
                Route("/mcp/{kind:path}", self._mcp, methods=["POST", "GET", "DELETE"]),
                Route("/agent/.well-known/agent-card.json", self._endless_json),
                Route("/{kind:path}/{status:int}", self._plain),
            ]
        )
        self.url = ""

    async def _pieces(self, first: bytes = b"") -> AsyncIterator[bytes]:
        yield first
        while True:
            self.sent += 65_536
            yield b"x" * 65_536
            # Otherwise the server would never hear that nobody listens any more.
            await asyncio.sleep(0)

    async def _plain(self, request: Request) -> Response:
        kind, status = request.path_params["kind"], request.path_params["status"]
        return StreamingResponse(self._pieces(), status, media_type=kind)

    async def _endless_json(self, request: Request) -> Response:
        return StreamingResponse(self._pieces(b'{"name": "'), media_type="application/json")

    async def _mcp(self, request: Request) -> Response:
        if request.method != "POST":
            return Response(status_code=405)
        asked = await request.json()
        if "id" not in asked:
            return Response(status_code=202)
        kind = request.path_params["kind"]
        if asked["method"] == "tools/call":
            begin = b"data: " if kind == "text/event-stream" else b'{"jsonrpc": "2.0", "result": "'
            return StreamingResponse(self._pieces(begin), media_type=kind)
        return JSONResponse({"jsonrpc": "2.0", "id": asked["id"], **answer(asked["method"])})


@pytest.fixture
def endless() -> Iterator[Endless]:
    service = Endless()
    with live(service.app) as url:
        service.url = url
        yield service
    assert 0 < service.sent < MOST_SENT


async def told(folder: Path, made: Json) -> str:
    """What the model is told of a call; the tool can be called again."""
    async with calling(toolbox(manifests(folder, made), bounds=BOUNDS)) as caller:
        [name] = caller.functions
        for _ in range(2):
            with pytest.raises(ToolError) as raised:
                await caller.call(name)
    return str(raised.value)


@pytest.mark.parametrize("kind", ["text/plain", "application/json", "text/event-stream"])
async def test_an_endless_answer_to_a_request_is_not_read_to_its_end(
    tmp_path: Path, endless: Endless, kind: str
) -> None:
    request = {"method": "GET", "url": f"{endless.url}/{kind}/200"}
    said = await told(tmp_path, tool(actions=[action("go", "stateless_http", request)]))
    assert said == "the answer of 127.0.0.1 has more than 10,000 bytes"


async def test_an_endless_error_is_told_with_its_beginning(tmp_path: Path, endless: Endless) -> None:
    request = {"method": "GET", "url": f"{endless.url}/text/plain/500"}
    said = await told(tmp_path, tool(actions=[action("go", "stateless_http", request)]))
    assert said.startswith("127.0.0.1 answered 500 Internal Server Error: xxxxx")
    assert len(said) < 600


async def test_an_endless_redirect_is_told_as_a_redirect(tmp_path: Path, endless: Endless) -> None:
    request = {"method": "GET", "url": f"{endless.url}/text/plain/302"}
    said = await told(tmp_path, tool(actions=[action("go", "stateless_http", request)]))
    assert said == "127.0.0.1 answered 302 Found and points to nowhere; redirects are not followed"


async def test_an_endless_answer_of_an_operation_is_not_read_to_its_end(tmp_path: Path, endless: Endless) -> None:
    said = await told(tmp_path, tool(openapi={"url": f"{endless.url}/openapi.json"}))
    assert said == "the answer of 127.0.0.1 has more than 10,000 bytes"


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_an_endless_answer_of_an_mcp_server_ends_the_connection(
    tmp_path: Path, endless: Endless, kind: str
) -> None:
    said = await told(tmp_path, tool(mcp={"transport": "http", "url": f"{endless.url}/mcp/{kind}"}))
    # The official package has a bound of its own for the lines of a stream.
    ended = "the MCP server of crm ended before it answered"
    assert said in (f"go answered with more than {BOUNDS.most_read:,} bytes", ended)


async def test_an_endless_document_breaks_the_tool(tmp_path: Path, endless: Endless) -> None:
    made = tool(openapi={"url": f"{endless.url}/application/json/200"})
    with pytest.raises(BrokenToolError, match="has more than 10,000 bytes"):
        await toolbox(manifests(tmp_path, made), bounds=BOUNDS).functions()


@pytest.mark.usefixtures("short_grace")
async def test_an_endless_line_of_a_process_ends_it(tmp_path: Path) -> None:
    mcp = {"transport": "stdio", "command": sys.executable, "args": [mcp_endless_server.__file__]}
    said = await told(tmp_path, tool(mcp=mcp))
    assert said == f"go answered with more than {BOUNDS.most_read:,} bytes"


# Agents


async def test_a_remote_agent_that_sends_without_end_is_an_error_of_the_call(endless: Endless) -> None:
    with pytest.raises(DelegationError, match="writer could not be asked: the answer has more than 100,000 bytes"):
        await ask_remote_agent(f"{endless.url}/agent")


# Counting


def test_a_stream_may_have_any_number_of_events_of_the_greatest_size() -> None:
    for end in (b"\n\n", b"\r\n\r\n", b"\r\r"):
        meter = Meter(100, "text/event-stream; charset=utf-8")
        for _ in range(50):
            for piece in (b"data: ", b"x" * 80, end[:1], end[1:]):
                meter.count(piece)
        with pytest.raises(AnswerTooLargeError, match="one event of the answer has more than 100 bytes"):
            meter.count(b"x" * 101)


def test_a_blank_line_is_nothing_special_in_anything_else() -> None:
    meter = Meter(100, "application/json")
    meter.count(b"\n\n" * 50)
    with pytest.raises(AnswerTooLargeError, match="the answer has more than 100 bytes"):
        meter.count(b"\n\n")
