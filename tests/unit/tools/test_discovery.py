"""What servers bring: found out once, as functions with names, bindings and an `include` of their own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from errands.agents.manifests import schemas
from errands.agents.tools.base import Backend, BrokenToolError, Discovered, Invocation, Once, optional
from errands.agents.tools.toolbox import BACKENDS, unapplied
from tests.unit.tools.support import Json, action, calling, manifests, tool, toolbox

pytestmark = pytest.mark.anyio

ECHO = {"expression": "input"}


class Server(Backend):
    """Offers what it is told to."""

    offers: list[Discovered] = []
    asked: list[str | None] = []

    async def discover(self, action: str | None) -> list[Discovered]:
        self.asked.append(action)
        return self.offers

    async def invoke(self, invocation: Invocation) -> Any:
        return [invocation.action, invocation.operation]


def offering(monkeypatch: pytest.MonkeyPatch, *names: str, **parameters: Json) -> None:
    offers = [Discovered(name=name, description=f"Does {name}.", parameters=parameters) for name in names]
    monkeypatch.setattr(Server, "offers", offers)
    monkeypatch.setattr(Server, "asked", [])
    monkeypatch.setitem(BACKENDS, "mcp", Server)


MCP = {"transport": "http", "url": "https://example.com/mcp"}


async def test_those_who_ask_at_the_same_time_share_one_discovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offering(monkeypatch, "find", "send")
    box = toolbox(manifests(tmp_path, tool(mcp=MCP)))
    first, second = await asyncio.gather(box.functions(), box.functions())
    assert [function.name for function in first] == ["crm_find", "crm_send"]
    assert first == second == await box.functions()
    assert Server.asked == [None]


async def test_what_was_discovered_is_called_by_the_name_it_has_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offering(monkeypatch, "find-it")
    async with calling(toolbox(manifests(tmp_path, tool(mcp=MCP)))) as caller:
        assert await caller.call("crm_find_it") == [None, "find-it"]


async def test_an_action_can_be_one_tool_of_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offering(monkeypatch, "find", "send", text={"type": "string"})
    actions = [action("look", "mcp", {"tool_name": "find"}), action("rest", "mcp", {})]
    async with calling(toolbox(manifests(tmp_path, tool(mcp=MCP, actions=actions)))) as caller:
        assert list(caller.functions) == ["crm_look", "crm_rest_find", "crm_rest_send"]
        assert caller.functions["crm_look"].declared == {"text": {"type": "string"}}
        assert await caller.call("crm_look") == ["look", None]


async def test_a_tool_of_a_server_that_is_not_there_breaks_the_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offering(monkeypatch, "find", "send")
    actions = [action("look", "mcp", {"tool_name": "search"})]
    with pytest.raises(BrokenToolError, match="crm has no tool_name search; it has find, send"):
        await toolbox(manifests(tmp_path, tool(mcp=MCP, actions=actions))).functions()


async def test_a_discovered_name_that_another_function_has_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offering(monkeypatch, "find", "send")
    tools = [tool(mcp=MCP), tool("crm-find", actions=[action("do", "cel", ECHO)])]
    names = [function.name for function in await toolbox(manifests(tmp_path, *tools)).functions()]
    assert names[1:] == ["crm_send", "crm_find"]
    assert names[0].startswith("crm_find_")


async def test_include_can_name_the_action_that_stands_for_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offering(monkeypatch, "find", "send")
    actions = [action("all", "mcp", {}), action("own", "cel", ECHO)]
    offered = {}
    for include in (["all"], ["own"], ["find"], []):
        found = manifests(tmp_path, tool(mcp=MCP, actions=actions), capabilities={"crm": {"include": include}})
        functions = await toolbox(found).functions()
        offered[tuple(include)] = [function.name for function in functions if function.offered]
    assert offered == {
        ("all",): ["crm_all_find", "crm_all_send"],
        ("own",): ["crm_own"],
        ("find",): ["crm_all_find"],
        (): [],
    }


async def test_what_fits_nothing_that_was_discovered_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    offering(monkeypatch, "find-it", "send", text={"type": "string"})
    actions = [action("all", "mcp", {}), action("own", "cel", ECHO)]
    before = [{"assert": "true", "match": name} for name in ("find-it", "all", "own", "find_it", "delete")]
    bindings = {"text": "'a'", "owner": "'b'"}
    capability = {"before": before, "bindings": bindings, "include": ["own", "find_it", "delete"]}
    found = manifests(tmp_path, tool(mcp=MCP, actions=actions), capabilities={"crm": capability})
    functions = await toolbox(found).functions()
    assert [record.getMessage() for record in caplog.records] == ["crm: include names 'delete', which does not exist"]
    assert unapplied("crm", found.agents[0].capabilities["crm"], functions) == [
        "a step has match 'delete', which is not an operation",
        "the binding 'owner' matches no parameter",
    ]


# What is found out once


async def test_a_failure_is_shared_and_then_tried_again() -> None:
    once, asked, go = Once(), [0], asyncio.Event()

    async def find() -> str:
        asked[0] += 1
        await go.wait()
        if asked[0] == 1:
            raise OSError("not yet")
        return "found"

    waiting = [asyncio.create_task(once.get("key", find)) for _ in range(3)]
    await asyncio.wait(waiting, timeout=0)
    go.set()
    assert [str(failure) for failure in await asyncio.gather(*waiting, return_exceptions=True)] == ["not yet"] * 3
    assert await once.get("key", find) == await once.get("key", find) == "found"
    assert asked == [2]


async def test_who_stops_waiting_stops_nobody_else() -> None:
    once, go = Once(), asyncio.Event()

    async def find() -> str:
        await go.wait()
        return "found"

    first, second = (asyncio.create_task(once.get("key", find)) for _ in range(2))
    await asyncio.wait([first, second], timeout=0)
    first.cancel()
    go.set()
    assert await second == "found"
    assert first.cancelled()


# Parameters that need not be given


@pytest.mark.parametrize(
    ("parameter", "result"),
    [
        ({"type": "string", "default": "a"}, {"type": "string", "default": "a"}),
        ({"type": "string"}, {"type": ["string", "null"], "default": None}),
        ({"type": "null"}, {"type": "null", "default": None}),
        ({}, {"anyOf": [{}, {"type": "null"}], "default": None}),
        (
            {"enum": ["a"], "description": "One."},
            {
                "description": "One.",
                "anyOf": [{"enum": ["a"], "description": "One."}, {"type": "null"}],
                "default": None,
            },
        ),
    ],
)
def test_null_stands_for_what_is_not_given(parameter: Json, result: Json) -> None:
    assert optional(parameter) == result
    assert schemas.problem(result, result["default"]) is None
