"""`errands card sign` and `errands card verify`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from joserfc.jwk import ECKey

from errands import A2AServer, AgentCardConfig, SigningKey, TaskContext, Worker
from tests.unit.cli.conftest import Errands, live

CARD = {
    "name": "Zoë",
    "description": "",
    "version": "1",
    "supportedInterfaces": [{"url": "http://a/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
    "capabilities": {},
    "skills": [],
    "defaultInputModes": [],
    "defaultOutputModes": [],
}
OLD_CARD = {"name": "Old", "url": "http://a/", "protocolVersion": "0.3.0", "preferredTransport": "JSONRPC"}


class Silent(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete()


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ECKey:
    monkeypatch.chdir(tmp_path)
    key = ECKey.generate_key("P-256")
    Path("private.pem").write_bytes(key.as_pem(private=True))
    Path("public.pem").write_bytes(key.as_pem(private=False))
    Path("other.pem").write_bytes(ECKey.generate_key("P-256").as_pem(private=False))
    return key


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("card", [CARD, OLD_CARD], ids=["1.0", "0.3"])
def test_a_card_in_a_file_is_signed_and_verified(errands: Errands, card: dict[str, object]) -> None:
    Path("card.json").write_text(json.dumps(card))
    signed = errands("card", "sign", "card.json", "--key", "private.pem", "--kid", "mine", "--jku", "https://a/jwks")
    assert signed.exit_code == 0
    Path("signed.json").write_text(signed.stdout)
    verified = errands("card", "verify", "signed.json", "--key", "other.pem", "--key", "public.pem", "--json")
    assert json.loads(verified.stdout) == {
        "place": "signed.json",
        "kid": "mine",
        "algorithm": "ES256",
        "jku": "https://a/jwks",
    }
    Path("signed.json").write_text(signed.stdout.replace("http://a/", "http://b/"))
    refused = errands("card", "verify", "signed.json", "--key", "public.pem")
    assert refused.exit_code == 1
    assert "is not trusted: signature 1: it was not made with the key 'mine'" in " ".join(refused.stderr.split())


def test_the_card_of_an_agent_is_verified_with_its_key_set(errands: Errands, keys: ECKey) -> None:
    config = AgentCardConfig(name="Signed", description="Has a signature.")
    key = SigningKey(keys.as_dict(private=True), kid="mine")
    server = A2AServer(worker=Silent(), agent_card=config, storage="memory", signing=[key])
    with live(server) as url:
        verified = errands("card", "verify", url, "--jwks", f"{url}/.well-known/jwks.json")
        assert verified.exit_code == 0
        assert "is signed with the key mine (ES256)" in " ".join(verified.stdout.split())
        assert errands("card", "verify", url, "--key", "other.pem").exit_code == 1
        assert errands("card", url).exit_code == errands("card", "show", url).exit_code == 0


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["sign", "card.json", "--key", "public.pem"], "signed with a private key"),
        (["sign", "card.json", "--key", "missing.pem"], "missing.pem cannot be read"),
        (["sign", "missing.json", "--key", "private.pem"], "'missing.json' is neither an address"),
        (["sign", "card.json", "--key", "private.pem", "--key", "private.pem", "--kid", "x"], "--kid names one key"),
        (["verify", "card.json"], "with --key FILE or --jwks URL"),
        (["verify", "card.json", "--jwks", "http://keys.example/"], "expected https"),
    ],
)
def test_wrong_arguments_are_explained(errands: Errands, arguments: list[str], problem: str) -> None:
    Path("card.json").write_text(json.dumps(CARD))
    result = errands("card", *arguments)
    assert result.exit_code == 2
    assert problem in " ".join(result.stderr.split())
