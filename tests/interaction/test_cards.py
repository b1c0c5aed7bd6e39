"""The agent card in the form each reader expects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from errands import A2AServer, AgentCardConfig
from errands.errors import ConfigurationError
from errands.model.card import AgentInterface, HTTPAuthSecurityScheme, SecurityScheme
from errands.server.cards import build_card
from errands.server.http import CARD_PATH, OLDER_CARD_PATH
from errands.testing import BASE_URL, http_client, serve
from tests.interaction.agents import Echo, card

pytestmark = pytest.mark.anyio

NEW_FIELDS = {"supportedInterfaces", "securityRequirements"}
OLD_FIELDS = {
    "url",
    "preferredTransport",
    "additionalInterfaces",
    "protocolVersion",
    "security",
    "supportsAuthenticatedExtendedCard",
}


@asynccontextmanager
async def http(**options: Any) -> AsyncIterator[httpx.AsyncClient]:
    server = serve(Echo(), agent_card=secured(), **options)
    async with server, http_client(server) as client:
        yield client


def secured() -> AgentCardConfig:
    bearer = SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="bearer"))
    return card(security_schemes={"bearer": bearer}, security=[{"bearer": []}])


async def get(client: httpx.AsyncClient, path: str, version: str | None = None) -> dict[str, Any]:
    headers = {} if version is None else {"A2A-Version": version}
    answer = await client.get(path, headers=headers)
    assert answer.status_code == 200
    fields: dict[str, Any] = answer.json()
    return fields


def is_new(fields: dict[str, Any]) -> bool:
    return fields.keys() >= NEW_FIELDS and not fields.keys() & OLD_FIELDS


def is_old(fields: dict[str, Any]) -> bool:
    return fields.keys() >= OLD_FIELDS and not fields.keys() & NEW_FIELDS


def is_both(fields: dict[str, Any]) -> bool:
    return fields.keys() >= NEW_FIELDS | OLD_FIELDS


@pytest.mark.parametrize("path", [CARD_PATH, OLDER_CARD_PATH])
async def test_who_says_which_version_it_speaks_gets_a_card_of_that_version_alone(path: str) -> None:
    async with http() as client:
        for version in ("1.0", "1.0.1"):
            assert is_new(await get(client, path, version))
        for version in ("0.3", "0.3.0"):
            assert is_old(await get(client, path, version))


@pytest.mark.parametrize("version", [None, "", "7.0", "x"])
async def test_who_does_not_say_gets_both_forms_at_once_and_at_the_older_path_the_older_one(
    version: str | None,
) -> None:
    async with http() as client:
        assert is_both(await get(client, CARD_PATH, version))
        assert is_old(await get(client, OLDER_CARD_PATH, version))


@pytest.mark.parametrize("version", [None, "1.0", "0.3"])
@pytest.mark.parametrize("path", [CARD_PATH, OLDER_CARD_PATH])
async def test_a_server_of_one_version_has_one_form(path: str, version: str | None) -> None:
    async with http(protocol_versions=["1.0"]) as client:
        assert is_new(fields := await get(client, path, version))
        assert {face["protocolVersion"] for face in fields["supportedInterfaces"]} == {"1.0"}
    async with http(protocol_versions=["0.3"]) as client:
        assert is_old(await get(client, path, version))


async def test_each_form_is_revalidated_by_its_own_tag() -> None:
    async with http() as client:
        tags = {}
        for version in ("1.0", "0.3", ""):
            answer = await client.get(CARD_PATH, headers={"A2A-Version": version})
            assert answer.headers["vary"] == "Host, A2A-Version"
            tags[version] = answer.headers["etag"]
        assert len(set(tags.values())) == 3
        for version, tag in tags.items():
            for asked in tags:
                headers = {"A2A-Version": asked, "If-None-Match": tag}
                status = (await client.get(CARD_PATH, headers=headers)).status_code
                assert status == (304 if asked == version else 200)


def places(interfaces: list[AgentInterface]) -> list[tuple[str, str, str]]:
    return [(face.protocol_version, face.protocol_binding, face.url) for face in interfaces]


async def test_every_version_has_an_interface_for_every_binding_the_newest_version_first() -> None:
    found = build_card(card(), f"{BASE_URL}/x/", versions=["1.0", "0.3"], grpc_address="agent.test:50051")
    assert places(found.supported_interfaces) == [
        ("1.0", "JSONRPC", f"{BASE_URL}/x/"),
        ("1.0", "HTTP+JSON", f"{BASE_URL}/x"),
        ("1.0", "GRPC", "agent.test:50051"),
        ("0.3", "JSONRPC", f"{BASE_URL}/x/"),
        ("0.3", "HTTP+JSON", f"{BASE_URL}/x"),
        ("0.3", "GRPC", "agent.test:50051"),
    ]


async def test_the_preferred_binding_is_first_in_every_version() -> None:
    found = build_card(card(protocol="http+json"), BASE_URL, versions=["1.0", "0.3"])
    assert [binding for _, binding, _ in places(found.supported_interfaces)] == ["HTTP+JSON", "JSONRPC"] * 2
    async with http_client(server := serve(Echo(), agent_card=card(protocol="http+json"))) as client, server:
        old = await get(client, CARD_PATH, "0.3")
        assert (old["preferredTransport"], old["url"]) == ("HTTP+JSON", BASE_URL)


async def test_a_grpc_address_that_comes_later_is_on_the_card() -> None:
    server = serve(Echo())
    async with server, http_client(server) as client:
        before = await client.get(CARD_PATH)
        server.cards.grpc_address = "agent.test:50051"
        after = await client.get(CARD_PATH, headers={"If-None-Match": before.headers["etag"]})
        assert after.status_code == 200
        assert {"url": "agent.test:50051", "transport": "GRPC"} in after.json()["additionalInterfaces"]


async def test_the_extended_card_offers_the_same_interfaces() -> None:
    async def provider(request: Request) -> AgentCardConfig:
        return card(version="9.9.9")

    server = serve(Echo(), agent_card=card(), extended_card_provider=provider)
    async with server, http_client(server) as client:
        server.cards.grpc_address = "agent.test:50051"
        public = await get(client, CARD_PATH, "1.0")
        extended = (await client.get("/extendedAgentCard")).json()
        assert extended["version"] == "9.9.9"
        assert extended["supportedInterfaces"] == public["supportedInterfaces"]


@pytest.mark.parametrize("text", ["1.0", " 1.0 ,", "1.0,1.0"])
async def test_the_operator_can_choose_the_versions_too(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ERRANDS_PROTOCOL_VERSIONS", text)
    async with http() as client:
        assert is_new(await get(client, CARD_PATH))
    async with http(protocol_versions=["0.3", "1.0"]) as client:
        assert is_both(await get(client, CARD_PATH))


@pytest.mark.parametrize("versions", [["2.0"], ["1.0", "0.2"], []])
async def test_a_version_that_is_not_spoken_cannot_be_served(versions: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"1\.0, 0\.3"):
        A2AServer(worker=Echo(), agent_card=card(), storage="memory", protocol_versions=versions)
