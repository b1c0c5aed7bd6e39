"""Authentication without code: the schemes and access rules of a YAML file, and of the settings.

    schemes:
      - type: oidc
        issuer: https://id.example.com
        audience: my-agent
      - type: api_key
        keys: {"${CI_KEY}": ci, "sha256:9f86…": alice}
    rules:
      - when: "'auditor' in caller.scopes"
        grant: read

A scheme has the arguments of its class. `${NAME}` and `${file:PATH}` are filled in. Errors never contain values.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import msgspec

from errands.errors import ConfigurationError
from errands.runtime.middleware import Caller
from errands.runtime.settings import ENV_PREFIX, Settings
from errands.server.auth import ApiKeyAuth, AuthScheme, MutualTLSAuth, auth_extra
from errands.server.authorization import AccessRule


class Auth(NamedTuple):
    """Schemes, and the rules for the callers whom they know."""

    schemes: list[AuthScheme]
    rules: list[AccessRule]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    schemes: list[dict[str, Any]]
    rules: list[AccessRule] = []


def auth_of(settings: Settings) -> Auth | None:
    """Return what the settings say, None if they say nothing. Raises `ConfigurationError`."""
    found = load_auth(settings.auth) if settings.auth else Auth([], [])
    if settings.auth_api_keys:
        owners: dict[str, str] = {}
        for entry in settings.auth_api_keys.split(","):
            owner, _, key = entry.partition("=")
            if not owner.strip() or not key.strip():
                raise ConfigurationError(f"invalid {ENV_PREFIX}AUTH_API_KEYS: write alice=KEY,bob=sha256:HASH")
            owners[key.strip()] = owner.strip()
        found.schemes.append(ApiKeyAuth(owners))
    if settings.auth_issuer or settings.auth_audience:
        if not (settings.auth_issuer and settings.auth_audience):
            raise ConfigurationError(f"{ENV_PREFIX}AUTH_ISSUER and {ENV_PREFIX}AUTH_AUDIENCE belong together: set both")
        console_client = settings.auth_console_client or ""
        found.schemes.append(
            _kinds()["oidc"](
                issuer=settings.auth_issuer, audience=settings.auth_audience, console_client=console_client
            )
        )
    return found if found.schemes else None


def load_auth(path: str | Path) -> Auth:
    """Return the schemes and rules of a file. Raises `ConfigurationError`."""
    with auth_extra():
        import yaml  # noqa: F401, PLC0415 - an extra
    from errands.agents.tools.tool_settings import read_filled  # noqa: PLC0415 - most servers have no such file

    content = read_filled(path, os.environ, "the auth file")
    try:
        found = msgspec.convert(content, _File)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{path}: {error}; it needs schemes: and may have rules:") from None
    if not found.schemes:
        raise ConfigurationError(f"{path}: schemes is empty; name at least one, such as type: api_key")
    schemes = [_scheme(f"{path}: schemes[{position}]", entry) for position, entry in enumerate(found.schemes)]
    return Auth(schemes, found.rules)


def _kinds() -> dict[str, type[Any]]:
    from errands.server import tokens  # noqa: PLC0415 - most servers have no tokens

    return {
        "api_key": ApiKeyAuth,
        "jwt": tokens.JWTAuth,
        "oidc": tokens.OIDCAuth,
        "introspection": tokens.IntrospectionAuth,
        "mutual_tls": MutualTLSAuth,
    }


def _scheme(place: str, entry: Mapping[str, Any]) -> AuthScheme:
    kinds = _kinds()
    kind = kinds.get(str(entry.get("type")))
    if kind is None:
        raise ConfigurationError(f"{place}.type must be one of {', '.join(kinds)}")
    arguments = {}
    known = _arguments(kind)
    for name, value in entry.items():
        if name == "type":
            continue
        if name not in known:
            raise ConfigurationError(f"{place} has an unknown field {str(name)[:80]!r}; known: {', '.join(known)}")
        if name in ("keys", "callers") and kind in (ApiKeyAuth, MutualTLSAuth):
            arguments[name] = _callers(f"{place}.{name}", value)
            continue
        try:
            arguments[name] = msgspec.convert(value, known[name])
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"{place}.{name}: {error}") from None
    missing = [name for name in _required(kind) if name not in arguments]
    if missing:
        raise ConfigurationError(f"{place} needs {', '.join(missing)}")
    try:
        scheme: AuthScheme = kind(**arguments)
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}: {error}") from None
    return scheme


def _callers(place: str, value: Any) -> Any:
    """Return a list of keys, or callers by key or certificate: each is a name, or has the fields of `Caller`."""
    try:
        return msgspec.convert(value, list[str] | dict[str, str | Caller])
    except msgspec.ValidationError as error:
        # The place in the message would have the keys.
        problem = str(error).partition(" - at ")[0]
        raise ConfigurationError(f"{place}: {problem}; write names, or owner, tenant and scopes, by key") from None


def _arguments(kind: type[Any]) -> dict[str, Any]:
    """Return the arguments of a scheme with their types; those of a base class are passed on."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if "__init__" in vars(base) and base is not object and not inspect.isabstract(base):
            found |= get_type_hints(vars(base)["__init__"])
    return {name: hint for name, hint in found.items() if name not in ("return", "options")}


def _required(kind: type[Any]) -> list[str]:
    parameters = inspect.signature(kind).parameters.values()
    empty = inspect.Parameter.empty
    return [one.name for one in parameters if one.default is empty and one.kind is not inspect.Parameter.VAR_KEYWORD]
