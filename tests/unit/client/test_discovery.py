"""How a client finds an agent and picks one of its interfaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import httpx
import msgspec
import pytest

from errands.client import A2AClient, AgentNotFoundError, NoCommonProtocolError, NotConnectedError, discovery
from errands.client.discovery import choose_interface
from errands.errors import ConfigurationError
from errands.model.base import encode
from errands.model.card import AgentCard, AgentInterface
from errands.wire.v0_3_card import union
from tests.unit.client.agent import URL, card, task

pytestmark = pytest.mark.anyio

NEW, OLD = "/.well-known/agent-card.json", "/.well-known/agent.json"


class Site:
    """A web site with some pages; everything else is not found."""

    def __init__(self, pages: Mapping[str, httpx.Response | Callable[[httpx.Request], httpx.Response]]) -> None:
        self.pages = pages
        self.requests: list[httpx.Request] = []
        self.http = httpx.AsyncClient(transport=httpx.MockTransport(self._serve))

    def _serve(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        page = self.pages.get(request.url.path, httpx.Response(404))
        return page if isinstance(page, httpx.Response) else page(request)

    @property
    def paths(self) -> list[str]:
        return [request.url.path for request in self.requests]

    def client(self, url: str = URL, *, max_retries: int = 0, **options: object) -> A2AClient:
        return A2AClient(url, httpx_client=self.http, max_retries=max_retries, **options)  # type: ignore[arg-type]


def page(agent_card: AgentCard, **headers: str) -> httpx.Response:
    return httpx.Response(200, content=encode(agent_card), headers=headers)


def interface(binding: str, version: str = "1.0", url: str = f"{URL}/x", tenant: str | None = None) -> AgentInterface:
    return AgentInterface(url=url, protocol_binding=binding, protocol_version=version, tenant=tenant)


async def test_the_card_is_at_the_well_known_path() -> None:
    site = Site({NEW: page(card(name="Found"))})
    async with site.client() as client:
        assert client.agent_name == "Found"
        assert client.is_connected
        assert client.capabilities.streaming
    assert site.paths == [NEW]
    assert not client.is_connected


@pytest.mark.parametrize("interfaces", [None, []])
async def test_a_card_with_only_the_field_of_1_0_for_interfaces_is_one_of_0_3(interfaces: list[Any] | None) -> None:
    content = {"name": "Old", "url": f"{URL}/rpc", "supportedInterfaces": interfaces}
    async with Site({NEW: httpx.Response(200, json=content)}).client() as client:
        assert (client.protocol, client.version) == ("jsonrpc", "0.3")


async def test_the_card_of_a_mounted_agent_is_below_its_path() -> None:
    site = Site({f"/agents/a{NEW}": page(card())})
    async with site.client(f"{URL}/agents/a/"):
        assert site.paths == [f"/agents/a{NEW}"]


@pytest.mark.parametrize("first", [httpx.Response(404), httpx.Response(200, text="<html>Hello!</html>")])
async def test_the_older_path_is_tried_when_the_first_has_no_card(first: httpx.Response) -> None:
    site = Site({NEW: first, OLD: page(card())})
    async with site.client():
        assert site.paths == [NEW, OLD]


async def test_a_full_card_url_is_used_as_it_is() -> None:
    site = Site({"/cards/mine.json": page(card())})
    async with site.client(f"{URL}/cards/mine.json?v=2"):
        assert [str(request.url) for request in site.requests] == [f"{URL}/cards/mine.json?v=2"]


async def test_without_a_card_the_error_says_what_was_found_where() -> None:
    site = Site({NEW: httpx.Response(401)})
    with pytest.raises(AgentNotFoundError, match=r"agent-card.json: HTTP 401; .*agent.json: HTTP 404") as caught:
        await site.client().connect()
    assert caught.value.url == URL


async def test_an_agent_that_does_not_answer_is_not_found() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(AgentNotFoundError, match="refused") as caught:
        await Site({NEW: refuse}).client().connect()
    assert isinstance(caught.value.__cause__, httpx.ConnectError)


async def test_a_card_that_cannot_be_had_now_is_asked_for_again() -> None:
    answers = [httpx.Response(503, headers={"Retry-After": "0"}), page(card())]
    async with Site({NEW: lambda _: answers.pop(0)}).client(max_retries=1, retry_delay=0) as client:
        assert client.is_connected
    with pytest.raises(AgentNotFoundError, match="HTTP 503"):
        await Site({NEW: httpx.Response(503)}).client().connect()


async def test_a_client_that_fails_to_connect_lets_go_of_its_connections() -> None:
    client = A2AClient("http://127.0.0.1:1", max_retries=0)
    with pytest.raises(AgentNotFoundError):
        async with client:
            pass
    assert client._http is None


async def test_a_page_of_json_that_is_no_card_is_no_card() -> None:
    site = Site({NEW: httpx.Response(200, json=["card"]), OLD: httpx.Response(200, json={"hello": "world"})})
    with pytest.raises(AgentNotFoundError, match=r"not an agent card.*not an agent card"):
        await site.client().connect()


async def test_a_redirect_of_the_card_is_not_followed_with_the_callers_credentials() -> None:
    site = Site({NEW: httpx.Response(302, headers={"Location": "https://evil.test/card"})})
    with pytest.raises(AgentNotFoundError, match=r"evil\.test"):
        await site.client(headers={"X-Api-Key": "secret"}).connect()
    assert {request.url.host for request in site.requests} == {"agent.test"}


async def test_version_credentials_and_extensions_are_sent_with_the_card_request_too() -> None:
    site = Site({NEW: page(card())})
    async with site.client(headers={"Authorization": "Bearer t"}, extensions=["https://e.test/1", "https://e.test/2"]):
        headers = site.requests[0].headers
    assert headers["A2A-Version"] == "1.0"
    assert headers["Authorization"] == "Bearer t"
    assert headers["A2A-Extensions"] == "https://e.test/1,https://e.test/2"


async def test_the_validator_sees_the_card_and_its_bytes_and_may_refuse_it() -> None:
    seen: list[tuple[str, bytes]] = []

    def validate(agent_card: AgentCard, raw: bytes) -> None:
        seen.append((agent_card.name, raw))
        raise PermissionError("unsigned")

    with pytest.raises(PermissionError):
        await Site({NEW: page(card())}).client(card_validator=validate).connect()
    assert seen == [("Fake", encode(card()))]


async def test_a_given_card_makes_discovery_unnecessary() -> None:
    site = Site({})
    async with site.client(card=card(name="Given")) as client:
        assert client.agent_name == "Given"
    assert not site.requests


async def test_refreshing_sends_the_etag_and_keeps_the_card_that_has_not_changed() -> None:
    def conditional(request: httpx.Request) -> httpx.Response:
        if request.headers.get("If-None-Match") == '"v1"':
            return httpx.Response(304)
        return page(card(), ETag='"v1"')

    site = Site({NEW: conditional})
    async with site.client() as client:
        before = client.agent_card
        assert await client.refresh_card() is before
    assert len(site.requests) == 2


async def test_refreshing_takes_a_new_card_and_chooses_its_interface_anew() -> None:
    cards = [card(interface("JSONRPC")), card(interface("HTTP+JSON"), name="Moved")]
    site = Site({NEW: lambda _: page(cards.pop(0))})
    async with site.client() as client:
        assert client.protocol == "jsonrpc"
        assert (await client.refresh_card()).name == "Moved"
        assert client.protocol == "http+json"


async def test_a_card_that_leaves_out_empty_fields_is_read_as_protobuf_means_it() -> None:
    fields = {"name": "Terse", "supportedInterfaces": [msgspec.to_builtins(interface("JSONRPC"))], "version": "1"}
    async with Site({NEW: httpx.Response(200, json=fields)}).client() as client:
        assert client.agent_card.skills == []
        assert client.capabilities.streaming is None


@pytest.fixture
def without_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client without the extra, whatever is installed here."""
    monkeypatch.setattr(discovery, "speaks_grpc", lambda: False)


@pytest.fixture
def with_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with the extra for gRPC, whatever is installed here. What is chosen is never used."""
    monkeypatch.setattr(discovery, "speaks_grpc", lambda: True)


@pytest.mark.usefixtures("without_grpc")
@pytest.mark.parametrize(
    ("offered", "wanted", "chosen"),
    [
        ([interface("JSONRPC"), interface("HTTP+JSON")], None, "jsonrpc"),
        ([interface("HTTP+JSON"), interface("JSONRPC")], None, "http+json"),
        ([interface("GRPC", url="agent.test:50051"), interface("HTTP+JSON")], None, "http+json"),
        ([interface("SOAP"), interface("HTTP+JSON")], None, "http+json"),
        ([interface("JSONRPC", "0.1"), interface("HTTP+JSON", "1.0.1")], None, "http+json"),
        ([interface("JSONRPC", url="ftp://agent.test"), interface("HTTP+JSON")], None, "http+json"),
        ([interface("HTTP+JSON"), interface("JSONRPC")], "jsonrpc", "jsonrpc"),
        ([interface("jsonrpc")], "JSONRPC", "jsonrpc"),
    ],
)
async def test_the_first_interface_that_fits_is_chosen(
    offered: list[AgentInterface], wanted: str | None, chosen: str
) -> None:
    async with Site({NEW: page(card(*offered))}).client(protocol=wanted) as client:
        assert (client.protocol, client.version) == (chosen, "1.0")


EVERYTHING = [
    interface("GRPC", "0.3", "agent.test:1"),
    interface("JSONRPC", "0.3.0"),
    interface("HTTP+JSON", "1.0"),
    interface("JSONRPC", "1.0"),
    interface("GRPC", "1.0", "agent.test:2"),
]


@pytest.mark.usefixtures("with_grpc")
@pytest.mark.parametrize(
    ("protocol", "version", "chosen"),
    [
        (None, None, ("1.0", "http+json")),
        (None, "0.3", ("0.3", "grpc")),
        ("jsonrpc", None, ("1.0", "jsonrpc")),
        ("jsonrpc", "0.3", ("0.3", "jsonrpc")),
        ("grpc", None, ("1.0", "grpc")),
        ("grpc", "0.3", ("0.3", "grpc")),
    ],
)
async def test_the_newest_version_comes_first_then_the_order_of_the_card_and_both_can_be_insisted_on(
    protocol: str | None, version: str | None, chosen: tuple[str, str]
) -> None:
    choice = choose_interface(card(*EVERYTHING), card_url=URL, protocol=protocol, version=version)
    assert (choice.version, choice.protocol) == chosen
    assert choice.url == {"0.3": "agent.test:1", "1.0": "agent.test:2"}[choice.version] or choice.protocol != "grpc"


@pytest.mark.usefixtures("without_grpc")
@pytest.mark.parametrize(
    ("offered", "options"),
    [
        ([interface("GRPC", url="agent.test:50051"), interface("JSONRPC", "0.1")], {}),
        ([interface("HTTP+JSON")], {"protocol": "jsonrpc"}),
        ([interface("JSONRPC")], {"version": "0.3"}),
        ([interface("JSONRPC", url="file:///etc/passwd")], {}),
        ([interface("JSONRPC", url="localhost:8000")], {}),
    ],
)
async def test_without_a_common_protocol_the_error_lists_what_the_agent_offers_and_what_is_wanted(
    offered: list[AgentInterface], options: dict[str, Any]
) -> None:
    with pytest.raises(NoCommonProtocolError) as caught:
        await Site({NEW: page(card(*offered))}).client(**options).connect()
    assert len(caught.value.offers) == len(offered)
    assert all(face.url in offer for face, offer in zip(offered, caught.value.offers, strict=True))
    assert caught.value.offers[0] in str(caught.value)
    assert all(wish in caught.value.capability for wish in options.values())
    assert "grpc" not in caught.value.capability


@pytest.mark.usefixtures("with_grpc")
async def test_a_card_of_0_3_is_read() -> None:
    fields = {
        "name": "Old",
        "url": f"{URL}/v03",
        "protocolVersion": "0.3.0",
        "capabilities": {"streaming": True},
        "additionalInterfaces": [{"transport": "GRPC", "url": "agent.test:1"}],
    }
    site = Site({NEW: httpx.Response(200, json=fields)})
    async with site.client() as client:
        assert (client.protocol, client.version) == ("jsonrpc", "0.3")
        assert client.capabilities.streaming
    with pytest.raises(NoCommonProtocolError) as caught:
        await site.client(protocol="http+json").connect()
    assert caught.value.offers == [f"JSONRPC 0.3 at {URL}/v03", "GRPC 0.3 at agent.test:1"]


@pytest.mark.usefixtures("with_grpc")
async def test_a_card_of_both_versions_is_read_as_1_0() -> None:
    both = card(interface("JSONRPC", "0.3", f"{URL}/old"), interface("JSONRPC", "1.0", f"{URL}/new"))
    async with Site({NEW: httpx.Response(200, content=union(both))}).client() as client:
        assert client.version == "1.0"
        assert [face.url for face in client.agent_card.supported_interfaces] == [f"{URL}/old", f"{URL}/new"]


@pytest.mark.usefixtures("with_grpc")
async def test_the_card_of_a_praisonai_agent_leads_to_its_dialect() -> None:
    fields = {
        "name": "Assistant",
        "url": f"{URL}/a2a",
        "version": "1.0.0",
        "description": "Helper. Help users",
        "capabilities": {
            "streaming": True,
            "pushNotifications": False,
            "stateTransitionHistory": False,
            "extendedAgentCard": True,
        },
        "skills": [{"id": "search", "name": "search", "description": "Searches.", "tags": ["tool"]}],
        "provider": {"name": "PraisonAI"},
        "securitySchemes": {"bearer": {"http": {"scheme": "bearer", "bearerFormat": "token"}}},
        "security": [{"bearer": []}],
    }
    async with Site({OLD: httpx.Response(200, json=fields)}).client() as client:
        assert (client.protocol, client.version) == ("praisonai", "0.3")
        assert client.agent_card.supported_interfaces[0].url == f"{URL}/a2a"
        assert client.agent_card.provider is not None
        assert client.agent_card.provider.organization == "PraisonAI"


async def test_a_relative_interface_url_is_resolved_against_the_cards_address() -> None:
    choice = choose_interface(card(interface("JSONRPC", url="/rpc")), card_url=f"{URL}/.well-known/agent-card.json")
    assert choice.url == f"{URL}/rpc"


async def test_the_callers_tenant_picks_the_interface_of_that_tenant() -> None:
    offered = [interface("JSONRPC", tenant="a"), interface("HTTP+JSON", tenant="b")]
    assert choose_interface(card(*offered), card_url=URL, tenant="b").protocol == "http+json"
    assert choose_interface(card(*offered), card_url=URL).tenant == "a"
    with pytest.raises(NoCommonProtocolError, match="tenant 'z'"):
        choose_interface(card(*offered), card_url=URL, tenant="z")


async def test_an_interface_on_another_origin_is_used() -> None:
    def rpc(request: httpx.Request) -> httpx.Response:
        assert request.url.host == "api.test"
        return httpx.Response(200, json={"id": "1", "result": msgspec.to_builtins(task())})

    site = Site({NEW: page(card(interface("JSONRPC", url="https://api.test/rpc"))), "/rpc": rpc})
    async with site.client() as client:
        assert (await client.get_task("t1")).task_id == "t1"


@pytest.mark.parametrize("url", ["agent.test", "localhost:8000", "ftp://agent.test", "http://", ""])
async def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigurationError, match="http"):
        A2AClient(url)


async def test_an_unknown_protocol_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="'jsonrpc', 'http\\+json'"):
        A2AClient(URL, protocol="soap")


async def test_an_unknown_version_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"version '0\.1': expected one of '1\.0', '0\.3'"):
        A2AClient(URL, version="0.1")
    assert A2AClient(URL, version="1.0.1").version == ""


@pytest.mark.usefixtures("without_grpc")
async def test_grpc_without_its_extra_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"pip install 'errands\[grpc\]'"):
        A2AClient(URL, protocol="grpc")


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\0b", "ключ"])
async def test_a_header_that_could_smuggle_in_another_is_refused(value: str) -> None:
    with pytest.raises(ConfigurationError, match="line breaks"):
        A2AClient(URL, headers={"Authorization": value})
    with pytest.raises(ConfigurationError):
        A2AClient(URL, headers={value: "x"})
    with pytest.raises(ConfigurationError):
        A2AClient(URL, extensions=[value])


async def test_a_client_that_is_not_connected_says_so() -> None:
    client = A2AClient(URL)
    assert client.protocol == ""
    with pytest.raises(NotConnectedError):
        _ = client.agent_card
    with pytest.raises(NotConnectedError):
        await client.send("x")
    with pytest.raises(NotConnectedError):
        client.stream("x")
    with pytest.raises(NotConnectedError):
        await client.refresh_card()


async def test_a_client_can_be_closed_and_connected_again() -> None:
    site = Site({NEW: page(card())})
    client = site.client()
    await client.connect()
    await client.connect()
    await client.close()
    await client.close()
    await client.connect()
    assert client.is_connected
    assert len(site.requests) == 2
    assert not site.http.is_closed


async def test_a_client_closes_the_connections_it_made_itself() -> None:
    client = A2AClient(URL, card=card())
    await client.connect()
    http = client._http
    assert http is not None
    await client.close()
    assert http.is_closed
