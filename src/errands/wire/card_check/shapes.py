"""What an agent card consists of in each version, as tables: the fields, their types, and which must be there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple


class ListOf(NamedTuple):
    kind: Kind
    #: Whether an empty one is as good as none.
    filled: bool = False


class MapOf(NamedTuple):
    kind: Kind


class Shape(NamedTuple):
    fields: Mapping[str, Field]


Kind = Literal["text", "flag", "object"] | ListOf | MapOf | Shape


class Field(NamedTuple):
    kind: Kind
    #: What a card without it could say, in JSON; a field without an example may be left out.
    example: str = ""


_TEXT = Field("text")
_FLAG = Field("flag")
_MODES = Field(ListOf("text"))
_SCOPES = Field(MapOf("text"), '{"read": "read data"}')
_URL = Field("text", '"https://example.com/..."')

_PROVIDER = Shape({"organization": Field("text", '"Example Inc."'), "url": Field("text", '"https://example.com"')})
_EXTENSION = Shape(
    {
        "uri": Field("text", '"https://example.com/ext/v1"'),
        "description": _TEXT,
        "required": _FLAG,
        "params": Field("object"),
    }
)
_SIGNATURE = Shape(
    {"protected": Field("text", '"eyJ..."'), "signature": Field("text", '"..."'), "header": Field("object")}
)


def _flows(*, device_code: bool) -> Shape:
    flows = {
        "authorizationCode": Shape(
            {"authorizationUrl": _URL, "tokenUrl": _URL, "refreshUrl": _TEXT, "scopes": _SCOPES, "pkceRequired": _FLAG}
        ),
        "clientCredentials": Shape({"tokenUrl": _URL, "refreshUrl": _TEXT, "scopes": _SCOPES}),
        "implicit": Shape({"authorizationUrl": _URL, "refreshUrl": _TEXT, "scopes": _SCOPES}),
        "password": Shape({"tokenUrl": _URL, "refreshUrl": _TEXT, "scopes": _SCOPES}),
    }
    if device_code:
        flows["deviceCode"] = Shape(
            {"deviceAuthorizationUrl": _URL, "tokenUrl": _URL, "refreshUrl": _TEXT, "scopes": _SCOPES}
        )
    return Shape({name: Field(shape) for name, shape in flows.items()})


def _oauth2(*, device_code: bool) -> Shape:
    return Shape(
        {
            "flows": Field(_flows(device_code=device_code), '{"clientCredentials": {...}}'),
            "oauth2MetadataUrl": _TEXT,
            "description": _TEXT,
        }
    )


_HTTP_AUTH = Shape({"scheme": Field("text", '"Bearer"'), "bearerFormat": _TEXT, "description": _TEXT})
_OPEN_ID_CONNECT = Shape({"openIdConnectUrl": _URL, "description": _TEXT})
_MUTUAL_TLS = Shape({"description": _TEXT})

#: The schemes of 1.0: each has a field of its own, and exactly one is set.
SCHEMES_V1_0: dict[str, Shape] = {
    "apiKeySecurityScheme": Shape(
        {"location": Field("text", '"header"'), "name": Field("text", '"X-API-Key"'), "description": _TEXT}
    ),
    "httpAuthSecurityScheme": _HTTP_AUTH,
    "oauth2SecurityScheme": _oauth2(device_code=True),
    "openIdConnectSecurityScheme": _OPEN_ID_CONNECT,
    "mtlsSecurityScheme": _MUTUAL_TLS,
}
#: The schemes of 0.3, by their `type`.
SCHEMES_V0_3: dict[str, Shape] = {
    "apiKey": Shape({"in": Field("text", '"header"'), "name": Field("text", '"X-API-Key"'), "description": _TEXT}),
    "http": _HTTP_AUTH,
    "oauth2": _oauth2(device_code=False),
    "openIdConnect": _OPEN_ID_CONNECT,
    "mutualTLS": _MUTUAL_TLS,
}

_REQUIREMENTS_V1_0 = Field(
    ListOf(Shape({"schemes": Field(MapOf(Shape({"list": Field(ListOf("text"))})), '{"NAME": {"list": []}}')}))
)
_REQUIREMENTS_V0_3 = Field(ListOf(MapOf(ListOf("text"))))


def _skill(*, filled: bool) -> dict[str, Field]:
    return {
        "id": Field("text", '"search"'),
        "name": Field("text", '"Search"'),
        "description": Field("text", '"Searches the web."'),
        "tags": Field(ListOf("text", filled), '["search"]'),
        "examples": Field(ListOf("text")),
        "inputModes": _MODES,
        "outputModes": _MODES,
    }


def _card(*, filled: bool) -> dict[str, Field]:
    """What both versions have in common. Lists that must be there must have something in them since 1.0."""
    return {
        "name": Field("text", '"My agent"'),
        "description": Field("text", '"Searches the web."'),
        "version": Field("text", '"1.0.0"'),
        "defaultInputModes": Field(ListOf("text", filled), '["text/plain"]'),
        "defaultOutputModes": Field(ListOf("text", filled), '["text/plain"]'),
        "provider": Field(_PROVIDER),
        "documentationUrl": _TEXT,
        "iconUrl": _TEXT,
        "signatures": Field(ListOf(_SIGNATURE)),
        "securitySchemes": Field(MapOf("object")),
    }


CARD_V1_0 = Shape(
    _card(filled=True)
    | {
        "supportedInterfaces": Field(
            ListOf(
                Shape(
                    {
                        "url": Field("text", '"https://example.com/"'),
                        "protocolBinding": Field("text", '"JSONRPC"'),
                        "protocolVersion": Field("text", '"1.0"'),
                        "tenant": _TEXT,
                    }
                ),
                filled=True,
            ),
            '[{"url": "https://example.com/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]',
        ),
        "capabilities": Field(
            Shape(
                {
                    "streaming": _FLAG,
                    "pushNotifications": _FLAG,
                    "extendedAgentCard": _FLAG,
                    "extensions": Field(ListOf(_EXTENSION)),
                }
            ),
            '{"streaming": true}',
        ),
        "skills": Field(
            ListOf(Shape(_skill(filled=True) | {"securityRequirements": _REQUIREMENTS_V1_0}), filled=True),
            '[{"id": "search", "name": "Search", "description": "Searches.", "tags": ["search"]}]',
        ),
        "securityRequirements": _REQUIREMENTS_V1_0,
    }
)

CARD_V0_3 = Shape(
    _card(filled=False)
    | {
        "protocolVersion": Field("text", '"0.3.0"'),
        "url": Field("text", '"https://example.com/"'),
        "preferredTransport": Field("text", '"JSONRPC"'),
        "additionalInterfaces": Field(
            ListOf(Shape({"url": Field("text", '"https://example.com/"'), "transport": Field("text", '"JSONRPC"')}))
        ),
        "capabilities": Field(
            Shape(
                {
                    "streaming": _FLAG,
                    "pushNotifications": _FLAG,
                    "stateTransitionHistory": _FLAG,
                    "extensions": Field(ListOf(_EXTENSION)),
                }
            ),
            '{"streaming": true}',
        ),
        "skills": Field(
            ListOf(Shape(_skill(filled=False) | {"security": _REQUIREMENTS_V0_3})),
            '[{"id": "search", "name": "Search", "description": "Searches.", "tags": ["search"]}]',
        ),
        "security": _REQUIREMENTS_V0_3,
        "supportsAuthenticatedExtendedCard": _FLAG,
    }
)

#: Fields of 0.3 that have no meaning on a card of 1.0 alone, and what stands for them.
LEFT_BEHIND = {
    "protocolVersion": "protocolVersion of each of supportedInterfaces",
    "preferredTransport": "the order of supportedInterfaces",
    "additionalInterfaces": "supportedInterfaces",
    "security": "securityRequirements",
    "supportsAuthenticatedExtendedCard": "capabilities.extendedAgentCard",
}
