"""`errands card`."""

from __future__ import annotations

import json

import httpx

from errands import (
    A2AServer,
    AgentCardConfig,
    CapabilitiesConfig,
    ExtensionConfig,
    ProviderConfig,
    SkillConfig,
    TaskContext,
    Worker,
)
from tests.unit.cli.conftest import Errands, live


class Silent(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete()


def test_a_card_shows_what_the_agent_offers(errands: Errands) -> None:
    config = AgentCardConfig(
        name="Cook",
        description="Cooks.",
        version="2.1.0",
        skills=[SkillConfig(id="soup", name="Soup", description="Makes soup.")],
        capabilities=CapabilitiesConfig(streaming=True),
        extensions=[ExtensionConfig(uri="https://ext.test/spice")],
        provider=ProviderConfig(organization="Kitchen", url="https://kitchen.test"),
        documentation_url="https://kitchen.test/docs",
    )
    with live(A2AServer(worker=Silent(), agent_card=config, storage="memory")) as url:
        shown = errands("card", url).stdout
    wanted = ("Cook 2.1.0", "Cooks.", f"JSONRPC 1.0 at {url}/", "streaming", "Soup: Makes soup.", "text/plain")
    for words in (*wanted, "https://ext.test/spice", "Kitchen (https://kitchen.test)", "https://kitchen.test/docs"):
        assert words in shown


def test_a_card_as_json_is_what_the_agent_sent(errands: Errands, url: str) -> None:
    sent = httpx.get(f"{url}/.well-known/agent-card.json", headers={"A2A-Version": "1.0"}).json()
    assert json.loads(errands("card", url, "--json").stdout) == sent
    assert json.loads(errands("card", f"{url}/.well-known/agent-card.json", "--json").stdout) == sent


def test_a_place_without_a_card_exits_with_3_and_says_where_it_looked(errands: Errands, url: str) -> None:
    result = errands("card", f"{url}/elsewhere")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "/elsewhere/.well-known/agent-card.json: HTTP 404" in result.stderr
