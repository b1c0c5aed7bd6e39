"""A client whose connections pass the outbound guard: neither a card, its interfaces nor its keys lead inside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from errands.client import A2AClient, A2AClientError, AgentNotFoundError, CardVerifier, NoCommonProtocolError
from errands.client.discovery import read_card
from errands.errors import ConfigurationError
from errands.outbound import Outbound, OutboundError
from tests.live import live

pytestmark = pytest.mark.anyio

CARD: dict[str, Any] = {
    "name": "Outside",
    "description": "",
    "version": "1",
    "capabilities": {},
    "defaultInputModes": [],
    "defaultOutputModes": [],
    "skills": [],
}
#: Addresses of this machine and its network, as attackers write them.
INSIDE = [
    "http://127.0.0.1",
    "http://localhost",
    "http://127.1",
    "http://2130706433",
    "http://0x7f000001",
    "http://0177.0.0.1",
    "http://0.0.0.0",
    "http://[::1]",
    "http://[::ffff:127.0.0.1]",
    "http://[::ffff:a9fe:a9fe]",
    "http://169.254.169.254",
    "http://10.0.0.1",
]
#: Refused as such, or because it is not a spelling that httpx or the resolver knows.
REFUSED = "only public addresses may be reached|has no address|Invalid IPv4 address"


def interface(url: str) -> dict[str, str]:
    return {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}


@pytest.fixture
def seen() -> list[str]:
    return []


@pytest.fixture
def site(seen: list[str]) -> Iterator[str]:
    """A site with a card for each path: the address of its interface is in the query."""

    async def card(request: Request) -> Response:
        seen.append(request.url.path)
        return JSONResponse({**CARD, "supportedInterfaces": [interface(request.query_params["to"])]})

    async def moved(request: Request) -> Response:
        seen.append(request.url.path)
        return RedirectResponse("http://169.254.169.254/latest/meta-data/")

    async def call(request: Request) -> Response:
        seen.append("called")
        return JSONResponse({})

    routes = [Route("/card.json", card), Route("/moved.json", moved), Route("/", call, methods=["POST"])]
    with live(Starlette(routes=routes)) as url:
        yield url


@pytest.mark.parametrize("url", INSIDE)
async def test_a_card_is_not_fetched_from_the_inside(url: str) -> None:
    async with Outbound().client() as http:
        with pytest.raises((OutboundError, AgentNotFoundError, httpx.InvalidURL), match=REFUSED):
            await A2AClient(f"{url}:9/card.json", httpx_client=http, max_retries=0).connect()


@pytest.mark.parametrize("url", INSIDE)
async def test_a_card_from_the_outside_cannot_lead_inside(site: str, seen: list[str], url: str) -> None:
    # `outside.test` is an address that the operator has opened, as a public one is.
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"] if host == "outside.test" else [host.strip("[]")] if host[:1] == "[" else ["10.0.0.1"]

    outside = site.replace("127.0.0.1", "outside.test")
    async with Outbound(["outside.test"], resolve=resolve).client() as http:
        client = A2AClient(f"{outside}/card.json?to={url}", httpx_client=http, max_retries=0)
        with pytest.raises((OutboundError, A2AClientError), match=REFUSED):
            async with client:
                await client.get_task("t")
    assert seen == ["/card.json"]


async def test_a_name_that_changes_its_address_between_two_requests_is_refused(site: str, seen: list[str]) -> None:
    answers = iter([["127.0.0.1"], ["10.0.0.1"]])

    async def resolve(host: str, port: int) -> list[str]:
        return next(answers)

    outside = site.replace("127.0.0.1", "rebinding.test")
    async with (
        Outbound(["127.0.0.1"], resolve=resolve).client(headers={"Connection": "close"}) as http,
        A2AClient(f"{outside}/card.json?to=/", httpx_client=http, max_retries=0) as client,
    ):
        with pytest.raises(OutboundError, match=r"rebinding.test leads to 10.0.0.1"):
            await client.get_task("t")
    assert seen == ["/card.json"]


async def test_a_redirect_is_not_followed(site: str, seen: list[str]) -> None:
    async with Outbound(["127.0.0.1"]).client(follow_redirects=True) as http:
        with pytest.raises(AgentNotFoundError, match="HTTP 307, a redirect"):
            await A2AClient(f"{site}/moved.json", httpx_client=http).connect()
    assert seen == ["/moved.json"]


@pytest.mark.parametrize("url", ["http://me:secret@127.0.0.1/", "http://127.0.0.1/\r\nX-Admin: 1", "ftp://127.0.0.1/"])
async def test_an_interface_with_a_user_or_a_line_break_is_not_used(url: str) -> None:
    card = read_card(json.dumps({**CARD, "supportedInterfaces": [interface(url)]}).encode())
    async with Outbound().client() as http:
        with pytest.raises(NoCommonProtocolError):
            await A2AClient("http://outside.test", httpx_client=http, card=card).connect()


@pytest.mark.parametrize("url", ["http://a.example/\r\nX-Admin: 1", "http://a.example\n", "http://a\x00.example/"])
def test_an_address_with_a_line_break_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="no line breaks"):
        A2AClient(url)


@pytest.mark.parametrize("url", INSIDE)
async def test_keys_are_not_fetched_from_the_inside(url: str) -> None:
    card = read_card(json.dumps({**CARD, "supportedInterfaces": []}).encode())
    async with Outbound().client() as http:
        with pytest.raises((OutboundError, A2AClientError), match=REFUSED):
            await CardVerifier(jwks_url=f"{url.replace('http:', 'https:')}:9/jwks.json").verify(http, card)
