"""Signatures of agent cards: JWS over the canonical JSON of a card (A2A 1.0, section 8.4). Needs `errands[signing]`.

What is signed is the card without `signatures` and without default values, as RFC 8785 writes it. It has three forms:

- that of the specification: required fields, and optional ones that are set, stay even if they are empty;
- that of the official SDK, which removes everything that is empty, at every level;
- that of A2A 0.3, of the card as 0.3 spells it, as the SDK for 0.3 makes it.

Each reader accepts a card if one of its signatures is valid, so a card whose forms differ gets one signature for each.
This module does no I/O apart from reading the key files that it is given.
"""

from __future__ import annotations

import base64
import hashlib
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import rfc8785
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey, import_key

from errands.errors import ConfigurationError
from errands.model import card as cards
from errands.model.base import fields_of
from errands.wire import v0_3_card

#: A key: PEM or JSON (a JWK, or a JWKS with several keys) as text, the same decoded, or the file that has it.
KeySource = Mapping[str, Any] | str | bytes | Path

#: The algorithm of a new signature, by the curve or the type of its key.
_ALGORITHM_OF = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "EdDSA", "RSA": "RS256"}
#: The algorithms of each type of key. Those with a shared secret, and none at all, prove nothing about the signer.
_ALGORITHMS: dict[type[Key], tuple[str, ...]] = {
    RSAKey: ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ECKey: ("ES256", "ES384", "ES512"),
    OKPKey: ("EdDSA", "Ed25519"),
}
_MIN_RSA_BITS = 2048
#: Bounds on what is read of a card that a stranger wrote.
_MAX_SIGNATURES = 16
#: A card has up to three signatures of each key.
MAX_SIGNING_KEYS = _MAX_SIGNATURES // 3
_MAX_HEADER = 8 * 1024
_MAX_PAYLOAD = 4 * 1024 * 1024
_MAX_DEPTH = 64
#: Cards whose signatures are remembered.
_CACHED = 256


class UnverifiedCardError(Exception):
    """No signature of a card is valid. The message says why, for each of them."""


# Keys


class SigningKey:
    """A private key that signs agent cards.

    `key` is PEM or a JWK, of an RSA key (2048 bits or more), of an elliptic curve (P-256, P-384, P-521) or Ed25519.
    `kid` is the name of the key for readers: by default the one in the JWK, or else its RFC 7638 thumbprint.
    `algorithm` is chosen by the key unless given. `jku` is an address of the key set that readers may use if they trust
    it; one that begins with `/` is completed with the server's address. Raises `ConfigurationError`.
    """

    def __init__(
        self, key: KeySource, *, kid: str | None = None, algorithm: str | None = None, jku: str | None = None
    ) -> None:
        found = _read_keys(key)
        if len(found) != 1:
            raise ConfigurationError(f"a signing key is exactly one key, not a set of {len(found)}")
        self._key = found[0]
        if not self._key.is_private:
            raise ConfigurationError("cards are signed with a private key, and this is a public one")
        allowed = _ALGORITHMS[type(self._key)]
        name = str(self._key.as_dict(private=False).get("crv", self._key.key_type))
        self.algorithm = algorithm or str(self._key.get("alg") or _ALGORITHM_OF.get(name, ""))
        if self.algorithm not in allowed:
            raise ConfigurationError(
                f"invalid algorithm {self.algorithm or name!r} for this key: expected one of {', '.join(allowed)}"
            )
        self.kid = kid or self._key.kid or self._key.thumbprint()
        self.jku = jku

    def __repr__(self) -> str:
        return f"SigningKey(kid={self.kid!r}, algorithm={self.algorithm!r})"

    def public_jwk(self) -> dict[str, Any]:
        """Return the public half, for a JWKS."""
        public: dict[str, Any] = dict(self._key.as_dict(private=False))
        public.pop("key_ops", None)
        return public | {"kid": self.kid, "alg": self.algorithm, "use": "sig"}

    def sign(self, payload: bytes, *, base_url: str = "") -> cards.AgentCardSignature:
        """Return the signature over a canonical card. A relative `jku` is completed with `base_url`."""
        header = {"alg": self.algorithm, "typ": "JOSE", "kid": self.kid}
        if self.jku is not None:
            header["jku"] = base_url + self.jku if self.jku.startswith("/") else self.jku
        token = _quietly(jws.serialize_compact, header, payload, self._key, registry=_registry([self.algorithm]))
        protected, _, signature = token.split(".")
        return cards.AgentCardSignature(protected=protected, signature=signature)


def signing_keys(source: KeySource, *, jku: str | None = None) -> list[SigningKey]:
    """Return every private key of a file or a key set. Raises `ConfigurationError`."""
    return [SigningKey(key.as_dict(private=True), jku=jku) for key in _read_keys(source)]


class TrustedKeys:
    """The public keys of the signers that a reader of cards trusts.

    A key with a `kid` verifies the signatures that name it; one without, such as a PEM file, those of any name.
    Raises `ConfigurationError`.
    """

    def __init__(self, *sources: KeySource) -> None:
        self.keys = [key for source in sources for key in _read_keys(source)]

    def __repr__(self) -> str:
        return f"TrustedKeys({', '.join(key.kid or key.thumbprint() for key in self.keys)})"

    def __bool__(self) -> bool:
        return bool(self.keys)

    def __add__(self, other: TrustedKeys) -> TrustedKeys:
        both = TrustedKeys()
        both.keys = [*self.keys, *other.keys]
        return both

    def for_signature(self, kid: object) -> list[Key]:
        """Return the keys that may have made a signature with this key id."""
        return [key for key in self.keys if kid in (key.kid, key.thumbprint())] or [
            key for key in self.keys if key.kid is None
        ]


def _read_keys(source: KeySource) -> list[Key]:
    """Return the keys. Neither errors nor logs show any of their content. Raises `ConfigurationError`."""
    place = "the key"
    if isinstance(source, Path):
        place = f"the key in {source}"
        try:
            source = source.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"{place} cannot be read: {error.strerror}") from None
    if isinstance(source, str):
        source = source.encode()
    try:
        if isinstance(source, bytes):
            if b"-----BEGIN" in source:
                return [_read_pem(source, place)]
            source = msgspec.json.decode(source, type=dict[str, Any])
    except msgspec.MsgspecError:
        raise ConfigurationError(f"{place} is neither PEM nor a JWK or JWKS in JSON") from None
    several = source.get("keys")
    if not isinstance(several, list):
        return [_read_jwk(source, place)]
    keys = []
    for value in several:
        # A set may have keys for other purposes and of other kinds beside those for signatures (RFC 7517).
        if isinstance(value, dict) and value.get("use", "sig") == "sig":
            with suppress(ConfigurationError):
                keys.append(_read_jwk(value, place))
    if not keys:
        raise ConfigurationError(f"{place} is a key set without a key for signatures")
    return keys


def _read_jwk(value: Mapping[str, Any], place: str) -> Key:
    try:
        key = _quietly(import_key, dict(value))
    except (JoseError, ValueError, TypeError, KeyError, AttributeError):
        raise ConfigurationError(f"{place} is neither PEM nor a JWK or JWKS in JSON") from None
    return _checked(key, place)


def _read_pem(source: bytes, place: str) -> Key:
    if b"ENCRYPTED" in source:
        raise ConfigurationError(f"{place} is encrypted; decrypt it, for example with `openssl pkey`")
    for kind in (RSAKey, ECKey, OKPKey):
        try:
            key = _quietly(kind.import_key, source)
        except (JoseError, ValueError, TypeError):
            continue
        return _checked(key, place)
    raise ConfigurationError(f"{place} is not a PEM key of RSA, an elliptic curve or Ed25519")


def _checked(key: Key, place: str) -> Key:
    if isinstance(key, OctKey) or type(key) not in _ALGORITHMS:
        raise ConfigurationError(
            f"{place} is a shared secret, and everyone who can verify with it can also sign; use RSA, EC or Ed25519"
        )
    if isinstance(key, RSAKey) and key.public_key.key_size < _MIN_RSA_BITS:
        raise ConfigurationError(f"{place} is an RSA key of fewer than {_MIN_RSA_BITS} bits")
    return key


# Canonical forms

#: Fields that are `optional` in the protocol's schema, or required and here not: they stay even if they are empty.
_KEPT: dict[type[msgspec.Struct], frozenset[str]] = {
    cards.AgentCard: frozenset({"documentation_url", "icon_url"}),
    cards.AgentCapabilities: frozenset({"streaming", "push_notifications", "extended_agent_card"}),
    cards.OAuthFlow: frozenset({"scopes"}),
}
#: Fields that are required here and not in the schema, so empty ones are left out.
_LEFT_OUT: dict[type[msgspec.Struct], frozenset[str]] = {
    cards.AgentExtension: frozenset({"uri"}),
    cards.StringList: frozenset({"scopes"}),
    cards.SecurityRequirement: frozenset({"schemes"}),
}
#: What the types of the SDK for 0.3 have as default values, and therefore leave out.
_DEFAULTS_V03 = {"protocolVersion": v0_3_card.PROTOCOL_VERSION, "preferredTransport": "JSONRPC"}


def canonical_forms(card: cards.AgentCard, versions: Sequence[str] = ("1.0",)) -> list[bytes]:
    """Return what is signed for readers of these versions: one payload, or several if the forms differ.

    Raises `ConfigurationError` for values without a canonical form, such as integers beyond 2**53.
    """
    try:
        forms: list[Any] = []
        if "1.0" in versions:
            plain = _specified(card)
            plain.pop("signatures", None)
            forms += [plain, _without_empty(plain)]
        if "0.3" in versions:
            forms.append(_old_form(v0_3_card.old_fields(card)))
        return list(dict.fromkeys(map(rfc8785.dumps, forms)))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the card has no canonical form, so it cannot be signed: {error}") from None


def _specified(value: Any) -> Any:
    """Return the JSON of a model without default values, as the specification defines these."""
    if isinstance(value, list):
        return [_specified(item) for item in value]
    if isinstance(value, dict):
        return {key: _specified(item) for key, item in value.items()}
    if not isinstance(value, msgspec.Struct):
        return value
    kind, fields = type(value), {}
    kept, left_out = _KEPT.get(kind, frozenset()), _LEFT_OUT.get(kind, frozenset())
    for field in fields_of(kind):
        item = getattr(value, field.name)
        is_required = field.required and field.name not in left_out
        is_message = isinstance(item, msgspec.Struct) or field.name == "params"
        if item is not None and (item or is_required or is_message or field.name in kept):
            fields[field.encode_name] = item if field.name == "params" else _specified(item)
    return fields


def _old_form(fields: dict[str, Any]) -> Any:
    """Return the fields of a 0.3 card as the SDK for 0.3 signs them."""
    rest = {key: value for key, value in fields.items() if key != "signatures" and value != _DEFAULTS_V03.get(key)}
    schemes = rest.get("securitySchemes")
    if isinstance(schemes, dict):
        rest["securitySchemes"] = {
            name: {key: value for key, value in scheme.items() if key != "type"} if isinstance(scheme, dict) else scheme
            for name, scheme in schemes.items()
        }
    return _without_empty(rest)


def _without_empty(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """Return the value without nulls and empty texts, lists and objects, at every level; None if nothing is left."""
    if depth == 0:
        raise ValueError(f"it is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        cleaned = {key: _without_empty(item, depth - 1) for key, item in value.items()}
        return {key: item for key, item in cleaned.items() if item is not None} or None
    if isinstance(value, list):
        return [item for one in value if (item := _without_empty(one, depth - 1)) is not None] or None
    return None if value == "" else value


# Signing


class CardSigner:
    """Signs cards with every one of its keys, and remembers the signatures of the newest cards."""

    def __init__(self, keys: Sequence[SigningKey]) -> None:
        self.keys = list(keys)
        self._known: OrderedDict[tuple[bytes, str], list[cards.AgentCardSignature]] = OrderedDict()

    def sign(self, card: cards.AgentCard, *, versions: Sequence[str] = ("1.0",), base_url: str = "") -> cards.AgentCard:
        """Return the card with signatures for readers of these versions, after those that it has."""
        signatures = list(card.signatures or ())
        for payload in canonical_forms(card, versions):
            place = (hashlib.sha256(payload).digest(), base_url)
            if place not in self._known:
                self._known[place] = [key.sign(payload, base_url=base_url) for key in self.keys]
                if len(self._known) > _CACHED:
                    self._known.popitem(last=False)
            signatures += self._known[place]
        return msgspec.structs.replace(card, signatures=signatures or None)


def sign_document(raw: bytes, card: cards.AgentCard, keys: Sequence[SigningKey]) -> bytes:
    """Return a card in JSON, which was read as `card`, with signatures added and everything else as it was."""
    fields = msgspec.json.decode(raw, type=dict[str, Any])
    payloads = [rfc8785.dumps(_old_form(fields))] if _is_old(fields) else canonical_forms(card)
    made = [msgspec.to_builtins(key.sign(payload)) for payload in payloads for key in keys]
    return msgspec.json.encode(fields | {"signatures": [*(fields.get("signatures") or ()), *made]})


# Verifying


class VerifiedSignature(NamedTuple):
    """The signature that proves where a card is from."""

    kid: str
    algorithm: str
    jku: str | None


class _Header(NamedTuple):
    protected: dict[str, Any]
    problem: str = ""


def verify_card(card: cards.AgentCard, keys: TrustedKeys, *, document: bytes | None = None) -> VerifiedSignature:
    """Return the first valid signature of a card. Raises `UnverifiedCardError` if it has none.

    `document` is the JSON that the card was read from, if it is known: a card of 0.3 is signed in its own spelling.
    What is verified is what was read into `card`; fields that readers do not know are not covered and not used.
    """
    if not card.signatures:
        raise UnverifiedCardError("the card has no signature")
    if len(card.signatures) > _MAX_SIGNATURES:
        raise UnverifiedCardError(f"the card has {len(card.signatures)} signatures, more than {_MAX_SIGNATURES}")
    fields = {} if document is None else msgspec.json.decode(document, type=dict[str, Any])
    try:
        payloads = canonical_forms(card)
        if document is not None and _is_old(fields):
            fields.pop("signatures", None)
            payloads += [rfc8785.dumps(_old_form(fields)), rfc8785.dumps(fields)]
        elif {(one.protocol_version[:3], one.tenant or "") for one in card.supported_interfaces} == {("0.3", "")}:
            # Only then does the old form cover everything that is on the card.
            payloads += canonical_forms(card, ("0.3",))
    except (ConfigurationError, ValueError, RecursionError) as error:
        raise UnverifiedCardError(f"the card has no canonical form ({error})") from None
    problems: list[str] = []
    for index, signature in enumerate(card.signatures):
        header, problem = _read_header(signature)
        problem = problem or _verify(signature, header, payloads, keys)
        if not problem:
            jku = header.get("jku")
            return VerifiedSignature(
                str(header.get("kid", "")), str(header["alg"]), jku if isinstance(jku, str) else None
            )
        problems.append(f"signature {index + 1}: {problem}")
    raise UnverifiedCardError("; ".join(problems))


def key_addresses(card: cards.AgentCard) -> list[str]:
    """Return the addresses of key sets that the signatures of a card name. They are not to be trusted as such."""
    headers = [_read_header(signature).protected for signature in (card.signatures or ())[:_MAX_SIGNATURES]]
    return list(dict.fromkeys(jku for header in headers if isinstance(jku := header.get("jku"), str)))


def _is_old(fields: Mapping[str, Any]) -> bool:
    return not {"supportedInterfaces", "supported_interfaces"} & fields.keys()


def _read_header(signature: cards.AgentCardSignature) -> _Header:
    """Return the protected header. The other one is not signed, so nothing in it is used."""
    try:
        if len(signature.protected) > _MAX_HEADER:
            raise ValueError
        padded = signature.protected + "=" * (-len(signature.protected) % 4)
        return _Header(msgspec.json.decode(base64.urlsafe_b64decode(padded), type=dict[str, Any]))
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return _Header({}, "its protected header cannot be read")


def _verify(
    signature: cards.AgentCardSignature, header: Mapping[str, Any], payloads: Sequence[bytes], keys: TrustedKeys
) -> str:
    """Return what is wrong with a signature, or an empty text."""
    algorithm, kid = header.get("alg"), header.get("kid")
    if algorithm not in {name for names in _ALGORITHMS.values() for name in names}:
        return f"the algorithm {str(algorithm)[:40]!r} is not accepted"
    if "crit" in header:
        return "it needs extensions of JWS that are not supported"
    candidates = keys.for_signature(kid)
    if not candidates:
        return f"the key {str(kid)[:100]!r} is not among the trusted ones"
    fitting = [key for key in candidates if algorithm in _ALGORITHMS[type(key)] and key.get("alg") in (None, algorithm)]
    if not fitting:
        return f"the trusted key {str(kid)[:100]!r} is not one for {algorithm}"
    for key in fitting:
        for payload in payloads:
            encoded = base64.urlsafe_b64encode(payload).rstrip(b"=").decode()
            try:
                token = f"{signature.protected}.{encoded}.{signature.signature}"
                _quietly(jws.deserialize_compact, token, key, registry=_registry([str(algorithm)]))
            except (JoseError, ValueError, TypeError):
                continue
            return ""
    return f"it was not made with the key {str(kid)[:100]!r} for this card, or the card was changed"


def _registry(algorithms: list[str]) -> jws.JWSRegistry:
    registry = jws.JWSRegistry(algorithms=algorithms, strict_check_header=False)
    # The header is checked here: the SDK writes null for what it does not have, which joserfc refuses.
    registry.header_registry = {}
    registry.max_header_length, registry.max_payload_length = _MAX_HEADER, _MAX_PAYLOAD
    return registry


def _quietly(function: Any, *arguments: Any, **options: Any) -> Any:
    # joserfc warns of short keys, which are refused here, and of the name EdDSA, which RFC 9864 replaces by Ed25519;
    # the SDKs know only the old name.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments, **options)
