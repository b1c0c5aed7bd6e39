"""An agent whose tools are those of a real MCP server, in a whole server."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from errands.policy.records import CapabilityFinished
from tests.agents.rig import AGENT, TOOL, at_work, call, reason, told

pytestmark = pytest.mark.anyio

SERVER = Path(__file__).parents[1] / "unit" / "tools" / "mcp_server.py"


def agent(*args: str, capability: str = '"*"') -> str:
    mcp = {"transport": "stdio", "command": sys.executable, "args": [str(SERVER), *args]}
    tool = f"{TOOL}name: shop\ndescription: A shop.\nmcp: {json.dumps(mcp)}\n"
    return f"{AGENT}capabilities: {{shop: {capability}}}\n{tool}"


async def test_an_agent_uses_what_a_server_offers(tmp_path: Path) -> None:
    capability = '{include: [add, out_of_stock, order], bindings: {b: "40"}, after: [{transform: "output.result"}]}'
    replies = (call(("shop_add", {"a": 2, "b": 9})), call(("shop_out_of_stock", {})), "Done.")
    async with at_work(tmp_path, agent(capability=capability), *replies) as desk:
        await desk.say("Go")
        offers = {offer.name: offer.parameters for offer in desk.model.questions[0].offers}
        assert list(offers) == ["shop_add", "shop_order", "shop_out_of_stock"]
        assert list(offers["shop_add"]["properties"]) == ["a"]
        assert desk.model.results() == [42, {"error": "Error executing tool out_of_stock: There is none left."}]
        [record] = [one for one in await desk.records() if isinstance(one, CapabilityFinished)]
        assert (record.arguments, record.output) == ({"a": 2, "b": 40}, {"result": 42})
        context = await desk.context()
        assert context.capabilities["shop_out_of_stock"].count_errored == 1


async def test_a_task_ends_when_its_server_cannot_be_started(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with at_work(tmp_path, agent("gone")) as desk:
        task = await desk.say("Go")
        assert (task.status.state.short, reason(task)) == ("failed", "errored")
        assert told(task).startswith("The tools of this agent cannot be used (reference ")
    assert "the MCP server of shop ended or gave an invalid answer before it was ready" in caplog.text
