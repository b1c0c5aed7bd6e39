"""Authentication without code: files, settings and `errands serve --auth`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from errands import A2AServer, Settings, TaskContext, Worker
from errands.cli.serve import LoadServer
from errands.cli.target import ManifestOptions
from errands.errors import ConfigurationError
from errands.runtime.settings import SECRET
from errands.server.auth_file import load_auth
from errands.testing import http_client, serve
from tests.auth.issuer import Keys

pytestmark = pytest.mark.anyio

HASH = "sha256:" + hashlib.sha256(b"carols key").hexdigest()
FILE = f"""
schemes:
  - type: api_key
    header: X-Agent-Key
    keys:
      ${{ALICE_KEY}}: alice
      ${{file:bob.txt}}: {{owner: bob, tenant: acme, scopes: [audit]}}
      "{HASH}": carol
  - type: oidc
    issuer: https://id.example.com
    audience: my-agent
    scopes: [agent.use]
    tenant: org_id
    prefix: ""
  - type: jwt
    name: partner
    issuer: https://partner.example.com
    audience: [my-agent, other]
    jwks_url: https://partner.example.com/keys
    algorithms: [ES256]
    prefix: "partner:"
  - type: introspection
    url: https://id.example.com/introspect
    client_id: errands
    client_secret: ${{ALICE_KEY}}
    prefix: "opaque:"
  - type: mutual_tls
    header: Client-Cert
    trusted_proxies: [10.0.0.0/8]
rules:
  - name: auditors
    when: "'audit' in caller.scopes"
    grant: read
"""


class Whoami(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete(f"{ctx.tenant}/{ctx.owner}")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ALICE_KEY", "alices key")
    (tmp_path / "bob.txt").write_text("bobs key\n")
    path = tmp_path / "auth.yaml"
    path.write_text(FILE)
    return path


async def who(server: A2AServer, key: str, header: str = "X-Agent-Key") -> str | int:
    """As whom the holder of a key is known, or the status of the refusal."""
    message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    async with server, http_client(server) as http:
        answer = await http.post("/message:send", json={"message": message}, headers={header: key})
        if answer.status_code != 200:
            return answer.status_code
        text: str = answer.json()["task"]["artifacts"][0]["parts"][0]["text"]
        return text


async def test_a_file_has_the_same_schemes_and_rules_as_a_program(file: Path) -> None:
    found = load_auth(file)
    names = ["api_key", "oidc", "partner", "oauth2_introspection", "mutual_tls"]
    assert [scheme.name for scheme in found.schemes] == names
    assert [rule.grant for rule in found.rules] == ["read"]
    server = serve(Whoami(), auth=file)
    assert list(server.agent_card.security_schemes or {}) == names
    assert [await who(server, key) for key in ("alices key", "bobs key", "carols key", HASH, "x")] == [
        "/alice",
        "acme/bob",
        "/carol",
        401,
        401,
    ]


@pytest.mark.parametrize("by", ["setting", "variable", "command line"])
async def test_a_program_is_protected_without_being_touched(
    file: Path, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "agent.py"
    program.write_text(
        "from errands import agent\n\n\n@agent\ndef clerk(text: str) -> str:\n    '''Files.'''\n    return '/' + text\n"
    )
    if by == "variable":
        monkeypatch.setenv("ERRANDS_AUTH", str(file))
    if by == "setting":
        server = serve(Whoami(), settings=Settings(auth=str(file)))
    else:
        load = LoadServer(
            target=str(program),
            storage="memory",
            manifest=ManifestOptions(None, None, None),
            policy=None,
            auth=str(file) if by == "command line" else None,
            tls={},
            role=None,
            host="127.0.0.1",
            grpc_port=None,
            log_level=None,
            log_format=None,
        )
        monkeypatch.setattr("errands.cli.serve.configure_logging", lambda *_: None)
        server = load()
    assert server.asks_who_calls
    assert await who(server, "x") == 401
    assert str(await who(server, "alices key")).startswith("/")


async def test_keys_and_a_provider_can_be_set_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ERRANDS_AUTH_API_KEYS", f"alice=k1, carol={HASH}")
    monkeypatch.setenv("ERRANDS_AUTH_ISSUER", "https://id.example.com")
    monkeypatch.setenv("ERRANDS_AUTH_AUDIENCE", "my-agent")
    monkeypatch.setenv("ERRANDS_AUTH_CONSOLE_CLIENT", "errands-console")
    server = serve(Whoami())
    assert list(server.agent_card.security_schemes or {}) == ["api_key", "oidc"]
    assert [one.params for one in server.agent_card.extensions] == [{"clients": {"oidc": "errands-console"}}]
    assert await who(server, "k1", "X-API-Key") == "/alice"
    assert await who(server, "carols key", "X-API-Key") == "/carol"
    monkeypatch.delenv("ERRANDS_AUTH_AUDIENCE")
    with pytest.raises(ConfigurationError, match="belong together"):
        serve(Whoami())


@pytest.mark.parametrize("keys", ["topsecret", "=topsecret", "alice=", "alice=topsecret,"])
def test_keys_that_cannot_be_read_are_not_repeated(keys: str) -> None:
    with pytest.raises(ConfigurationError, match="AUTH_API_KEYS") as refused:
        serve(Whoami(), auth_api_keys=keys)
    assert "topsecret" not in str(refused.value)


def test_secrets_are_not_printed() -> None:
    assert "auth_api_keys" in SECRET
    assert "topsecret" not in repr(Settings(auth_api_keys="alice=topsecret"))
    server = serve(Whoami(), auth_api_keys="alice=topsecret")
    assert "topsecret" not in repr(server._authorization.authentication.schemes)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("schemes: []", "schemes is empty"),
        ("", "schemes"),
        ("[1]", "schemes"),
        ("scheme: []", "schemes"),
        ("schemes: [{type: password}]", "type must be one of api_key, jwt"),
        ("schemes: [{keys: [topsecret]}]", "type must be one of"),
        ("schemes: [{type: api_key}]", r"schemes\[0\] needs keys"),
        ("schemes: [{type: api_key, keys: topsecret}]", r"schemes\[0\].keys"),
        ("schemes: [{type: api_key, keys: {topsecret: 1}}]", r"schemes\[0\].keys"),
        ("schemes: [{type: api_key, keys: {topsecret: {name: alice}}}]", r"schemes\[0\].keys"),
        ("schemes: [{type: api_key, keys: [''], name: x}]", "not empty"),
        ("schemes: [{type: api_key, key: topsecret}]", "unknown field 'key'"),
        ("schemes: [{type: api_key, keys: ['${NOT_THERE}']}]", "NOT_THERE is not set"),
        ("schemes: [{type: api_key, keys: ['${file:gone.txt}']}]", "gone.txt cannot be read"),
        ("schemes: [{type: oidc, issuer: 'https://x.example.com'}]", r"schemes\[0\] needs audience"),
        ("schemes: [{type: oidc, issuer: 'http://x.example.com', audience: a}]", "https://"),
        ("schemes: [{type: oidc, issuer: 1, audience: a}]", r"schemes\[0\].issuer"),
        ("schemes: [{type: oidc, issuer: 'https://x.example.com', audience: a, self: 1}]", "unknown field 'self'"),
        ("schemes: [{type: jwt, issuer: a, audience: a}]", "either jwks_url or keys"),
        ("schemes: [{type: api_key, keys: [a]}]\nrules: [{when: 'true'}]", "either deny or grant"),
        ("schemes: [{type: api_key, keys: [a]}]\nrules: [{if: 'true', deny: x}]", "rules"),
        ("schemes: [{type: api_key, keys: [a]}]\nrules: [{when: 'x', deny: y}]", "'x' is not available"),
        ("schemes: [", "not valid YAML"),
    ],
)
def test_a_file_that_is_wrong_says_where_and_repeats_no_secret(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "auth.yaml"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=problem) as refused:
        serve(Whoami(), auth=path)
    assert "topsecret" not in str(refused.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"the auth file .* cannot be read"):
        serve(Whoami(), auth=str(tmp_path / "auth.yaml"))


def test_keys_of_an_issuer_may_stand_in_the_file(tmp_path: Path) -> None:
    import yaml  # noqa: PLC0415 - untyped

    entry: dict[str, Any] = {"type": "jwt", "issuer": "me", "audience": "you", "keys": Keys().published()}
    path = tmp_path / "auth.yaml"
    path.write_text(yaml.safe_dump({"schemes": [entry]}))
    assert [scheme.name for scheme in load_auth(path).schemes] == ["bearer"]
