"""The agent card as it is on the wire (A2A 1.0, section 4.4 and 4.5)."""

from __future__ import annotations

from typing import Any

import msgspec

from errands.model.base import A2AObject, Metadata

#: The extension of errands with which an agent offers uploads. Its parameters: `url`, where files are posted; `above`,
#: the bytes above which they should be; `maxBytes`, those of the largest file.
BLOBS_EXTENSION = "urn:errands:blobs:1"


class AgentInterface(A2AObject):
    url: str
    protocol_binding: str
    protocol_version: str
    tenant: str | None = None


class AgentProvider(A2AObject):
    url: str
    organization: str


class AgentExtension(A2AObject):
    uri: str
    description: str | None = None
    required: bool = False
    params: Metadata | None = None


class AgentCapabilities(A2AObject):
    streaming: bool | None = None
    push_notifications: bool | None = None
    extensions: list[AgentExtension] | None = None
    extended_agent_card: bool | None = None


class StringList(A2AObject):
    scopes: list[str] = msgspec.field(name="list")


class SecurityRequirement(A2AObject):
    schemes: dict[str, StringList]


class AgentSkill(A2AObject):
    id: str
    name: str
    description: str
    tags: list[str]
    examples: list[str] | None = None
    input_modes: list[str] | None = None
    output_modes: list[str] | None = None
    security_requirements: list[SecurityRequirement] | None = None


class AgentCardSignature(A2AObject):
    protected: str
    signature: str
    header: Metadata | None = None


class APIKeySecurityScheme(A2AObject):
    location: str
    name: str
    description: str | None = None


class HTTPAuthSecurityScheme(A2AObject):
    scheme: str
    description: str | None = None
    bearer_format: str | None = None


class OAuthFlow(A2AObject):
    """Any of the five flows; the field that holds it names which."""

    authorization_url: str | None = None
    device_authorization_url: str | None = None
    token_url: str | None = None
    refresh_url: str | None = None
    scopes: dict[str, str] | None = None
    pkce_required: bool = False


class OAuthFlows(A2AObject):
    authorization_code: OAuthFlow | None = None
    client_credentials: OAuthFlow | None = None
    implicit: OAuthFlow | None = None
    password: OAuthFlow | None = None
    device_code: OAuthFlow | None = None


class OAuth2SecurityScheme(A2AObject):
    flows: OAuthFlows
    description: str | None = None
    oauth2_metadata_url: str | None = None


class OpenIdConnectSecurityScheme(A2AObject):
    open_id_connect_url: str
    description: str | None = None


class MutualTlsSecurityScheme(A2AObject):
    description: str | None = None


class SecurityScheme(A2AObject):
    """Exactly one field is set."""

    api_key_security_scheme: APIKeySecurityScheme | None = None
    http_auth_security_scheme: HTTPAuthSecurityScheme | None = None
    oauth2_security_scheme: OAuth2SecurityScheme | None = None
    open_id_connect_security_scheme: OpenIdConnectSecurityScheme | None = None
    mtls_security_scheme: MutualTlsSecurityScheme | None = None


#: OpenAPI's `type` of a security scheme, and the field of `SecurityScheme` that has it in 1.0.
SCHEME_FIELDS = {
    "apiKey": "apiKeySecurityScheme",
    "http": "httpAuthSecurityScheme",
    "oauth2": "oauth2SecurityScheme",
    "openIdConnect": "openIdConnectSecurityScheme",
    "mutualTLS": "mtlsSecurityScheme",
}


def modern_scheme(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a security scheme in the form of 1.0. In 0.3 it is written as in OpenAPI: flat, with a `type`."""
    field = SCHEME_FIELDS.get(str(fields.get("type")))
    if field is None:
        return fields
    return {field: {"location" if key == "in" else key: value for key, value in fields.items()}}


class AgentCard(A2AObject):
    name: str
    description: str
    supported_interfaces: list[AgentInterface]
    version: str
    capabilities: AgentCapabilities
    default_input_modes: list[str]
    default_output_modes: list[str]
    skills: list[AgentSkill]
    provider: AgentProvider | None = None
    documentation_url: str | None = None
    icon_url: str | None = None
    security_schemes: dict[str, SecurityScheme] | None = None
    security_requirements: list[SecurityRequirement] | None = None
    signatures: list[AgentCardSignature] | None = None
