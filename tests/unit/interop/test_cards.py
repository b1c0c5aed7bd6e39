"""The official SDK's cards as configurations of ours."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.compat.v0_3 import types as v0_3
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentCardSignature,
    AgentExtension,
    AgentInterface,
    AgentProvider,
    AgentSkill,
    APIKeySecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)

from errands import AgentCardConfig, CapabilitiesConfig, ConfigurationError, ProviderConfig, SkillConfig
from errands.interop import adapt_card
from errands.model.card import AgentExtension as OurExtension
from errands.model.card import APIKeySecurityScheme as OurApiKey
from errands.model.card import SecurityScheme as OurScheme

EXTENSION = "https://example.com/ext/v1"


def protobuf_card(**changes: Any) -> AgentCard:
    given: dict[str, Any] = {
        "name": "Weather",
        "description": "Tells the weather.",
        "version": "2.1.0",
        "supported_interfaces": [
            AgentInterface(url="http://elsewhere/", protocol_binding="HTTP+JSON", protocol_version="1.0"),
            AgentInterface(url="http://elsewhere/", protocol_binding="JSONRPC", protocol_version="1.0"),
        ],
        "capabilities": AgentCapabilities(
            streaming=True, extended_agent_card=True, extensions=[AgentExtension(uri=EXTENSION, required=True)]
        ),
        "default_input_modes": ["text/plain"],
        "default_output_modes": ["application/json"],
        "skills": [
            AgentSkill(
                id="ask",
                name="Ask",
                description="Asks.",
                tags=["weather"],
                examples=["Rain?"],
                input_modes=["text/plain"],
            )
        ],
        "provider": AgentProvider(organization="Acme", url="https://acme.example"),
        "documentation_url": "https://acme.example/docs",
        "icon_url": "https://acme.example/icon.png",
        "security_schemes": {
            "key": SecurityScheme(api_key_security_scheme=APIKeySecurityScheme(location="header", name="X-Key"))
        },
        "security_requirements": [SecurityRequirement(schemes={"key": StringList(list=["read"])})],
    }
    return AgentCard(**{**given, **changes})


def pydantic_card(**changes: Any) -> v0_3.AgentCard:
    given: dict[str, Any] = {
        "name": "Weather",
        "description": "Tells the weather.",
        "version": "2.1.0",
        "url": "http://elsewhere/",
        "preferred_transport": "HTTP+JSON",
        "capabilities": v0_3.AgentCapabilities(
            streaming=True, extensions=[v0_3.AgentExtension(uri=EXTENSION, required=True)]
        ),
        "supports_authenticated_extended_card": True,
        "default_input_modes": ["text/plain"],
        "default_output_modes": ["application/json"],
        "skills": [
            v0_3.AgentSkill(
                id="ask",
                name="Ask",
                description="Asks.",
                tags=["weather"],
                examples=["Rain?"],
                input_modes=["text/plain"],
            )
        ],
        "provider": v0_3.AgentProvider(organization="Acme", url="https://acme.example"),
        "documentation_url": "https://acme.example/docs",
        "icon_url": "https://acme.example/icon.png",
        "security_schemes": {
            "key": v0_3.SecurityScheme(root=v0_3.APIKeySecurityScheme(in_=v0_3.In.header, name="X-Key"))
        },
        "security": [{"key": ["read"]}],
    }
    return v0_3.AgentCard(**{**given, **changes})


@pytest.mark.parametrize("card", [protobuf_card(), pydantic_card()], ids=["1.x", "0.3"])
def test_everything_but_the_addresses_is_taken_over(card: Any) -> None:
    assert adapt_card(card) == AgentCardConfig(
        name="Weather",
        description="Tells the weather.",
        version="2.1.0",
        protocol="http+json",
        capabilities=CapabilitiesConfig(
            streaming=True, extended_agent_card=True, extensions=[OurExtension(uri=EXTENSION, required=True)]
        ),
        input_modes=["text/plain"],
        output_modes=["application/json"],
        skills=[
            SkillConfig(
                id="ask",
                name="Ask",
                description="Asks.",
                tags=["weather"],
                examples=["Rain?"],
                input_modes=["text/plain"],
            )
        ],
        provider=ProviderConfig(organization="Acme", url="https://acme.example"),
        documentation_url="https://acme.example/docs",
        icon_url="https://acme.example/icon.png",
        security_schemes={"key": OurScheme(api_key_security_scheme=OurApiKey(location="header", name="X-Key"))},
        security=[{"key": ["read"]}],
    )


def test_what_a_card_leaves_out_is_as_we_have_it() -> None:
    config = adapt_card(AgentCard(name="Plain", description="A plain one."))
    assert config == AgentCardConfig(name="Plain", description="A plain one.")


def test_kinds_of_content_become_media_types() -> None:
    config = adapt_card(
        protobuf_card(default_input_modes=["text", "text/plain", "Image"], default_output_modes=["file"])
    )
    assert (config.input_modes, config.output_modes) == (["text/plain", "image/*"], ["*/*"])


def test_a_card_for_grpc_names_json_rpc_first() -> None:
    interface = AgentInterface(url="elsewhere:1", protocol_binding="GRPC", protocol_version="1.0")
    assert adapt_card(protobuf_card(supported_interfaces=[interface])).protocol == "jsonrpc"


def test_a_configuration_of_ours_stays_as_it_is() -> None:
    config = AgentCardConfig(name="Ours", description="Our own.")
    assert adapt_card(config) == config


@pytest.mark.parametrize(
    "card",
    [
        protobuf_card(signatures=[AgentCardSignature(protected="p", signature="s")]),
        pydantic_card(signatures=[v0_3.AgentCardSignature(protected="p", signature="s")]),
    ],
    ids=["1.x", "0.3"],
)
def test_a_signed_card_is_refused_since_its_addresses_will_be_others(card: Any) -> None:
    with pytest.raises(ConfigurationError, match="without signatures"):
        adapt_card(card)


def test_a_card_that_cannot_be_read_is_refused_with_the_reason() -> None:
    class Strange(v0_3.AgentCard):
        def model_dump_json(self, **_options: Any) -> str:
            return "{}"

    with pytest.raises(ConfigurationError, match="agent_card cannot be used: not an agent card"):
        adapt_card(Strange(**dict(pydantic_card())))


def test_a_card_without_a_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="has no name"):
        adapt_card(AgentCard(description="Nameless."))


def test_anything_else_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"must be an errands.AgentCardConfig or an AgentCard .*, not dict"):
        adapt_card({"name": "A dict"})
