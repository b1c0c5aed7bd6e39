"""The description of an agent as its author writes it. The wire card is built from it, once per public URL.

It is checked here, so that a mistake is reported where it was made and not by readers of the card.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

import msgspec

from errands.errors import ConfigurationError
from errands.model.base import fields_of
from errands.model.card import SCHEME_FIELDS, AgentExtension, SecurityScheme, modern_scheme

#: Levels of lists and objects inside each other: protobuf refuses what is nested deeper than this on a card.
_MAX_DEPTH = 20


class _Config(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Checks every field. Plain values, and types of the official SDKs, are accepted in place of structs."""

    def __post_init__(self) -> None:
        for field in fields_of(type(self)):
            try:
                value = _plain(getattr(self, field.name), _MAX_DEPTH)
                if field.name == "security_schemes" and isinstance(value, dict):
                    value = {name: _scheme(name, fields) for name, fields in value.items()}
                setattr(self, field.name, msgspec.convert(value, field.type))
            except (ValueError, OverflowError) as error:
                raise ConfigurationError(f"{type(self).__name__}({field.name}=...) cannot be used: {error}") from None


def _plain(value: Any, depth: int) -> Any:
    """Return `value` as JSON has it, with the fields of structs by their Python names. Raises ValueError."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        value.encode()  # raises for a lone surrogate
        return value
    if isinstance(value, int | float):
        if not abs(value) < math.inf:
            raise ValueError(f"{value} is not a number of JSON")
        float(value)  # raises for an integer that is larger than any float
        return value
    if depth == 0:
        raise ValueError(f"it is nested more than {_MAX_DEPTH} levels deep")
    # Lists of protobuf are sequences, not lists. Bytes are sequences, too, and JSON has none.
    if isinstance(value, Sequence | Set) and not isinstance(value, bytes | bytearray | memoryview):
        return [_plain(item, depth - 1) for item in value]
    fields = _fields(value)
    if not all(isinstance(name, str) for name in fields):
        raise ValueError("the keys of an object are strings")
    return {_plain(name, depth): _plain(item, depth - 1) for name, item in fields.items()}


def _fields(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, msgspec.Struct):
        return {name: item for name in value.__struct_fields__ if (item := getattr(value, name)) is not None}
    if isinstance(value, type):
        raise ValueError(f"{value.__name__} is a class; pass an object of it")
    if hasattr(value, "model_dump"):  # a pydantic model, as those of a2a-sdk 0.3
        fields: dict[str, Any] = value.model_dump(mode="json", by_alias=False, exclude_none=True)
        return fields
    if hasattr(value, "ListFields"):  # a message of protobuf, as those of a2a-sdk 1.x
        return {field.name: item for field, item in value.ListFields()}
    raise ValueError(f"{type(value).__name__} is not a type that can stand here")


def _scheme(name: str, fields: Any) -> Any:
    """Return a security scheme in the form of 1.0; it may be written in that of 0.3, and in snake_case."""
    scheme = modern_scheme(_camel(fields)) if isinstance(fields, dict) else fields
    found = [field for field in SCHEME_FIELDS.values() if isinstance(scheme, dict) and scheme.get(field) is not None]
    if len(found) != 1:
        raise ValueError(
            f"{name!r} needs either exactly one of {', '.join(SCHEME_FIELDS.values())}, or a type as in OpenAPI: "
            f"{', '.join(SCHEME_FIELDS)}"
        )
    flows = scheme[found[0]].get("flows") if isinstance(scheme[found[0]], dict) else None
    if isinstance(flows, dict) and len(flows) > 1:
        raise ValueError(f"{name!r} has the flows {', '.join(flows)}; a scheme has one: write one scheme for each")
    return scheme


def _camel(fields: Any) -> Any:
    """Return the fields in camelCase. The names of scopes are the author's and stay as they are."""
    if not isinstance(fields, dict):
        return fields
    names = {key: re.sub(r"_([a-z0-9])", lambda found: found[1].upper(), key.rstrip("_")) for key in fields}
    return {names[key]: value if key == "scopes" else _camel(value) for key, value in fields.items()}


class ProviderConfig(_Config):
    """The provider of the agent."""

    #: Its name.
    organization: str
    #: Its web page.
    url: str


class SignatureConfig(_Config):
    """A JWS that was made elsewhere and is put on the card unchanged."""

    #: The protected header, in base64url.
    protected: str
    #: The signature, in base64url.
    signature: str
    #: The unprotected header.
    header: dict[str, Any] | None = None


class SkillConfig(_Config):
    """One thing that the agent can do, for people and for agents that choose among agents."""

    #: Unique among the skills of the agent.
    id: str
    #: For people.
    name: str
    #: What the skill does, and when to use it.
    description: str
    #: Words by which it is found.
    tags: list[str] = msgspec.field(default_factory=list)
    #: Messages that make use of it.
    examples: list[str] = msgspec.field(default_factory=list)
    #: The media types that it accepts, if not those of the agent.
    input_modes: list[str] | None = None
    #: The media types of its answers, if not those of the agent.
    output_modes: list[str] | None = None
    #: The schemes and scopes that callers of it need, beside those of the agent.
    security: list[dict[str, list[str]]] | None = None


class ExtensionConfig(_Config):
    """An extension of the protocol that the agent understands."""

    #: Its name in requests and on the card.
    uri: str
    #: How the agent uses it.
    description: str | None = None
    #: A client that does not declare a required extension is refused.
    required: bool = False
    #: What the extension itself prescribes.
    params: dict[str, Any] = msgspec.field(default_factory=dict)


class CapabilitiesConfig(_Config):
    """What the agent offers beyond plain requests. Everything but push notifications is off unless switched on."""

    streaming: bool = False
    #: None: as the server's setting `push_notifications` says.
    push_notifications: bool | None = None
    #: Accepted for programs written for a2akit; A2A 1.0 has no such capability.
    state_transition_history: bool = False
    extended_agent_card: bool = False
    extensions: list[AgentExtension] | None = None


class AgentCardConfig(_Config):
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
