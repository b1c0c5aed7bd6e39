"""MCP tools, against a real server over stdio, streamable HTTP and SSE."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from errands.agents.manifests.functions import Arguments
from errands.agents.tools.base import Bounds, BrokenToolError, ToolError
from errands.agents.tools.mcp import McpBackend, McpServer
from errands.errors import ConfigurationError
from errands.outbound import Outbound
from tests.clock import let_pass
from tests.live import live
from tests.ports import silent_port
from tests.unheld import unheld
from tests.unit.tools.mcp_server import server
from tests.unit.tools.support import Caller, Json, Service, action, calling, manifests, tool, toolbox

pytestmark = pytest.mark.anyio

PROGRAM = str(Path(__file__).with_name("mcp_server.py"))
BOUNDS = Bounds(timeout=20, start=40)
STDIO: Json = {"transport": "stdio", "command": sys.executable, "args": [PROGRAM]}


@pytest.fixture(scope="module")
def http() -> Iterator[Json]:
    with live(server.streamable_http_app(), lifespan="on") as url:
        yield {"transport": "http", "url": f"{url}/mcp"}


@pytest.fixture(scope="module")
def sse() -> Iterator[Json]:
    with live(server.sse_app(), lifespan="on") as url:
        yield {"transport": "sse", "url": f"{url}/sse"}


@pytest.fixture(scope="module", params=["stdio", "http", "sse"])
async def shop(
    request: pytest.FixtureRequest, anyio_backend: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Caller]:
    """A turn that uses the server, which is reached in each way in turn."""
    mcp = STDIO if request.param == "stdio" else request.getfixturevalue(request.param)
    async with using(tmp_path_factory.mktemp("shop"), mcp) as caller:
        yield caller


def using(
    folder: Path, mcp: Json, *, bounds: Bounds = BOUNDS, outbound: Outbound | None = None, **fields: Any
) -> AbstractAsyncContextManager[Caller]:
    """A turn of an agent that has everything the server has."""
    settings = {"shop": fields.pop("given", {})}
    found = manifests(folder, tool("shop", mcp=mcp, **fields))
    return calling(toolbox(found, settings=settings, bounds=bounds, outbound=outbound))


@asynccontextmanager
async def knowing(folder: Path, mcp: Json, *tools: str, **fields: Any) -> AsyncIterator[Caller]:
    """A turn of an agent whose manifest names these tools of the server, so that nothing has to be found out."""
    settings = {"shop": fields.pop("given", {})}
    named = [action(name, "mcp", {"tool_name": name}) for name in ("add", "text", *tools)]
    found = manifests(folder, tool("shop", mcp=mcp, actions=named, **fields))
    async with toolbox(found, settings=settings, bounds=BOUNDS).turn(task_id="T-1") as turn:
        yield Caller(turn, found.functions(found.agents[0]))


def with_args(*args: str, **fields: Any) -> Json:
    return {**STDIO, "args": [PROGRAM, *args], **fields}


# What a server offers


async def test_the_tools_of_a_server_are_functions(shop: Caller) -> None:
    offered = shop.functions
    assert "shop_out_of_stock" in offered
    assert offered["shop_add"].description == "Adds two numbers."
    assert offered["shop_add"].parameters == {
        "type": "object",
        "properties": {
            "a": {"title": "A", "type": "integer"},
            "b": {"title": "B", "type": "integer", "default": 1},
        },
        "required": ["a"],
        "additionalProperties": False,
    }
    item = offered["shop_order"].parameters["properties"]["item"]
    assert item["description"] == "What is ordered."
    assert item["properties"]["name"] == {"title": "Name", "type": "string"}
    assert item["properties"]["extras"]["items"] == {}


async def test_a_tool_of_a_server_is_called(shop: Caller) -> None:
    assert await shop.call("shop_add", {"a": 2, "b": 3}) == {"result": 5}
    assert await shop.call("shop_order", {"item": {"name": "cup"}, "note": None}) == {
        "name": "cup",
        "amount": 1,
        "note": None,
    }


async def test_an_action_can_be_one_tool_of_a_server(http: Json, tmp_path: Path) -> None:
    sum_up = action("sum", "mcp", {**http, "tool_name": "add"}, a={"type": "integer", "description": "The first."})
    async with calling(toolbox(manifests(tmp_path, tool("shop", actions=[sum_up])), bounds=BOUNDS)) as caller:
        assert list(caller.functions) == ["shop"]
        assert caller.functions["shop"].description == "Does sum."
        assert caller.functions["shop"].parameters["properties"]["a"]["description"] == "The first."
        assert await caller.call("shop", {"a": 2, "b": 2}) == {"result": 4}


async def test_a_tool_that_the_server_does_not_have_is_named(http: Json, tmp_path: Path) -> None:
    missing = action("do", "mcp", {**http, "tool_name": "subtract"})
    box = toolbox(manifests(tmp_path, tool("shop", actions=[missing])), bounds=BOUNDS)
    with pytest.raises(BrokenToolError, match="shop has no tool_name subtract; it has add, order"):
        await box.functions()


# Results


async def test_results_are_plain_json(shop: Caller) -> None:
    assert await shop.call("shop_text") == '{"a": 1}'
    assert await shop.call("shop_nothing") is None
    look, picture = await shop.call("shop_several")
    assert look == "look"
    assert picture == {"type": "image", "mimeType": "image/png", "data": "iVBORw=="}


async def test_an_error_of_the_tool_is_told_to_the_model(shop: Caller) -> None:
    with pytest.raises(ToolError, match=r"There is none left\."):
        await shop.call("shop_out_of_stock")
    with pytest.raises(ToolError, match="a"):
        await shop.call("shop_add", {"a": "no number"})
    assert await shop.call("shop_add", {"a": 1}) == {"result": 2}


async def test_a_result_has_a_greatest_size(http: Json, tmp_path: Path) -> None:
    async with using(tmp_path, http, bounds=Bounds(timeout=20, max_bytes=1000)) as caller:
        with pytest.raises(ToolError, match="big answered with more than 1,000 bytes"):
            await caller.call("shop_big", {"size": 2000})


async def test_a_tool_that_does_not_answer_in_time_is_an_error_that_can_be_told(shop: Caller) -> None:
    assert await shop.call("shop_add", {"a": 1}) == {"result": 2}
    backend = shop.turn._backends["shop", "mcp"]
    backend.equipment = msgspec.structs.replace(backend.equipment, bounds=Bounds(timeout=0.2))
    with pytest.raises(ToolError, match=r"hang did not answer within 0.2 s"):
        await shop.call("shop_hang")
    backend.equipment = msgspec.structs.replace(backend.equipment, bounds=BOUNDS)
    assert await shop.call("shop_add", {"a": 1}) == {"result": 2}


# Servers of other kinds


@pytest.fixture(scope="module")
async def plain(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Caller]:
    """A server of an old version that checks nothing."""
    mcp = {**STDIO, "args": [str(Path(PROGRAM).with_name("mcp_plain_server.py"))]}
    async with using(tmp_path_factory.mktemp("plain"), mcp) as caller:
        yield caller


async def test_what_need_not_be_given_is_null_here_and_absent_there(plain: Caller) -> None:
    function = plain.functions["shop_echo"]
    assert function.parameters["required"] == ["text", "must"]
    assert function.parameters["properties"]["lines"] == {"type": ["integer", "null"], "default": None}
    given = await Arguments(function).resolve({"text": "a", "must": None, "nullable": None}, {})
    assert given == {"text": "a", "must": None, "nullable": None, "lines": None, "mode": None}
    sent = json.loads(await plain.call("shop_echo", given))
    assert sent == {"text": "a", "must": None, "nullable": None}


async def test_schemas_that_are_none_take_everything(plain: Caller) -> None:
    function = plain.functions["shop_odd_name_here"]
    assert function.description == "Odd"
    assert set(function.declared) == {"kind", "pattern", "anything", "gone"}
    resolved = await Arguments(function).resolve({"kind": 1, "pattern": "2", "anything": 3, "gone": 4}, {})
    assert resolved["kind"] == 1


async def test_an_answer_that_breaks_the_protocol_is_an_error_that_can_be_told(plain: Caller) -> None:
    with pytest.raises(ToolError, match=r"odd.name/here: the MCP server of shop gave an invalid answer"):
        await plain.call("shop_odd_name_here")


async def test_a_result_is_checked_against_the_schema_of_the_tool_in_linear_time(plain: Caller) -> None:
    assert await plain.call("shop_code", {"code": "abc@example"}) == {"code": "abc@example"}
    with unheld(), pytest.raises(ToolError, match="code: the MCP server of shop gave an invalid answer"):
        await plain.call("shop_code", {"code": "a" * 24})


# Processes


async def test_a_turn_has_one_process_and_ends_it(tmp_path: Path) -> None:
    async with knowing(tmp_path, STDIO, "process") as caller:
        found = await asyncio.gather(*(caller.call("shop_process") for _ in range(5)))
        [pid] = {one["pid"] for one in found}
        os.kill(pid, 0)
    assert not is_alive(pid)


async def test_a_process_gets_what_the_manifest_says_and_nothing_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ERRANDS_SECRET", "x")
    mcp = with_args("", "{settings.mode}", "for {agent.name}", env={"TOKEN": "{settings.token}", "MODE": "fast"})
    declared = {"properties": {"mode": {"type": "string"}, "token": {"type": "string", "format": "password"}}}
    async with knowing(
        tmp_path, mcp, "process", "token", settings=declared, given={"mode": "a b; c", "token": "top-secret"}
    ) as caller:
        found = await caller.call("shop_process")
        assert found["arguments"] == ["", "a b; c", "for support"]
        own = {"TOKEN", "MODE", "LC_CTYPE"}
        assert set(found["environment"]) - own <= {"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"}
        assert own - {"LC_CTYPE"} <= set(found["environment"])
        assert "top-secret" not in str(await caller.call("shop_token"))


async def test_arguments_of_a_process_may_depend_on_the_call(tmp_path: Path) -> None:
    who = action("who", "mcp", {**with_args("", "{parameters.who}"), "tool_name": "process"}, who={"type": "string"})
    found = manifests(tmp_path, tool("shop", actions=[who]))
    async with toolbox(found, bounds=BOUNDS).turn(task_id="T-1") as turn:
        caller = Caller(turn, found.functions(found.agents[0]))
        first, again, other = [await caller.call("shop", {"who": name}) for name in ("ann", "ann", "bob")]
        assert [one["arguments"][1] for one in (first, again, other)] == ["ann", "ann", "bob"]
        assert first["pid"] == again["pid"] != other["pid"]
    assert not is_alive(first["pid"])
    assert not is_alive(other["pid"])


async def test_what_a_server_writes_beside_its_answers_goes_into_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "errands")
    mcp = with_args("talkative", env={"TOKEN": "top-secret"})
    async with knowing(tmp_path, mcp) as caller:
        assert await caller.call("shop_add", {"a": 1}) == {"result": 2}
    lines = [record.getMessage() for record in caplog.records if record.name == "errands.agents.tools.mcp_connection"]
    assert "shop:  [31mready [0m with ***" in lines


async def test_a_server_that_ends_in_the_middle_is_started_again_at_the_next_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "errands")
    async with knowing(tmp_path, STDIO, "process", "crash") as caller:
        before = await caller.call("shop_process")
        with pytest.raises(ToolError, match="the MCP server of shop ended before it answered"):
            await caller.call("shop_crash", {"message": "inner secret"})
        assert (await caller.call("shop_process"))["pid"] != before["pid"]
    assert "shop: inner secret" in caplog.text


@pytest.mark.usefixtures("short_grace")
async def test_a_server_that_does_not_want_to_end_is_killed(tmp_path: Path) -> None:
    async with knowing(tmp_path, with_args("stubborn"), "process", "spawn") as caller:
        pid = (await caller.call("shop_process"))["pid"]
        child = (await caller.call("shop_spawn"))["result"]
    assert not is_alive(pid)
    while is_alive(child):  # it is not ours to wait for
        await asyncio.sleep(0.01)


@pytest.mark.usefixtures("short_grace")
async def test_a_server_that_never_says_it_is_ready_is_broken(tmp_path: Path) -> None:
    opening, pid = await waiting_for_silence(tmp_path)
    let_pass(seconds=BOUNDS.start)
    with pytest.raises(BrokenToolError, match="the MCP server of shop did not answer within 40 s"):
        await opening
    assert not is_alive(pid)


@pytest.mark.usefixtures("short_grace")
async def test_whoever_stops_waiting_for_a_server_leaves_no_process(tmp_path: Path) -> None:
    opening, pid = await waiting_for_silence(tmp_path)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not is_alive(pid)


async def waiting_for_silence(folder: Path) -> tuple[asyncio.Task[None], int]:
    """Somebody who waits for a server that never says that it is ready, and the server's process."""
    file = folder / "pid"
    box = toolbox(manifests(folder, tool("shop", mcp=with_args("silent", str(file)))), bounds=BOUNDS)
    function = next(iter(box._declared))

    async def discover() -> None:
        async with box.turn(task_id="T-1") as turn:
            await turn.discover(function)

    waiting = asyncio.create_task(discover())
    while not (file.exists() and file.read_text()):
        await asyncio.sleep(0.01)
    return waiting, int(file.read_text())


@pytest.mark.parametrize(
    ("mcp", "problem"),
    [
        ({**STDIO, "command": "/nowhere/at-all"}, "cannot be started: /nowhere/at-all: No such file or directory"),
        ({**STDIO, "command": PROGRAM}, "cannot be started: .*mcp_server.py: Permission denied"),
    ],
)
async def test_a_server_that_cannot_be_started_is_broken(mcp: Json, problem: str, tmp_path: Path) -> None:
    with pytest.raises(BrokenToolError, match=f"the MCP server of shop {problem}"):
        async with using(tmp_path, mcp):
            pass


async def test_the_last_words_of_a_server_that_did_not_start_are_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "errands")
    with pytest.raises(BrokenToolError, match="see the log"):
        async with using(tmp_path, with_args("gone")):
            pass
    assert "shop: there is no configuration" in caplog.text


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # One that has ended and that nobody has waited for is dead, too.
    status = Path(f"/proc/{pid}/status")
    return not status.exists() or "State:\tZ" not in status.read_text()


# Addresses


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_an_address_where_nobody_answers_is_broken(transport: str, tmp_path: Path) -> None:
    with silent_port() as port:
        mcp = {"transport": transport, "url": f"http://127.0.0.1:{port}/mcp"}
        with pytest.raises(BrokenToolError, match="the MCP server of shop does not answer at its address"):
            async with using(tmp_path, mcp):
                pass


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_what_is_no_mcp_server_is_broken(transport: str, tmp_path: Path, service: Service) -> None:
    mcp = {"transport": transport, "url": f"{service.url}/mcp"}
    with pytest.raises(BrokenToolError, match="the MCP server of shop does not answer at its address"):
        async with using(tmp_path, mcp, bounds=Bounds(timeout=5, start=20)):
            pass


@pytest.mark.parametrize("way", ["http", "sse"])
async def test_the_outbound_guard_says_where_a_server_may_be(
    way: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(BrokenToolError, match=r"the MCP server of shop cannot be reached: .*127\.0\.0\.1"):
        async with using(tmp_path, request.getfixturevalue(way), outbound=Outbound()):
            pass


class Guarded:
    """Lets requests pass that have the right token."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (b"authorization", b"Bearer top-secret") not in scope["headers"]:
            await PlainTextResponse("who are you?", 401)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


@pytest.mark.parametrize(
    ("transport", "app", "path"), [("http", server.streamable_http_app, "/mcp"), ("sse", server.sse_app, "/sse")]
)
async def test_headers_are_sent_with_every_request(transport: str, app: Any, path: str, tmp_path: Path) -> None:
    declared = {"properties": {"token": {"type": "string", "format": "password"}}}
    with live(Guarded(app()), lifespan="on") as url:
        mcp = {"transport": transport, "url": url + path, "headers": {"Authorization": "Bearer {settings.token}"}}
        async with using(tmp_path, mcp, settings=declared, given={"token": "top-secret"}) as caller:
            assert await caller.call("shop_add", {"a": 1}) == {"result": 2}
        with pytest.raises(BrokenToolError, match="the MCP server of shop does not answer at its address") as caught:
            async with using(tmp_path, mcp, settings=declared, given={"token": "another-secret"}):
                pass
        assert "another-secret" not in str(caught.value)


# The rest


def test_without_the_extra_it_is_named_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    box = toolbox(manifests(tmp_path, tool("shop", mcp=STDIO)))
    box.check()
    monkeypatch.delitem(sys.modules, "errands.agents.tools.mcp_connection", raising=False)
    monkeypatch.delattr("errands.agents.tools.mcp_connection", raising=False)
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'errands\[mcp\]'"):
        box.check()


async def test_a_turn_does_not_start_any_number_of_processes(tmp_path: Path) -> None:
    who = action("who", "mcp", {**with_args("", "{parameters.who}"), "tool_name": "process"}, who={"type": "string"})
    found = manifests(tmp_path, tool("shop", actions=[who]))
    async with toolbox(found, bounds=BOUNDS).turn(task_id="T-1") as turn:
        caller = Caller(turn, found.functions(found.agents[0]))
        backend = turn._opened("shop", "mcp")
        assert isinstance(backend, McpBackend)
        backend._connections = {McpServer(tool=str(n), transport="stdio"): None for n in range(8)}  # type: ignore[misc]  # never used
        with pytest.raises(ToolError, match="shop was called in more than 8 different ways in one turn"):
            await caller.call("shop", {"who": "ann"})
        backend._connections.clear()
