"""`errands card`."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

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


@contextmanager
def site(pages: dict[str, bytes]) -> Iterator[str]:
    """A web site with some pages."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


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
    sent = httpx.get(f"{url}/.well-known/agent-card.json", headers={"A2A-Version": "1.0"}, timeout=None).json()
    assert json.loads(errands("card", url, "--json").stdout) == sent
    assert json.loads(errands("card", f"{url}/.well-known/agent-card.json", "--json").stdout) == sent


def test_a_place_without_a_card_exits_with_3_and_says_where_it_looked(errands: Errands, url: str) -> None:
    result = errands("card", f"{url}/elsewhere")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "/elsewhere/.well-known/agent-card.json: HTTP 404" in result.stderr


# Validating


def test_a_valid_card_exits_with_0_and_says_of_which_versions_it_is(errands: Errands, url: str) -> None:
    result = errands("card", url, "--validate")
    assert result.exit_code == 0
    assert result.stdout.strip() == f"{url}/.well-known/agent-card.json is a valid card of A2A 1.0 and 0.3"


def test_a_card_with_mistakes_exits_with_1_and_says_where_what_and_how_to_mend_it(
    errands: Errands, tmp_path: Path
) -> None:
    (tmp_path / "card.json").write_text('{"name": "x", "supportedInterfaces": [{"url": "/rpc"}]}')
    result = errands("card", str(tmp_path / "card.json"), "--validate")
    assert result.exit_code == 1
    assert "error    supportedInterfaces[0].url is '/rpc', which clients cannot call" in result.stdout
    assert "fix: write an absolute address, such as https://example.com/" in result.stdout
    assert "is not a valid card of A2A 1.0: " in result.stdout


def test_findings_as_json_are_for_other_programs(errands: Errands, tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text("[]")
    result = errands("card", str(tmp_path / "card.json"), "--validate", "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["valid"], document["versions"]) == (1, False, [])
    assert document["findings"][0] == {
        "severity": "error",
        "path": "",
        "problem": "is a list, not an object",
        "remedy": "serve one JSON object",
    }


def test_a_card_in_a_file_is_shown_like_any_other(errands: Errands, url: str, tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text(errands("card", url, "--json").stdout)
    assert errands("card", str(tmp_path / "card.json")).stdout == errands("card", url).stdout


def test_a_card_at_the_older_path_only_is_valid_with_a_warning(errands: Errands, url: str) -> None:
    card = httpx.get(f"{url}/.well-known/agent.json", timeout=None).content
    with site({"/.well-known/agent.json": card}) as place:
        result = errands("card", place, "--validate")
        assert f"JSONRPC 0.3 at {url}/" in errands("card", place).stdout
    assert result.exit_code == 0
    assert "warning  the card is only at the older path" in result.stdout


@pytest.mark.parametrize("validate", [[], ["--validate"]])
def test_what_is_neither_an_address_nor_a_file_exits_with_2(errands: Errands, validate: list[str]) -> None:
    for place in ("localhost:8000", "nothing.json", "ftp://agent.test"):
        assert errands("card", place, *validate).exit_code == 2


def test_an_agent_that_has_no_card_to_validate_exits_with_3(errands: Errands, url: str) -> None:
    result = errands("card", f"{url}/elsewhere", "--validate")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "/elsewhere/.well-known/agent-card.json: HTTP 404" in result.stderr
    assert errands("card", "http://127.0.0.1:1", "--validate").exit_code == 3
