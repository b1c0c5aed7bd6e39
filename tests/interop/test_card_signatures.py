"""Signatures of 0.3 cards: the official SDK for 0.3 accepts ours, and we accept its. For 1.0 see tests/unit/wire."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import ECKey

from errands import SigningKey
from errands.client.discovery import read_card
from errands.model.card import modern_scheme
from errands.model.card_config import AgentCardConfig, CapabilitiesConfig
from errands.server.cards import build_card
from errands.wire import v0_3_card
from errands.wire.card_signing import CardSigner, TrustedKeys, UnverifiedCardError, verify_card
from tests.interop.sdks import PEERS, environment

pytestmark = pytest.mark.timeout(300)  # the first test makes the environment

KEY = ECKey.generate_key("P-256")
SIGNING = SigningKey(KEY.as_dict(private=True), kid="key-1")
TRUST = TrustedKeys(SIGNING.public_jwk())


def documents() -> dict[str, bytes]:
    """Our card as 0.3 clients get it: alone, and together with the one of 1.0."""
    schemes = {
        "key": modern_scheme({"type": "apiKey", "in": "header", "name": "X-Key"}),
        "user": modern_scheme({"type": "http", "scheme": "bearer"}),
    }
    config = AgentCardConfig(
        name="Signed",
        description="",
        capabilities=CapabilitiesConfig(streaming=True),
        security_schemes=schemes,  # type: ignore[arg-type]
        security=[{"key": []}, {"user": ["read"]}],
    )
    card = CardSigner([SIGNING]).sign(
        build_card(config, "http://localhost", versions=("1.0", "0.3")), versions=("1.0", "0.3")
    )
    return {"alone": v0_3_card.to_v0_3(card), "both": v0_3_card.union(card)}


def run(command: str, card: bytes, folder: Path) -> subprocess.CompletedProcess[bytes]:
    python = environment("a2a-sdk-0.3.26-signing", "a2a-sdk[signing]==0.3.26")
    key: Any = KEY.as_dict(private=command == "sign")
    (folder / "key.json").write_text(json.dumps(key))
    script = [python, str(PEERS / "signatures_0_3.py"), command, str(folder / "key.json")]
    return subprocess.run(script, input=card, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize("form", ["alone", "both"])
def test_the_sdk_for_0_3_accepts_our_signature(form: str, tmp_path: Path) -> None:
    card = documents()[form]
    done = run("verify", card, tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    changed = card.replace(b'"description":""', b'"description":"changed"')
    assert b"InvalidSignaturesError" in run("verify", changed, tmp_path).stderr


def test_we_accept_the_signature_of_the_sdk_for_0_3(tmp_path: Path) -> None:
    fields = json.loads(documents()["alone"])
    del fields["signatures"]
    signed = run("sign", json.dumps(fields).encode(), tmp_path)
    assert signed.returncode == 0, signed.stderr.decode()
    assert verify_card(read_card(signed.stdout), TRUST, document=signed.stdout).kid == "key-1"
    changed = signed.stdout.replace(b"http://localhost", b"http://evil")
    with pytest.raises(UnverifiedCardError):
        verify_card(read_card(changed), TRUST, document=changed)
