"""Agent cards of the official SDK, adapted to `AgentCardConfig`.

An `AgentCardConfig` has no addresses: the server adds those at which it is reached. So only the first binding is taken
from the interfaces of an SDK's card, and a signed card is refused, because its signature covers the addresses.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from errands.errors import ConfigurationError
from errands.interop.executors import descends
from errands.model.card import AgentCard, AgentSkill, SecurityRequirement
from errands.model.card_config import AgentCardConfig, CapabilitiesConfig, ProviderConfig, SkillConfig
from errands.wire.dialect import MalformedAnswerError
from errands.wire.v0_3_card import from_v0_3

_PROTOBUF_CARD = "lf.a2a.v1.AgentCard"
#: The pydantic cards: those of 0.3 itself, and those that 1.x has for the sake of 0.3.
_PYDANTIC_CARDS = {"a2a.types", "a2a.compat.v0_3.types"}
#: What the SDK's cards often have instead of a media type. The SDK never checks it; we check messages against it.
_MEDIA_TYPES = {
    "text": "text/plain",
    "data": "application/json",
    "json": "application/json",
    "file": "*/*",
    "image": "image/*",
    "audio": "audio/*",
    "video": "video/*",
}
#: The bindings that our card may list first.
_PREFERRED = {"JSONRPC": "jsonrpc", "HTTP+JSON": "http+json"}


class CardLike(Protocol):
    """What `A2AServer(agent_card=...)` takes: our AgentCardConfig and the SDK's AgentCard begin alike."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def version(self) -> str: ...


def adapt_card(card: object) -> AgentCardConfig:
    """Return the checked configuration of a card, ours or the SDK's. Raises `ConfigurationError`."""
    if isinstance(card, AgentCardConfig):
        return msgspec.structs.replace(card)  # checks it again, because it may have been changed
    try:
        read = _read(card)
    except (ValueError, MalformedAnswerError) as error:
        raise ConfigurationError(f"agent_card cannot be used: {error}") from None
    if read is None:
        kind = type(card).__name__
        raise ConfigurationError(
            f"agent_card must be an errands.AgentCardConfig or an AgentCard of the a2a package, not {kind}"
        )
    return _config(read)


def _read(card: Any) -> AgentCard | None:
    descriptor = getattr(card, "DESCRIPTOR", None)
    if descriptor is not None and descriptor.full_name == _PROTOBUF_CARD:
        from errands.wire.proto.codec import read_card  # noqa: PLC0415 - the a2a package is an extra

        return read_card(card)
    if descends(type(card), "AgentCard", _PYDANTIC_CARDS):
        return from_v0_3(card.model_dump_json(by_alias=True, exclude_none=True).encode())
    return None


def _config(card: AgentCard) -> AgentCardConfig:
    if card.signatures:
        raise ConfigurationError(
            "agent_card is signed, and the signature covers the addresses on the card, but errands writes its own "
            "addresses. Pass the card without signatures"
        )
    if not card.name:
        raise ConfigurationError("agent_card has no name")
    capabilities, provider = card.capabilities, card.provider
    first = next((one.protocol_binding for one in card.supported_interfaces), "JSONRPC")
    config = AgentCardConfig(
        name=card.name,
        description=card.description,
        skills=[_skill(skill) for skill in card.skills],
        capabilities=CapabilitiesConfig(
            streaming=bool(capabilities.streaming),
            push_notifications=capabilities.push_notifications,
            extended_agent_card=bool(capabilities.extended_agent_card),
            extensions=capabilities.extensions or None,
        ),
        protocol=_PREFERRED.get(first.upper(), "jsonrpc"),
        provider=provider if provider is None else ProviderConfig(organization=provider.organization, url=provider.url),
        security_schemes=card.security_schemes or None,
        security=_security(card.security_requirements),
        icon_url=card.icon_url or None,
        documentation_url=card.documentation_url or None,
    )
    config.version = card.version or config.version
    config.input_modes = _modes(card.default_input_modes) or config.input_modes
    config.output_modes = _modes(card.default_output_modes) or config.output_modes
    return config


def _skill(skill: AgentSkill) -> SkillConfig:
    return SkillConfig(
        id=skill.id,
        name=skill.name,
        description=skill.description,
        tags=skill.tags,
        examples=skill.examples or [],
        input_modes=_modes(skill.input_modes) or None,
        output_modes=_modes(skill.output_modes) or None,
        security=_security(skill.security_requirements),
    )


def _modes(modes: list[str] | None) -> list[str]:
    """Return the media types without duplicates."""
    return list(dict.fromkeys(_MEDIA_TYPES.get(mode.lower(), mode) for mode in modes or ()))


def _security(requirements: list[SecurityRequirement] | None) -> list[dict[str, list[str]]] | None:
    if not requirements:
        return None
    return [{name: scopes.scopes for name, scopes in one.schemes.items()} for one in requirements]
