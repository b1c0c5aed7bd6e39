"""The agent card of A2A 0.3, out of the 1.0 card and back."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from errands.errors import VersionNotSupportedError
from errands.model.base import encode
from errands.model.card import (
    AgentCapabilities,
    AgentCard,
    AgentCardSignature,
    AgentExtension,
    AgentInterface,
    AgentProvider,
    AgentSkill,
    APIKeySecurityScheme,
    HTTPAuthSecurityScheme,
    MutualTlsSecurityScheme,
    OAuth2SecurityScheme,
    OAuthFlow,
    OAuthFlows,
    OpenIdConnectSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from errands.wire.dialect import MalformedAnswerError
from errands.wire.v0_3_card import CardV03, from_v0_3, to_v0_3, union

NEEDED = [SecurityRequirement(schemes={"key": StringList(scopes=[]), "oauth": StringList(scopes=["read"])})]
FLOW = OAuthFlow(authorization_url="https://a", token_url="https://t", scopes={"read": "Read"}, pkce_required=True)
CARD = AgentCard(
    name="Clerk",
    description="runs errands",
    version="2.1",
    supported_interfaces=[
        AgentInterface(url="http://agent/", protocol_binding="JSONRPC", protocol_version="1.0"),
        AgentInterface(url="http://agent/", protocol_binding="JSONRPC", protocol_version="0.3"),
        AgentInterface(url="http://agent", protocol_binding="HTTP+JSON", protocol_version="0.3"),
    ],
    capabilities=AgentCapabilities(
        streaming=True,
        push_notifications=False,
        extended_agent_card=True,
        extensions=[AgentExtension(uri="urn:x", required=True, params={"a": 1})],
    ),
    default_input_modes=["text/plain"],
    default_output_modes=["application/json"],
    skills=[AgentSkill(id="s", name="S", description="d", tags=["t"], security_requirements=NEEDED)],
    provider=AgentProvider(url="https://p", organization="P"),
    documentation_url="https://d",
    icon_url="https://i",
    security_schemes={
        "key": SecurityScheme(api_key_security_scheme=APIKeySecurityScheme(location="header", name="X-Key")),
        "bearer": SecurityScheme(
            http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Bearer", bearer_format="JWT", description="ours")
        ),
        "oauth": SecurityScheme(
            oauth2_security_scheme=OAuth2SecurityScheme(
                flows=OAuthFlows(authorization_code=FLOW), oauth2_metadata_url="https://m"
            )
        ),
        "oidc": SecurityScheme(
            open_id_connect_security_scheme=OpenIdConnectSecurityScheme(open_id_connect_url="https://o")
        ),
        "mtls": SecurityScheme(mtls_security_scheme=MutualTlsSecurityScheme()),
    },
    security_requirements=NEEDED,
    signatures=[AgentCardSignature(protected="p", signature="s", header={"kid": "1"})],
)
LEGACY = msgspec.structs.replace(CARD, supported_interfaces=CARD.supported_interfaces[1:])
MODERN = msgspec.structs.replace(CARD, supported_interfaces=CARD.supported_interfaces[:1])


def fields_of(raw: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(raw)
    return fields


def test_the_first_interface_of_0_3_stands_at_the_top() -> None:
    fields = fields_of(to_v0_3(CARD))
    assert fields["protocolVersion"] == "0.3.0"
    assert (fields["url"], fields["preferredTransport"]) == ("http://agent/", "JSONRPC")
    assert fields["additionalInterfaces"] == [
        {"url": "http://agent/", "transport": "JSONRPC"},
        {"url": "http://agent", "transport": "HTTP+JSON"},
    ]


def test_security_is_written_as_in_openapi() -> None:
    fields = fields_of(to_v0_3(CARD))
    assert fields["security"] == [{"key": [], "oauth": ["read"]}] == fields["skills"][0]["security"]
    schemes = fields["securitySchemes"]
    assert schemes["key"] == {"type": "apiKey", "in": "header", "name": "X-Key"}
    assert schemes["bearer"] == {"type": "http", "scheme": "Bearer", "bearerFormat": "JWT", "description": "ours"}
    assert schemes["oauth"]["flows"]["authorizationCode"]["tokenUrl"] == "https://t"
    assert [schemes[name]["type"] for name in ("oauth", "oidc", "mtls")] == ["oauth2", "openIdConnect", "mutualTLS"]


def test_nothing_of_1_0_is_on_a_card_of_0_3() -> None:
    fields = fields_of(to_v0_3(CARD))
    assert "supportedInterfaces" not in fields
    assert "securityRequirements" not in fields
    assert "securityRequirements" not in fields["skills"][0]
    assert "extendedAgentCard" not in fields["capabilities"]
    assert fields["supportsAuthenticatedExtendedCard"] is True
    assert fields["capabilities"]["stateTransitionHistory"] is False


def test_a_card_survives_0_3() -> None:
    assert from_v0_3(to_v0_3(CARD)) == LEGACY


def test_a_card_for_both_versions_is_read_by_both() -> None:
    both = union(CARD)
    assert msgspec.json.decode(both, type=AgentCard) == CARD
    assert from_v0_3(both) == LEGACY


def test_a_card_without_0_3_has_no_field_of_it() -> None:
    assert union(MODERN) == encode(MODERN)
    with pytest.raises(VersionNotSupportedError):
        to_v0_3(MODERN)


def test_the_least_card_is_read() -> None:
    card = from_v0_3(b'{"name":"n","url":"http://x"}')
    assert card.supported_interfaces == [
        AgentInterface(url="http://x", protocol_binding="JSONRPC", protocol_version="0.3")
    ]
    assert card.capabilities == AgentCapabilities()


def test_null_stands_for_what_a_card_does_not_have() -> None:
    others = {field.encode_name: None for field in msgspec.structs.fields(CardV03) if field.name not in ("name", "url")}
    assert from_v0_3(encode({"name": "n", "url": "http://x", **others})) == from_v0_3(b'{"name":"n","url":"http://x"}')
    skill = {"id": "s", "name": "n", "description": None, "tags": None, "examples": None, "security": [{"key": None}]}
    [read] = from_v0_3(encode({"name": "n", "url": "http://x", "skills": [skill]})).skills
    assert (read.description, read.tags, read.examples) == ("", [], None)
    assert [list(needed.schemes) for needed in read.security_requirements or ()] == [["key"]]


def test_security_as_the_javascript_sdk_writes_it_is_read() -> None:
    fields = fields_of(to_v0_3(CARD)) | {
        "securitySchemes": msgspec.to_builtins(CARD.security_schemes),
        "security": [{"schemes": {"key": {}, "oauth": {"list": ["read"]}}}],
    }
    assert from_v0_3(encode(fields)) == LEGACY


def test_a_security_scheme_nobody_knows_is_passed_over() -> None:
    card = from_v0_3(b'{"name":"n","url":"u","securitySchemes":{"x":{"type":"magic"},"m":{"type":"mutualTLS"}}}')
    assert card.security_schemes == {"m": SecurityScheme(mtls_security_scheme=MutualTlsSecurityScheme())}


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"[]", b"null", b"{}", b'{"name":"n"}', b'{"name":"n","url":1}', b"\xff", b'{"a":' * 9999),
        b'{"name":"n","url":"u","securitySchemes":{"k":{"type":"apiKey"}}}',
        b'{"name":"n","url":"u","security":[{"k":1}]}',
        b'{"name":"n","url":"u","security":[{"schemes":{"k":1}}]}',
    ],
)
def test_what_is_no_card_is_refused(raw: bytes) -> None:
    with pytest.raises(MalformedAnswerError):
        from_v0_3(raw)
