"""The agent card of A2A 0.3, out of the 1.0 card and back, and one document that readers of both versions understand.

In 0.3 one interface stands at the top (`url`, `preferredTransport`) and the others beside it, security is written as
in OpenAPI, and the extended card is announced at the top. Everything else is spelled alike.
"""

from __future__ import annotations

from typing import Any

import msgspec

from errands.errors import VersionNotSupportedError
from errands.model.base import Model, encode
from errands.model.card import (
    SCHEME_FIELDS,
    AgentCapabilities,
    AgentCard,
    AgentCardSignature,
    AgentInterface,
    AgentProvider,
    AgentSkill,
    SecurityRequirement,
    SecurityScheme,
    modern_scheme,
)
from errands.wire.dialect import Json, MalformedAnswerError

VERSION = "0.3"
PROTOCOL_VERSION = "0.3.0"

_DEFAULT_TRANSPORT = "JSONRPC"
#: The name under which a card of PraisonAI's gives its interface: such a card names no version and no transport.
PRAISONAI_TRANSPORT = "PRAISONAI"

#: As OpenAPI writes it, `{name: scopes}`, or as the JavaScript SDK does, `{"schemes": {name: {"list": scopes}}}`.
Security = list[dict[str, Any]]


class _Interface(Model):
    url: str
    transport: str


class _Skill(AgentSkill):
    # Cards of 0.3 are seen without these two.
    description: str = ""
    tags: list[str] = []
    security: Security | None = None


class _Card(Model):
    """What a client needs of a 0.3 card; only the address and the name must be there."""

    name: str
    url: str
    description: str = ""
    version: str = ""
    protocol_version: str | None = None
    preferred_transport: str | None = None
    additional_interfaces: list[_Interface] | None = None
    capabilities: AgentCapabilities = msgspec.field(default_factory=AgentCapabilities)
    default_input_modes: list[str] = []
    default_output_modes: list[str] = []
    skills: list[_Skill] = []
    #: PraisonAI's has neither an organization nor an address.
    provider: dict[str, Any] | None = None
    documentation_url: str | None = None
    icon_url: str | None = None
    security_schemes: dict[str, dict[str, Any]] | None = None
    security: Security | None = None
    supports_authenticated_extended_card: bool | None = None
    signatures: list[AgentCardSignature] | None = None


_DECODER = msgspec.json.Decoder(_Card)


def to_v0_3(card: AgentCard) -> bytes:
    """The card as a 0.3 client expects it. Raises `VersionNotSupportedError` when no interface of it speaks 0.3."""
    return encode(_legacy_fields(card))


def union(card: AgentCard) -> bytes:
    """The 1.0 card with the 0.3 fields beside it; the 1.0 card alone when no interface of it speaks 0.3.

    Readers of either version pass over the fields of the other, which is why no field may mean two things.
    """
    if not _legacy_interfaces(card):
        return encode(card)
    modern, legacy = msgspec.to_builtins(card), _legacy_fields(card)
    both = modern | legacy
    both["capabilities"] = modern["capabilities"] | legacy["capabilities"]
    both["skills"] = [new | old for new, old in zip(modern["skills"], legacy["skills"], strict=True)]
    if schemes := legacy.get("securitySchemes"):
        both["securitySchemes"] = {name: modern["securitySchemes"][name] | old for name, old in schemes.items()}
    return encode(both)


def from_v0_3(raw: Json) -> AgentCard:
    """A 0.3 card as a 1.0 one whose interfaces all speak 0.3. Raises `MalformedAnswerError` when it is none."""
    try:
        card = _DECODER.decode(raw)
        return _modern(card)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedAnswerError(f"not an agent card of A2A 0.3: {error}") from None


def _legacy_interfaces(card: AgentCard) -> list[AgentInterface]:
    return [i for i in card.supported_interfaces if i.protocol_version.startswith(VERSION)]


def _legacy_fields(card: AgentCard) -> dict[str, Any]:
    interfaces = _legacy_interfaces(card)
    if not interfaces:
        raise VersionNotSupportedError("No interface on the agent card speaks A2A 0.3")
    fields: dict[str, Any] = msgspec.to_builtins(card)
    del fields["supportedInterfaces"]
    extended = fields["capabilities"].pop("extendedAgentCard", False)
    # No agent of ours records the changes of a task's state in its history.
    fields["capabilities"]["stateTransitionHistory"] = False
    fields |= {
        "protocolVersion": PROTOCOL_VERSION,
        "url": interfaces[0].url,
        "preferredTransport": interfaces[0].protocol_binding,
        "additionalInterfaces": [{"url": i.url, "transport": i.protocol_binding} for i in interfaces],
        "skills": [
            _legacy_security(skill, skill_fields)
            for skill, skill_fields in zip(card.skills, fields["skills"], strict=True)
        ],
        "supportsAuthenticatedExtendedCard": extended,
    }
    if card.security_schemes:
        fields["securitySchemes"] = {name: _legacy_scheme(scheme) for name, scheme in card.security_schemes.items()}
    return _legacy_security(card, fields)


def _legacy_security(holder: AgentCard | AgentSkill, fields: dict[str, Any]) -> dict[str, Any]:
    """`fields` of a card or a skill with its requirements as OpenAPI writes them."""
    fields.pop("securityRequirements", None)
    if holder.security_requirements:
        fields["security"] = [
            {name: scopes.scopes for name, scopes in requirement.schemes.items()}
            for requirement in holder.security_requirements
        ]
    return fields


def _legacy_scheme(scheme: SecurityScheme) -> dict[str, Any]:
    modern = msgspec.to_builtins(scheme)
    for kind, field in SCHEME_FIELDS.items():
        if field in modern:
            fields: dict[str, Any] = {"type": kind} | modern[field]
            if kind == "apiKey":
                fields["in"] = fields.pop("location")
            return fields
    return {}


def _modern(card: _Card) -> AgentCard:
    capabilities = card.capabilities
    if card.supports_authenticated_extended_card is not None:
        capabilities.extended_agent_card = card.supports_authenticated_extended_card
    return AgentCard(
        name=card.name,
        description=card.description,
        version=card.version,
        supported_interfaces=_modern_interfaces(card),
        capabilities=capabilities,
        default_input_modes=card.default_input_modes,
        default_output_modes=card.default_output_modes,
        skills=[_modern_skill(skill) for skill in card.skills],
        provider=None if card.provider is None else _modern_provider(card.provider),
        documentation_url=card.documentation_url,
        icon_url=card.icon_url,
        security_schemes=_modern_schemes(card.security_schemes),
        security_requirements=_modern_security(card.security),
        signatures=card.signatures,
    )


def _modern_interfaces(card: _Card) -> list[AgentInterface]:
    """The preferred interface first; the list beside it may name it again."""
    transport = PRAISONAI_TRANSPORT if _is_praisonai(card) else _DEFAULT_TRANSPORT
    pairs = [(card.url, card.preferred_transport or transport)]
    pairs += [(i.url, i.transport) for i in card.additional_interfaces or ()]
    return [
        AgentInterface(url=url, protocol_binding=transport, protocol_version=VERSION)
        for url, transport in dict.fromkeys(pairs)
    ]


def _is_praisonai(card: _Card) -> bool:
    says_what_it_speaks = card.protocol_version or card.preferred_transport or card.additional_interfaces
    return not says_what_it_speaks and str((card.provider or {}).get("name")).lower().startswith("praison")


def _modern_provider(fields: dict[str, Any]) -> AgentProvider:
    organization = fields.get("organization") or fields.get("name") or ""
    return AgentProvider(organization=str(organization), url=str(fields.get("url") or ""))


def _modern_skill(skill: _Skill) -> AgentSkill:
    return AgentSkill(
        id=skill.id,
        name=skill.name,
        description=skill.description,
        tags=skill.tags,
        examples=skill.examples,
        input_modes=skill.input_modes,
        output_modes=skill.output_modes,
        security_requirements=_modern_security(skill.security),
    )


def _modern_security(security: Security | None) -> list[SecurityRequirement] | None:
    if security is None:
        return None
    return [_modern_requirement(requirement) for requirement in security]


def _modern_requirement(requirement: dict[str, Any]) -> SecurityRequirement:
    schemes = requirement.get("schemes")
    if isinstance(schemes, dict):
        requirement = {name: s.get("list", []) if isinstance(s, dict) else s for name, s in schemes.items()}
    fields = {"schemes": {name: {"list": scopes} for name, scopes in requirement.items()}}
    return msgspec.convert(fields, SecurityRequirement)


def _modern_schemes(schemes: dict[str, dict[str, Any]] | None) -> dict[str, SecurityScheme] | None:
    """The schemes of a kind that 1.0 has too; the others are passed over, as nobody could use them."""
    if schemes is None:
        return None
    found = {name: _modern_scheme(fields) for name, fields in schemes.items()}
    return {name: scheme for name, scheme in found.items() if scheme is not None}


def _modern_scheme(fields: dict[str, Any]) -> SecurityScheme | None:
    # The JavaScript SDK writes schemes as 1.0 does.
    scheme = msgspec.convert(modern_scheme(fields), SecurityScheme)
    return None if scheme == SecurityScheme() else scheme
