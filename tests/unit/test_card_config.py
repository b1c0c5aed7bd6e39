"""What a person writes about an agent is refused when it is written, or can be served in every form of the card."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from a2a import types as sdk
from a2a.compat.v0_3 import types as old_sdk
from hypothesis import assume, given
from hypothesis import strategies as st

from errands import A2AServer, AgentCardConfig, CapabilitiesConfig, ConfigurationError, ProviderConfig, SkillConfig
from errands.model.base import encode
from errands.model.card import AgentCard, AgentExtension, HTTPAuthSecurityScheme, SecurityScheme
from errands.model.card_config import ExtensionConfig, SignatureConfig
from errands.server.cards import build_card
from errands.wire.proto.codec import CODECS, read_response
from errands.wire.v0_3_card import from_v0_3, to_v0_3, union
from errands.wire.v1_0 import read_answer
from tests.interaction.agents import Echo
from tests.unit.wire.strategies import paths, replaced

CONFIGS = (AgentCardConfig, CapabilitiesConfig, ExtensionConfig, ProviderConfig, SignatureConfig, SkillConfig)

BEARER = SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="bearer", bearer_format="JWT"))
FLOW = {"tokenUrl": "https://id.example/token", "scopes": {"read_all": "Reads."}}
OAUTH = {"type": "oauth2", "flows": {"clientCredentials": FLOW}}

#: A card with everything on it, as plain values.
WHOLE: dict[str, Any] = {
    "name": "Kitchen",
    "description": "Cooks.",
    "version": "2.0.0",
    "protocol_version": "1.0",
    "skills": [
        {
            "id": "cook",
            "name": "Cook",
            "description": "Cooks.",
            "tags": ["food"],
            "examples": ["Soup!"],
            "input_modes": ["text/plain"],
            "output_modes": ["text/plain"],
            "security": [{"key": ["read"]}],
        }
    ],
    "extensions": [{"uri": "urn:a", "description": "A.", "required": True, "params": {"depth": [{"a": 1.5}]}}],
    "capabilities": {
        "streaming": True,
        "push_notifications": False,
        "state_transition_history": False,
        "extended_agent_card": True,
        "extensions": [{"uri": "urn:b", "params": {"x": None}}],
    },
    "protocol": "http+json",
    "supports_authenticated_extended_card": True,
    "input_modes": ["text/plain"],
    "output_modes": ["text/plain"],
    "provider": {"organization": "Acme", "url": "https://acme.example"},
    "security_schemes": {
        "bearer": {"http_auth_security_scheme": {"scheme": "bearer", "bearer_format": "JWT"}},
        "key": {"type": "apiKey", "in": "header", "name": "X-Key"},
        "oauth": OAUTH,
        "oidc": {"openIdConnectSecurityScheme": {"openIdConnectUrl": "https://id.example"}},
        "mtls": {"type": "mutualTLS"},
    },
    "security": [{"bearer": []}, {"oauth": ["read_all"], "key": []}],
    "icon_url": "https://acme.example/icon.png",
    "documentation_url": "https://acme.example/docs",
    "signatures": [{"protected": "e30", "signature": "x", "header": {"kid": "1"}}],
}


def _over_grpc(version: str) -> tuple[Callable[[AgentCard], Any], Callable[[Any], AgentCard]]:
    rpc = CODECS[version].rpcs["GetExtendedAgentCard"]
    return lambda card: rpc.write(card).SerializeToString(), lambda raw: read_response(rpc, raw)


#: How each dialect serves the card, and how its clients read it.
FORMS: dict[str, tuple[Callable[[AgentCard], Any], Callable[[Any], AgentCard]]] = {
    "1.0": (encode, lambda raw: read_answer(AgentCard, raw)),
    "0.3": (to_v0_3, from_v0_3),
    "both, read as 1.0": (union, lambda raw: read_answer(AgentCard, raw)),
    "both, read as 0.3": (union, from_v0_3),
    "1.0 over gRPC": _over_grpc("1.0"),
    "0.3 over gRPC": _over_grpc("0.3"),
}


def served(config: AgentCardConfig) -> dict[str, AgentCard]:
    """Return the card as the clients of each dialect read it."""
    card = build_card(config, "https://agent.test", versions=["1.0", "0.3"], grpc_address="agent.test:1")
    return {form: read(write(card)) for form, (write, read) in FORMS.items()}


def test_a_whole_card_of_plain_values_is_served_in_every_form() -> None:
    config = AgentCardConfig(**WHOLE)
    assert config.skills == [SkillConfig(**WHOLE["skills"][0])]
    assert WHOLE.keys() == {field.name for field in msgspec.structs.fields(AgentCardConfig)}
    for form, card in served(config).items():
        assert card.name == "Kitchen", form
        assert (card.security_schemes or {}).keys() == WHOLE["security_schemes"].keys(), form
        assert [len(one.schemes) for one in card.security_requirements or []] == [1, 2], form
        # What OAuth calls a scope is not a field of ours.
        flow = card.security_schemes["oauth"].oauth2_security_scheme.flows.client_credentials  # type: ignore[index, union-attr]
        assert flow is not None, form
        assert flow.scopes == {"read_all": "Reads."}, form


class Odd:
    """A type of nobody's."""


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats()
    | st.text(st.characters(), max_size=4)  # surrogates too
    | st.binary(max_size=3)
    | st.sampled_from(
        (Odd(), Odd, datetime.datetime(2026, 1, 1), BEARER, AgentExtension(uri="urn:x"), SecurityScheme())
    ),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.tuples(inner)
        | st.sets(st.integers(), max_size=2)
        | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=2)
    ),
    max_leaves=5,
)


@given(path=st.sampled_from(list(paths(WHOLE))[1:]), value=anything, drop=st.booleans())
def test_any_value_in_any_field_is_refused_by_the_fields_name_or_served_in_every_form(
    path: tuple[Any, ...], value: Any, drop: bool
) -> None:
    assume(not drop or path not in (("name",), ("description",)))  # Python itself says what is missing
    fields, refusal = replaced(WHOLE, path, value, drop=drop), None
    try:
        config = AgentCardConfig(**fields)
        A2AServer(worker=Echo(), agent_card=config, storage="memory")
    except ConfigurationError as error:
        refusal = str(error)
    if refusal is None:
        assert {card.name for card in served(config).values()} == {config.name}
    else:
        assert path[0] in refusal


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_part_of_a_card_names_the_field_that_is_wrong(kind: type[Any]) -> None:
    needed = {field.name: "x" for field in msgspec.structs.fields(kind) if field.required}
    for field in msgspec.structs.fields(kind):
        with pytest.raises(ConfigurationError, match=rf"{kind.__name__}\({field.name}=.*Odd"):
            kind(**{**needed, field.name: Odd()})


def nested(depth: int) -> AgentCardConfig:
    value: Any = 1
    for _ in range(depth):
        value = {"deeper": value}
    return AgentCardConfig(name="A", description="", extensions=[{"uri": "urn:a", "params": {"a": value}}])  # type: ignore[list-item]


def test_what_is_nested_too_deeply_for_protobuf_is_refused() -> None:
    depth = 1
    with pytest.raises(ConfigurationError, match=r"extensions=.*nested"):  # noqa: PT012 - up to the deepest it is served
        while True:
            served(nested(depth))
            depth += 1
    assert depth > 10


def test_what_contains_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["again"] = loop
    with pytest.raises(ConfigurationError, match=r"params=.*nested"):
        ExtensionConfig(uri="urn:a", params=loop)


@pytest.mark.parametrize(
    "scheme",
    [
        BEARER,
        {"httpAuthSecurityScheme": {"scheme": "bearer", "bearerFormat": "JWT"}},
        {"http_auth_security_scheme": {"scheme": "bearer", "bearer_format": "JWT"}},
        {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
        sdk.SecurityScheme(http_auth_security_scheme=sdk.HTTPAuthSecurityScheme(scheme="bearer", bearer_format="JWT")),
        old_sdk.SecurityScheme(root=old_sdk.HTTPAuthSecurityScheme(scheme="bearer", bearer_format="JWT")),
        old_sdk.HTTPAuthSecurityScheme(scheme="bearer", bearer_format="JWT"),
    ],
    ids=["errands", "1.0", "snake", "0.3", "a2a-sdk-1.x", "a2a-sdk-0.3", "a2a-sdk-0.3-bare"],
)
def test_a_security_scheme_may_be_written_in_any_known_form(scheme: Any) -> None:
    config = AgentCardConfig(name="A", description="", security_schemes={"bearer": scheme})
    assert config.security_schemes == {"bearer": BEARER}
    for form, card in served(config).items():
        assert card.security_schemes == {"bearer": BEARER}, form


def test_an_api_key_of_the_old_sdk_keeps_its_place() -> None:
    key: Any = old_sdk.APIKeySecurityScheme(name="X-Key", in_=old_sdk.In.header)
    config = AgentCardConfig(name="A", description="", security_schemes={"key": key})
    for card in served(config).values():
        scheme = (card.security_schemes or {})["key"].api_key_security_scheme
        assert scheme is not None
        assert (scheme.location, scheme.name) == ("header", "X-Key")


@pytest.mark.parametrize(
    "scheme",
    [
        {},
        {"type": "magic"},
        {"scheme": "bearer"},
        SecurityScheme(),
        {"type": "http"},
        "bearer",
        # In 1.0 a scheme has one flow, and readers refuse a card with more.
        {"type": "oauth2", "flows": {"clientCredentials": FLOW, "password": FLOW}},
    ],
)
def test_what_is_no_security_scheme_is_refused_with_the_possible_ones(scheme: Any) -> None:
    with pytest.raises(ConfigurationError, match="security_schemes="):
        AgentCardConfig(name="A", description="", security_schemes={"bearer": scheme})


def test_types_of_the_sdk_stand_for_ours_in_other_fields_too() -> None:
    config = AgentCardConfig(
        name="A",
        description="",
        provider=sdk.AgentProvider(organization="Acme", url="https://acme.example"),
        skills=[old_sdk.AgentSkill(id="a", name="A", description="A.", tags=["t"], input_modes=["text/plain"])],  # type: ignore[list-item]
        capabilities=CapabilitiesConfig(extensions=[sdk.AgentExtension(uri="urn:a", required=True)]),
    )
    assert config.provider == ProviderConfig(organization="Acme", url="https://acme.example")
    assert config.skills == [SkillConfig(id="a", name="A", description="A.", tags=["t"], input_modes=["text/plain"])]
    assert config.capabilities.extensions == [AgentExtension(uri="urn:a", required=True)]


def test_fields_of_the_sdk_that_are_lists_are_taken_as_lists() -> None:
    skill: Any = sdk.AgentSkill(id="a", name="A", description="A.", tags=["t"], input_modes=["text/plain"])
    extension: Any = sdk.AgentExtension(uri="urn:a", params={"levels": [1, {"deep": ["x"]}]})
    config = AgentCardConfig(
        name="A",
        description="",
        skills=[skill],
        extensions=[extension],
        capabilities=sdk.AgentCapabilities(streaming=True, extensions=[extension]),
    )
    params = {"levels": [1, {"deep": ["x"]}]}
    assert config.skills == [SkillConfig(id="a", name="A", description="A.", tags=["t"], input_modes=["text/plain"])]
    assert config.extensions == [ExtensionConfig(uri="urn:a", params=params)]
    assert config.capabilities.extensions == [AgentExtension(uri="urn:a", params=params)]
    assert served(config)


def test_a_card_that_was_changed_after_it_was_written_is_checked_when_the_server_is_made() -> None:
    config = AgentCardConfig(name="A", description="")
    config.skills.append(Odd())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="skills="):
        A2AServer(worker=Echo(), agent_card=config, storage="memory")
