"""Signs or verifies a card with a2a-sdk 0.3: `signatures_0_3.py sign|verify KEY`, with the card on stdin and stdout."""

from __future__ import annotations

import json
import sys

import jwt
from a2a.types import AgentCard
from a2a.utils.signing import create_agent_card_signer, create_signature_verifier

command, key_file = sys.argv[1:]
with open(key_file) as file:
    key = jwt.PyJWK(json.load(file), algorithm="ES256")
card = AgentCard.model_validate_json(sys.stdin.buffer.read())
if command == "sign":
    header = {"kid": "key-1", "alg": "ES256", "jku": None, "typ": "JOSE"}
    card = create_agent_card_signer(key, header)(card)
else:
    create_signature_verifier(lambda kid, jku: key, ["ES256"])(card)
print(card.model_dump_json(by_alias=True, exclude_none=True))
