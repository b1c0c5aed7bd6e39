"""The agent card of A2A 0.3: written from the 1.0 card, read into one, and a document that readers of both understand.

In 0.3 one interface is at the top (`url`, `preferredTransport`) and the others are in a list, security is written as in
OpenAPI, and the extended card is announced at the top. Everything else is spelled alike.
"""

from __future__ import annotations

from typing import Any

import msgspec

from errands.errors import VersionNotSupportedError
from errands.model import card as cards
from errands.model.base import A2AObject, encode
from errands.wire.dialect import Json, MalformedAnswerError
from errands.wire.v1_0 import from_protojson, normalize

VERSION = "0.3"
PROTOCOL_VERSION = "0.3.0"

#: The transport of the interface on a card of PraisonAI: such a card names no version and no transport.
PRAISONAI_TRANSPORT = "PRAISONAI"

#: As OpenAPI writes it, `{name: scopes}`, or as the JavaScript SDK does, `{"schemes": {name: {"list": scopes}}}`.
Security = list[dict[str, Any]]


class InterfaceV03(A2AObject):
    url: str
    transport: str


class SkillV03(cards.AgentSkill):
    # Some cards of 0.3 do not have these two.
    description: str = ""
    tags: list[str] = []
    security: Security | None = None


class CardV03(A2AObject):
    """What a client needs of a 0.3 card; only the address and the name are required."""

    name: str
    url: str
    description: str = ""
    version: str = ""
    protocol_version: str | None = None
    preferred_transport: str | None = None
    additional_interfaces: list[InterfaceV03] | None = None
    capabilities: cards.AgentCapabilities = msgspec.field(default_factory=cards.AgentCapabilities)
    default_input_modes: list[str] = []
    default_output_modes: list[str] = []
    skills: list[SkillV03] = []
    #: PraisonAI's has neither an organization nor an address.
    provider: dict[str, Any] | None = None
    documentation_url: str | None = None
    icon_url: str | None = None
    security_schemes: dict[str, dict[str, Any]] | None = None
    security: Security | None = None
    supports_authenticated_extended_card: bool | None = None
    signatures: list[cards.AgentCardSignature] | None = None


_DECODER = msgspec.json.Decoder(CardV03)


def to_v0_3(card: cards.AgentCard) -> bytes:
    """Return the card as a 0.3 client expects it. Raises `VersionNotSupportedError` if no interface speaks 0.3."""
    return encode(old_fields(card))


def union(card: cards.AgentCard) -> bytes:
    """Return the 1.0 card with the 0.3 fields beside it, or the 1.0 card alone when no interface speaks 0.3.

    Readers of either version skip the fields of the other, so no field may mean two things.
    """
    if not _old_interfaces(card):
        return encode(card)
    new, old = msgspec.to_builtins(card), old_fields(card)
    both = new | old
    both["capabilities"] = new["capabilities"] | old["capabilities"]
    both["skills"] = [one | other for one, other in zip(new["skills"], old["skills"], strict=True)]
    if schemes := old.get("securitySchemes"):
        both["securitySchemes"] = {name: new["securitySchemes"][name] | scheme for name, scheme in schemes.items()}
    return encode(both)


def _read(raw: Json) -> CardV03:
    try:
        return _DECODER.decode(raw)
    except msgspec.ValidationError:
        # Some agents write null for what they do not have.
        return msgspec.convert(normalize(msgspec.json.decode(raw), CardV03), CardV03)


def from_v0_3(raw: Json) -> cards.AgentCard:
    """Return a 0.3 card as a 1.0 one whose interfaces all speak 0.3. Raises `MalformedAnswerError`."""
    try:
        card = _read(raw)
        provider = card.provider or {}
        names_one = card.protocol_version or card.preferred_transport or card.additional_interfaces
        is_praisonai = not names_one and str(provider.get("name")).lower().startswith("praison")
        transport = PRAISONAI_TRANSPORT if is_praisonai else "JSONRPC"
        values = modern_fields(msgspec.to_builtins(card), transport=transport)
        if card.provider is not None:
            organization = provider.get("organization") or provider.get("name") or ""
            values["provider"] = {"organization": str(organization), "url": str(provider.get("url") or "")}
        return from_protojson(cards.AgentCard, values)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedAnswerError(f"not an agent card of A2A 0.3: {error}") from None


def modern_fields(values: dict[str, Any], *, transport: str = "JSONRPC", version: str = VERSION) -> dict[str, Any]:
    """Return the fields of a 0.3 card as those of 1.0. `transport` is that of a card which names none."""
    preferred = {"url": values.pop("url", ""), "transport": values.pop("preferredTransport", None) or transport}
    interfaces = [preferred, *(values.pop("additionalInterfaces", None) or ())]
    # The list may name the preferred interface again.
    values["supportedInterfaces"] = [
        {"url": url, "protocolBinding": binding, "protocolVersion": version}
        for url, binding in dict.fromkeys((one.get("url", ""), one.get("transport", "")) for one in interfaces)
    ]
    if (extended := values.pop("supportsAuthenticatedExtendedCard", None)) is not None:
        values.setdefault("capabilities", {})["extendedAgentCard"] = extended
    for holder in (values, *values.get("skills", ())):
        if (security := holder.pop("security", None)) is not None:
            # The JavaScript SDK writes requirements as 1.0 does.
            needed = [one["schemes"] if isinstance(one.get("schemes"), dict) else one for one in security]
            holder["securityRequirements"] = [
                {
                    "schemes": {
                        name: one if isinstance(one, dict) else {"list": one or []} for name, one in schemes.items()
                    }
                }
                for schemes in needed
            ]
    if (schemes := values.get("securitySchemes")) is not None:
        # The JavaScript SDK writes schemes as 1.0 does. Those of a kind that 1.0 does not have are left out.
        modern = {name: cards.modern_scheme(scheme) for name, scheme in schemes.items()}
        known = cards.SCHEME_FIELDS.values()
        values["securitySchemes"] = {name: scheme for name, scheme in modern.items() if any(k in scheme for k in known)}
    return values


def _old_interfaces(card: cards.AgentCard) -> list[cards.AgentInterface]:
    return [interface for interface in card.supported_interfaces if interface.protocol_version.startswith(VERSION)]


def old_fields(card: cards.AgentCard) -> dict[str, Any]:
    """Return the fields of the card as 0.3 has them. Raises `VersionNotSupportedError` if no interface speaks 0.3."""
    interfaces = [{"url": one.url, "transport": one.protocol_binding} for one in _old_interfaces(card)]
    if not interfaces:
        raise VersionNotSupportedError("No interface on the agent card speaks A2A 0.3")
    fields: dict[str, Any] = msgspec.to_builtins(card)
    del fields["supportedInterfaces"]
    fields |= {
        "protocolVersion": PROTOCOL_VERSION,
        "url": interfaces[0]["url"],
        "preferredTransport": interfaces[0]["transport"],
        "additionalInterfaces": interfaces,
        "supportsAuthenticatedExtendedCard": fields["capabilities"].pop("extendedAgentCard", False),
    }
    # No agent of ours records the changes of a task's state in its history.
    fields["capabilities"]["stateTransitionHistory"] = False
    for holder in (fields, *fields["skills"]):
        if needed := holder.pop("securityRequirements", None):
            holder["security"] = [
                {name: scopes["list"] for name, scopes in requirement["schemes"].items()} for requirement in needed
            ]
    for name, scheme in fields.get("securitySchemes", {}).items():
        for kind, field in cards.SCHEME_FIELDS.items():
            if field in scheme:
                old = {"in" if key == "location" else key: value for key, value in scheme[field].items()}
                fields["securitySchemes"][name] = {"type": kind, **old}
    return fields
