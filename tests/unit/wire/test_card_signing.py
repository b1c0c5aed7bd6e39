"""Signatures of agent cards: what is signed, and what is refused. The official SDK is the other side."""

from __future__ import annotations

import base64
import hmac
import json
from typing import Any

import jwt
import msgspec
import pytest
from a2a.client.card_resolver import parse_agent_card
from a2a.utils.signing import InvalidSignaturesError, create_agent_card_signer, create_signature_verifier
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.protobuf.json_format import MessageToJson
from joserfc import jws
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from errands.client.discovery import read_card
from errands.errors import ConfigurationError
from errands.model import card as cards
from errands.model.base import encode
from errands.wire import v0_3_card
from errands.wire.card_signing import (
    CardSigner,
    SigningKey,
    TrustedKeys,
    UnverifiedCardError,
    canonical_forms,
    sign_document,
    verify_card,
)

KEYS: dict[str, ECKey | RSAKey | OKPKey] = {
    "ES256": ECKey.generate_key("P-256"),
    "ES384": ECKey.generate_key("P-384"),
    "RS256": RSAKey.generate_key(2048),
    "EdDSA": OKPKey.generate_key("Ed25519"),
}
KEY = SigningKey(KEYS["ES256"].as_dict(private=True), kid="key-1")
TRUST = TrustedKeys(KEY.public_jwk())

#: Everything that has gone wrong in other implementations: text beyond ASCII, numbers, empty lists, default values.
HARD = cards.AgentCard(
    name="Zoë 🤖",
    description="",
    version="1.0",
    supported_interfaces=[
        cards.AgentInterface(url="http://a/", protocol_binding="JSONRPC", protocol_version="1.0", tenant=""),
        cards.AgentInterface(url="http://a/", protocol_binding="JSONRPC", protocol_version="0.3"),
    ],
    capabilities=cards.AgentCapabilities(
        streaming=False,
        extensions=[
            cards.AgentExtension(
                uri="urn:e",
                params={"a": 1.0, "b": 1e30, "c": [], "d": None, "e": -0.0, "f": 1e-7, "n": {"x": {}}, "€": 1, "😀": 2},
            )
        ],
    ),
    default_input_modes=[],
    default_output_modes=["text/plain"],
    skills=[cards.AgentSkill(id="a", name="Ä", description="", tags=[], examples=[])],
    icon_url="",
    security_schemes={
        "key": cards.SecurityScheme(
            api_key_security_scheme=cards.APIKeySecurityScheme(location="header", name="X", description="")
        ),
        "tls": cards.SecurityScheme(mtls_security_scheme=cards.MutualTlsSecurityScheme()),
    },
    security_requirements=[cards.SecurityRequirement(schemes={"key": cards.StringList(scopes=[])})],
)
PLAIN = cards.AgentCard(
    name="Plain",
    description="An agent",
    version="1.0",
    supported_interfaces=[cards.AgentInterface(url="http://a/", protocol_binding="JSONRPC", protocol_version="1.0")],
    capabilities=cards.AgentCapabilities(streaming=True),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    skills=[cards.AgentSkill(id="a", name="a", description="a", tags=["a"])],
)


def sdk_verify(raw: bytes, key: SigningKey) -> None:
    verify = create_signature_verifier(lambda kid, jku: jwt.PyJWK(key.public_jwk()), [key.algorithm])
    verify(parse_agent_card(json.loads(raw)))


def sdk_signed(card: cards.AgentCard, key: SigningKey, private: Any) -> bytes:
    sign = create_agent_card_signer(
        jwt.PyJWK(private.as_dict(private=True), algorithm=key.algorithm),
        {"kid": key.kid, "alg": key.algorithm, "jku": None, "typ": "JOSE"},
    )
    signed: str = MessageToJson(sign(parse_agent_card(json.loads(encode(card)))))
    return signed.encode()


# What is signed


def test_the_canonical_form_is_that_of_the_example_in_the_specification() -> None:
    given = b"""{"name": "Example Agent", "description": "", "skills": [],
        "capabilities": {"streaming": false, "pushNotifications": false, "extensions": []}}"""
    [form, _] = canonical_forms(read_card(given.replace(b'"name"', b'"supportedInterfaces": [], "name"')))
    expected = {"capabilities": {"pushNotifications": False, "streaming": False}, "description": "", "skills": []}
    assert {key: json.loads(form).get(key) for key in expected} == expected


def test_a_card_without_empty_fields_has_one_signature() -> None:
    assert len(CardSigner([KEY]).sign(PLAIN).signatures or ()) == 1


def test_fields_that_readers_do_not_know_are_not_covered() -> None:
    raw = encode(CardSigner([KEY]).sign(PLAIN))
    extended = raw.replace(b"{", b'{"fromTheFuture":1,', 1)
    assert verify_card(read_card(extended), TRUST, document=extended).kid == "key-1"


def test_numbers_without_a_canonical_form_are_refused() -> None:
    params = {"n": 2**60}
    card = msgspec.structs.replace(
        PLAIN, capabilities=cards.AgentCapabilities(extensions=[cards.AgentExtension(uri="u", params=params)])
    )
    with pytest.raises(ConfigurationError, match="no canonical form"):
        CardSigner([KEY]).sign(card)


def test_the_signatures_of_a_card_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    signer = CardSigner([KEY])
    first = signer.sign(PLAIN)
    monkeypatch.setattr(SigningKey, "sign", lambda *_, **__: pytest.fail("signed again"))
    assert signer.sign(PLAIN) == first


# The official SDK


@pytest.mark.parametrize("algorithm", KEYS)
@pytest.mark.parametrize("card", [HARD, PLAIN], ids=["hard", "plain"])
def test_the_official_sdk_accepts_our_signatures(card: cards.AgentCard, algorithm: str) -> None:
    key = SigningKey(KEYS[algorithm].as_dict(private=True))
    assert key.algorithm == algorithm
    sdk_verify(encode(CardSigner([key]).sign(card)), key)


def test_the_official_sdk_accepts_a_card_for_both_versions() -> None:
    raw = v0_3_card.union(CardSigner([KEY]).sign(HARD, versions=("1.0", "0.3")))
    assert "additionalInterfaces" in json.loads(raw)
    sdk_verify(raw, KEY)


@pytest.mark.parametrize("algorithm", KEYS)
@pytest.mark.parametrize("card", [HARD, PLAIN], ids=["hard", "plain"])
def test_we_accept_the_signatures_of_the_official_sdk(card: cards.AgentCard, algorithm: str) -> None:
    key = SigningKey(KEYS[algorithm].as_dict(private=True))
    raw = sdk_signed(card, key, KEYS[algorithm])
    verified = verify_card(read_card(raw), TrustedKeys({"keys": [key.public_jwk()]}), document=raw)
    assert (verified.kid, verified.algorithm) == (key.kid, algorithm)


def test_both_refuse_a_card_that_was_changed() -> None:
    raw = encode(CardSigner([KEY]).sign(PLAIN)).replace(b"http://a/", b"http://b/")
    with pytest.raises(InvalidSignaturesError):
        sdk_verify(raw, KEY)
    with pytest.raises(UnverifiedCardError, match="or the card was changed"):
        verify_card(read_card(raw), TRUST, document=raw)


# A2A 0.3


def test_a_card_of_0_3_is_verified_in_its_own_spelling() -> None:
    raw = v0_3_card.to_v0_3(CardSigner([KEY]).sign(HARD, versions=("0.3",)))
    assert verify_card(read_card(raw), TRUST, document=raw).kid == "key-1"
    changed = raw.replace(b'"url":"http://a/"', b'"url":"http://b/"', 1)
    with pytest.raises(UnverifiedCardError):
        verify_card(read_card(changed), TRUST, document=changed)


def test_a_signature_for_0_3_does_not_cover_an_interface_of_1_0() -> None:
    signed = CardSigner([KEY]).sign(HARD, versions=("0.3",))
    evil = cards.AgentInterface(url="http://evil/", protocol_binding="JSONRPC", protocol_version="1.0")
    raw = encode(msgspec.structs.replace(signed, supported_interfaces=[evil, *signed.supported_interfaces]))
    with pytest.raises(UnverifiedCardError):
        verify_card(read_card(raw), TRUST, document=raw)


def test_a_file_is_signed_without_changing_anything_else() -> None:
    raw = b'{"supportedInterfaces": [], "name": "A", "x-note": {"kept": []}}'
    signed = sign_document(raw, read_card(raw), [KEY])
    assert verify_card(read_card(signed), TRUST, document=signed).kid == "key-1"
    rest = json.loads(signed)
    del rest["signatures"]
    assert rest == json.loads(raw)


# What is refused


def forged(header: dict[str, Any], key: Any, card: cards.AgentCard = PLAIN) -> cards.AgentCard:
    """The card with a signature under a header of the attacker's choice."""
    if header["alg"] == "none":
        protected, signature = base64.urlsafe_b64encode(json.dumps(header).encode()).rstrip(b"=").decode(), ""
    else:
        token = jws.serialize_compact(header, canonical_forms(card)[0], key, algorithms=[header["alg"]])
        protected, _, signature = token.split(".")
    return msgspec.structs.replace(
        card, signatures=[cards.AgentCardSignature(protected=protected, signature=signature)]
    )


SHORT_PEM = rsa.generate_private_key(65537, 1024).private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
)
PUBLIC_PEM = KEYS["ES256"].as_pem(private=False)


@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
@pytest.mark.parametrize(
    ("card", "problem"),
    [
        (PLAIN, "has no signature"),
        (forged({"alg": "none", "kid": "key-1"}, None), "algorithm 'none' is not accepted"),
        (forged({"alg": "HS256", "kid": "key-1"}, OctKey.import_key("x" * 32)), "'HS256' is not accepted"),
        (forged({"alg": "ES256", "kid": "key-2"}, KEYS["ES256"]), "key 'key-2' is not among the trusted ones"),
        (forged({"alg": "ES256"}, KEYS["ES256"]), "key 'None' is not among the trusted ones"),
        (forged({"alg": "ES256", "kid": "key-1"}, ECKey.generate_key("P-256")), "was not made with the key 'key-1'"),
        (forged({"alg": "RS256", "kid": "key-1"}, KEYS["RS256"]), "'key-1' is not one for RS256"),
        (forged({"alg": "ES256", "kid": "key-1", "crit": ["b64"], "b64": True}, KEYS["ES256"]), "extensions of JWS"),
        (
            msgspec.structs.replace(PLAIN, signatures=[cards.AgentCardSignature(protected="{", signature="x")]),
            "header cannot be read",
        ),
        (
            msgspec.structs.replace(PLAIN, signatures=[cards.AgentCardSignature(protected="e30", signature="")] * 17),
            "17 signatures, more than 16",
        ),
    ],
    ids=["none", "alg-none", "hs256", "unknown-kid", "no-kid", "wrong-key", "other-type", "crit", "garbage", "many"],
)
def test_a_signature_that_proves_nothing_is_refused(card: cards.AgentCard, problem: str) -> None:
    with pytest.raises(UnverifiedCardError, match=problem):
        verify_card(card, TRUST)


def test_a_public_key_is_not_accepted_as_a_shared_secret() -> None:
    def encoded(content: bytes) -> str:
        return base64.urlsafe_b64encode(content).rstrip(b"=").decode()

    protected = encoded(b'{"alg":"HS256","kid":"key-1"}')
    signed = f"{protected}.{encoded(canonical_forms(PLAIN)[0])}".encode()
    signature = encoded(hmac.digest(PUBLIC_PEM, signed, "sha256"))
    card = msgspec.structs.replace(
        PLAIN, signatures=[cards.AgentCardSignature(protected=protected, signature=signature)]
    )
    with pytest.raises(UnverifiedCardError, match="'HS256' is not accepted"):
        verify_card(card, TrustedKeys(PUBLIC_PEM))


def test_one_valid_signature_among_others_is_enough() -> None:
    old = SigningKey(ECKey.generate_key("P-256").as_dict(private=True), kid="old")
    card = CardSigner([old, KEY]).sign(PLAIN)
    assert verify_card(card, TRUST).kid == "key-1"
    assert verify_card(card, TrustedKeys(old.public_jwk())).kid == "old"


def test_a_pem_key_verifies_signatures_of_any_name() -> None:
    assert verify_card(CardSigner([KEY]).sign(PLAIN), TrustedKeys(PUBLIC_PEM)).kid == "key-1"


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("not a key", "neither PEM nor"),
        ('{"kty": "oct", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"}', "shared secret"),
        (PUBLIC_PEM, "this is a public one"),
        ('{"keys": []}', "a key set without a key"),
        (SHORT_PEM, "fewer than 2048 bits"),
        (KEYS["ES256"].as_pem(private=True, password="secret"), "is encrypted"),
    ],
    ids=["garbage", "oct", "public", "empty", "short", "encrypted"],
)
def test_a_key_that_cannot_sign_is_refused(key: str | bytes, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        SigningKey(key)


def test_keys_of_other_kinds_in_a_set_are_skipped() -> None:
    others = [{"kty": "oct", "k": "c2VjcmV0"}, {"kty": "new"}, 7, KEYS["RS256"].as_dict(private=False) | {"use": "enc"}]
    trust = TrustedKeys({"keys": [*others, KEY.public_jwk()]})
    assert repr(trust) == "TrustedKeys(key-1)"
    assert verify_card(CardSigner([KEY]).sign(PLAIN), trust).kid == "key-1"


def test_no_key_is_shown() -> None:
    secret = str(KEYS["ES256"].as_dict(private=True)["d"])
    assert secret not in repr(KEY)
    assert secret not in json.dumps(KEY.public_jwk())
    with pytest.raises(ConfigurationError) as caught:
        SigningKey({"kty": "EC", "crv": "P-256", "d": secret, "x": 1})
    assert secret not in str(caught.value)
