"""Verifies signed tokens with joserfc (extra `auth`)."""

from __future__ import annotations

import base64
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec
from joserfc import jwt
from joserfc.errors import ClaimError, ExpiredTokenError, InvalidKeyIdError, JoseError
from joserfc.jwk import JWKRegistry, Key, KeySet
from joserfc.jws import JWSRegistry

from errands.errors import ConfigurationError

logger = logging.getLogger(__name__)

#: The algorithms with public keys that are accepted unless the operator names others.
DEFAULT_ALGORITHMS = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "Ed25519",
)
#: Keys of one issuer at most; more are ignored.
_MAX_KEYS = 100


class UnknownKeyError(Exception):
    """The token names a key that is not in the set."""


class InvalidTokenError(Exception):
    """The token is not valid. The text says why and may be shown to the client."""


class _Registry(JWSRegistry):
    #: Some issuers put certificates into the header.
    max_header_length = 8_000
    max_payload_length = 32_000


def check_algorithms(algorithms: Iterable[str], *, shared_keys: bool) -> list[str]:
    """Return the algorithms. Raises `ConfigurationError` for those that do not exist or would be a danger here."""
    found = list(algorithms)
    for name in found:
        if name not in _Registry.algorithms or name.lower() == "none":
            known = ", ".join(sorted(_Registry.algorithms.keys() - {"none"}))
            raise ConfigurationError(f"invalid algorithm {name!r}: expected some of {known}")
        if name.startswith("HS") and not shared_keys:
            # A public key that is taken for a shared one would let every client sign.
            raise ConfigurationError(f"the algorithm {name} needs a shared key: pass keys=[...] with a key of type oct")
    if not found:
        raise ConfigurationError("algorithms must name at least one")
    return found


def read_keys(document: Any, *, shared: bool = False) -> KeySet:
    """Return the keys of a JWKS that can verify signatures; others are ignored. Raises `ValueError` if it has none.

    Only with `shared`, for keys from the operator, are symmetric keys among them.
    """
    entries = document.get("keys") if isinstance(document, Mapping) else document
    if not isinstance(entries, list):
        raise ValueError("it is not a set of keys")
    keys: list[Key] = []
    for entry in entries[:_MAX_KEYS]:
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
            continue
        if entry.get("kty") == "oct" and not shared:
            continue
        try:
            keys.append(JWKRegistry.import_key(entry))
        except (JoseError, ValueError, TypeError, KeyError) as error:
            logger.debug("a key is ignored: %s", type(error).__name__)
    if not keys:
        raise ValueError("it has no key that can be used")
    return KeySet(keys)


def issuer_of(token: str) -> Any:
    """Return the issuer that a token names. It is not verified: it only shows which keys may fit."""
    try:
        payload = token.split(".")[1]
        claims = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (ValueError, IndexError, RecursionError, msgspec.MsgspecError):
        return None
    return claims.get("iss") if isinstance(claims, dict) else None


def verify(
    token: str, keys: KeySet, *, algorithms: Collection[str], issuer: str, audience: Collection[str], leeway: int
) -> dict[str, Any]:
    """Return the claims of a signed token. Raises `InvalidTokenError`, and `UnknownKeyError`.

    `exp`, `iss` and `aud` are required.
    """
    registry = _Registry(algorithms=list(algorithms), strict_check_header=False)
    try:
        claims = jwt.decode(token, keys, registry=registry).claims
    except InvalidKeyIdError:
        raise UnknownKeyError from None
    except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
        # The text of the error may repeat the token.
        logger.debug("a token cannot be verified: %s", type(error).__name__)
        raise InvalidTokenError("The token is not valid") from None
    expected = jwt.JWTClaimsRegistry(
        leeway=leeway,
        iss={"essential": True, "value": issuer},
        aud={"essential": True, "values": list(audience)},
        exp={"essential": True},
    )
    try:
        expected.validate(claims)
    except ExpiredTokenError:
        raise InvalidTokenError("The token has expired") from None
    except ClaimError as error:
        raise InvalidTokenError(f"The token has no valid claim {error.claim}") from None
    except JoseError:
        raise InvalidTokenError("The token is not valid") from None
    return claims
