"""What a person writes to describe an agent. The wire card is built from it, once per public URL."""

from __future__ import annotations

from typing import Any

import msgspec

from errands.model.card import AgentExtension, SecurityScheme


class ProviderConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Who offers the agent."""

    organization: str
    url: str


class SignatureConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A JWS made elsewhere; errands puts it on the card as it is."""

    protected: str
    signature: str
    header: dict[str, Any] | None = None


class SkillConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One thing that the agent can do, for people and for agents that choose among agents."""

    id: str
    name: str
    description: str
    tags: list[str] = msgspec.field(default_factory=list)
    examples: list[str] = msgspec.field(default_factory=list)
    input_modes: list[str] | None = None
    output_modes: list[str] | None = None
    security: list[dict[str, list[str]]] | None = None


class ExtensionConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An extension of the protocol that the agent understands."""

    uri: str
    description: str | None = None
    #: A client that does not declare a required extension is refused.
    required: bool = False
    params: dict[str, Any] = msgspec.field(default_factory=dict)


class CapabilitiesConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the agent offers beyond plain requests. Everything is off unless switched on."""

    streaming: bool = False
    push_notifications: bool = False
    #: Accepted for programs written for a2akit; A2A 1.0 has no such capability.
    state_transition_history: bool = False
    extended_agent_card: bool = False
    extensions: list[AgentExtension] | None = None


class AgentCardConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An agent as its author describes it. What only the server knows, such as its address, is added there."""

    name: str
    description: str
    version: str = "1.0.0"
    #: Kept for programs written for a2akit; the server decides which versions it speaks.
    protocol_version: str = "1.0"
    skills: list[SkillConfig] = msgspec.field(default_factory=list)
    extensions: list[ExtensionConfig] = msgspec.field(default_factory=list)
    capabilities: CapabilitiesConfig = msgspec.field(default_factory=CapabilitiesConfig)
    #: The binding named first on the card: "jsonrpc" or "http+json". Both are always served.
    protocol: str = "jsonrpc"
    supports_authenticated_extended_card: bool = False
    input_modes: list[str] = msgspec.field(default_factory=lambda: ["application/json", "text/plain"])
    output_modes: list[str] = msgspec.field(default_factory=lambda: ["application/json", "text/plain"])
    provider: ProviderConfig | None = None
    security_schemes: dict[str, SecurityScheme] | None = None
    security: list[dict[str, list[str]]] | None = None
    icon_url: str | None = None
    documentation_url: str | None = None
    signatures: list[SignatureConfig] | None = None
