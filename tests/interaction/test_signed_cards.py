"""A server with keys signs its card in every form, and publishes the keys; a client can require that."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc.jwk import ECKey

from errands import A2AClient, A2AServer, AgentCardConfig, SigningKey
from errands.client import A2AClientError, CardSignatureError, CardVerifier
from errands.client.discovery import read_card
from errands.errors import ConfigurationError
from errands.model.card import AgentCard
from errands.server.http import CARD_PATH, JWKS_PATH, OLDER_CARD_PATH
from errands.testing import BASE_URL, http_client, serve
from errands.wire.card_signing import TrustedKeys, UnverifiedCardError, key_addresses, verify_card
from tests.interaction.agents import Echo, card

pytestmark = pytest.mark.anyio

PRIVATE = ECKey.generate_key("P-256")
OTHER = ECKey.generate_key("P-256")
KEY = SigningKey(PRIVATE.as_dict(private=True), kid="key-1", jku=JWKS_PATH)


async def extended(_: Any) -> Any:
    return AgentCardConfig(name="Extended", description="For callers that are known.")


def signing_server(*keys: SigningKey, **options: Any) -> A2AServer:
    options.setdefault("public_url", BASE_URL)
    return serve(Echo(), agent_card=card(), signing=keys or [KEY], extended_card_provider=extended, **options)


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    server = signing_server()
    async with server, http_client(server) as client:
        yield client


@pytest.mark.parametrize("path", [CARD_PATH, OLDER_CARD_PATH])
@pytest.mark.parametrize("version", [None, "1.0", "0.3"])
async def test_the_card_is_signed_in_every_form(http: httpx.AsyncClient, path: str, version: str | None) -> None:
    raw = (await http.get(path, headers={} if version is None else {"A2A-Version": version})).content
    keys = TrustedKeys((await http.get(JWKS_PATH)).content)
    assert verify_card(read_card(raw), keys, document=raw).jku == BASE_URL + JWKS_PATH
    changed = raw.replace(b'"streaming":true', b'"streaming":false')
    assert changed != raw
    with pytest.raises(UnverifiedCardError, match="the card was changed"):
        verify_card(read_card(changed), keys, document=changed)


async def test_the_card_is_signed_once_for_all_requests(http: httpx.AsyncClient) -> None:
    assert (await http.get(CARD_PATH)).content == (await http.get(CARD_PATH)).content


async def test_no_card_is_signed_for_an_address_that_the_client_made_up() -> None:
    server = signing_server(public_url=None)
    async with server, http_client(server) as client:
        for server_host, host, is_signed in (
            ("127.0.0.1", "evil.example", False),
            ("127.0.0.1", "127.0.0.1:80", True),
            ("localhost", "localhost", True),
            ("192.0.2.1", "localhost", False),  # a stranger wants a card for something on the reader's machine
            ("192.0.2.1", "127.0.0.1:9999", False),
        ):
            answer = await client.get(f"http://{server_host}{CARD_PATH}", headers={"Host": host})
            assert ("signatures" in answer.json()) is is_signed, (server_host, host)


@pytest.mark.parametrize(
    "forwarded", [{"X-Forwarded-Host": "localhost"}, {"X-Forwarded-Host": "evil.example\\@localhost"}]
)
async def test_a_card_with_a_forwarded_address_is_not_signed(forwarded: dict[str, str]) -> None:
    server = signing_server(public_url=None, trust_forwarded=True)
    async with server, http_client(server) as client:
        answer = await client.get(f"http://127.0.0.1{CARD_PATH}", headers=forwarded)
        assert "signatures" not in answer.json()


async def test_without_keys_there_is_no_key_set() -> None:
    server = serve(Echo(), agent_card=card())
    async with server, http_client(server) as client:
        assert (await client.get(JWKS_PATH)).status_code == 404
        assert "signatures" not in (await client.get(CARD_PATH)).json()


async def test_keys_come_from_files_that_the_settings_name(tmp_path: Path) -> None:
    first, second = tmp_path / "first.pem", tmp_path / "second.json"
    first.write_bytes(PRIVATE.as_pem(private=True))
    second.write_text(json.dumps(OTHER.as_dict(private=True)))
    server = serve(Echo(), agent_card=card(), card_signing_keys=f"{first}, {second}", card_signing_jku=JWKS_PATH)
    async with server, http_client(server) as client:
        found = await client.get(f"http://localhost{CARD_PATH}")
        read = read_card(found.content)
        assert verify_card(read, TrustedKeys(PRIVATE.as_pem(private=False)))
        assert verify_card(read, TrustedKeys(OTHER.as_dict(private=False)))
        assert key_addresses(read) == ["http://localhost/.well-known/jwks.json"]
        assert len((await client.get(JWKS_PATH)).json()["keys"]) == 2


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"card_signing_keys": "missing.pem"}, "missing.pem cannot be read"),
        ({"card_signing_jku": "https://a/jwks.json"}, "card_signing_jku needs a key"),
        ({"signing": ["key.pem"]}, "SigningKey objects"),
        ({"signing": [KEY, KEY]}, "the same kid"),
        ({"signing": [KEY] * 6}, "readers take at most 5"),
    ],
)
def test_wrong_keys_are_reported_when_the_server_is_made(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        serve(Echo(), **options)


# The client


@pytest.mark.parametrize(
    ("protocol", "version"), [("jsonrpc", "1.0"), ("http+json", "1.0"), ("jsonrpc", "0.3"), ("http+json", "0.3")]
)
async def test_a_client_that_requires_a_signature_gets_it_on_both_cards(protocol: str, version: str) -> None:
    server = signing_server()
    trust = PRIVATE.as_pem(private=False)
    async with server, http_client(server) as http:
        async with A2AClient(
            BASE_URL, httpx_client=http, verify_card=trust, protocol=protocol, version=version
        ) as client:
            assert (await client.get_extended_card()).name == "Extended"
        wrong = A2AClient(BASE_URL, httpx_client=http, verify_card=OTHER.as_pem(private=False))
        with pytest.raises(CardSignatureError, match="not made with the key 'key-1'"):
            await wrong.connect()


async def test_a_card_without_a_signature_is_refused() -> None:
    server = serve(Echo(), agent_card=card())
    async with server, http_client(server) as http:
        with pytest.raises(CardSignatureError, match="has no signature"):
            await A2AClient(BASE_URL, httpx_client=http, verify_card=KEY.public_jwk()).connect()


async def test_the_key_set_that_a_card_names_is_trusted_only_if_it_is_allowed() -> None:
    server = signing_server(public_url="http://localhost")
    async with server, http_client(server) as http:
        raw = (await http.get(CARD_PATH)).content
        read = read_card(raw)
        with pytest.raises(CardSignatureError, match=r"/.well-known/jwks.json' that .* is not an allowed one"):
            await CardVerifier(OTHER.as_dict(private=False) | {"kid": "x"}).verify(http, read, raw)
        for allowed in ("http://localhost", "http://localhost/.well-known/jwks.json"):
            assert (await CardVerifier(allowed_jku=[allowed]).verify(http, read, raw)).kid == "key-1"


async def test_keys_are_fetched_again_when_the_signer_has_a_new_one() -> None:
    now = 0.0
    verifier = CardVerifier(jwks_url="http://localhost/.well-known/jwks.json", clock=lambda: now)
    old, new = KEY, SigningKey(OTHER.as_dict(private=True), kid="key-2")

    async def verified(*keys: SigningKey) -> str:
        server = signing_server(*keys)
        async with server, http_client(server) as http:
            raw = (await http.get(CARD_PATH)).content
            return (await verifier.verify(http, read_card(raw), raw)).kid

    assert await verified(old) == "key-1"
    now = 11
    assert await verified(new) == "key-2"
    with pytest.raises(CardSignatureError, match="'key-1' is not among the trusted ones"):
        await verified(old)  # it was asked just now, so it is not asked again


@pytest.mark.parametrize(
    ("status", "body", "headers", "problem"),
    [
        (302, b"", {"Location": "http://169.254.169.254/"}, "HTTP 302"),
        (200, b"[]", {}, "neither PEM nor a JWK"),
        (200, b'{"keys": [%s]}' % (b"1," * 200_000 + b"1"), {}, "more than 262,144 bytes"),
    ],
    ids=["redirect", "garbage", "giant"],
)
async def test_a_key_set_that_cannot_be_used_is_an_error(
    status: int, body: bytes, headers: dict[str, str], problem: str
) -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(status, content=body, headers=headers)

    signed = AgentCard(
        name="A",
        description="",
        supported_interfaces=[],
        version="",
        capabilities=read_card(b'{"name":"A","supportedInterfaces":[]}').capabilities,
        default_input_modes=[],
        default_output_modes=[],
        skills=[],
    )
    async with httpx.AsyncClient(
        transport=httpx.MockTransport(answer), headers={"Authorization": "Bearer secret"}, cookies={"s": "secret"}
    ) as http:
        with pytest.raises(A2AClientError, match=problem):
            await CardVerifier(jwks_url="https://keys.example/").verify(http, signed)
    assert [str(request.url) for request in seen] == ["https://keys.example/"]
    assert "secret" not in str(seen[0].headers.raw)


@pytest.mark.parametrize(
    "url", ["http://keys.example/", "ftp://keys.example/", "https://a:b@keys.example/", "https://"]
)
def test_a_key_set_is_fetched_only_over_https(url: str) -> None:
    with pytest.raises(ConfigurationError, match="expected https"):
        CardVerifier(jwks_url=url)
