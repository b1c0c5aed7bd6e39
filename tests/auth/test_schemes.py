"""The schemes that need no issuer, what all of them have in common, and the card that publishes them."""

from __future__ import annotations

import base64
import hashlib
import hmac
from contextlib import suppress
from typing import Any, NoReturn
from urllib.parse import quote

import pytest
import trustme
from cryptography import x509
from starlette.requests import Request

from errands import (
    AgentCardConfig,
    ApiKeyAuth,
    CallableAuth,
    Caller,
    CapabilitiesConfig,
    JWTAuth,
    MutualTLSAuth,
    SkillConfig,
    TaskContext,
    Worker,
)
from errands.errors import ConfigurationError
from errands.server.auth import AuthScheme, RefusedCredentialsError
from errands.testing import connect, http_client, serve
from tests.auth.issuer import AUDIENCE, ISSUER, Keys
from tests.grpc_binding.serving import old, over_grpc, pb, refusal

pytestmark = pytest.mark.anyio


class Whoami(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete(f"{ctx.tenant}/{ctx.owner}")


def sha256(key: str) -> str:
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def asked(headers: dict[str, str] | None = None, *, query: str = "", client: str = "10.0.0.1", **scope: Any) -> Request:
    """A request as a scheme sees it."""
    named = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    return Request(
        {"type": "http", "headers": named, "query_string": query.encode(), "client": (client, 1), "path": "/", **scope}
    )


# API keys


@pytest.mark.parametrize(
    ("options", "request_"),
    [
        ({}, asked({"X-API-Key": "k1"})),
        ({"header": "X-Agent-Key"}, asked({"x-agent-key": "k1"})),
        ({"query": "key"}, asked(query="a=b&key=k1")),
        ({"cookie": "session"}, asked({"Cookie": "a=b; session=k1"})),
    ],
)
async def test_a_key_is_taken_from_where_the_card_says(options: dict[str, Any], request_: Request) -> None:
    for key in ("k1", sha256("k1")):
        scheme = ApiKeyAuth(
            {key: Caller(owner="alice", tenant="acme", scopes=frozenset({"a"})), "k2": "bob"}, **options
        )
        caller = await scheme.authenticate(request_)
        assert caller == Caller(owner="alice", tenant="acme", scopes=frozenset({"a"}), scheme="api_key")
        assert await scheme.authenticate(asked()) is None


@pytest.mark.parametrize("options", [{"query": "key"}, {"cookie": "key"}])
async def test_a_key_in_the_address_or_a_cookie_is_not_taken_for_a_parameter(options: dict[str, Any]) -> None:
    server = serve(Whoami(), auth=[ApiKeyAuth({"k1": "alice"}, **options)])
    message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    async with server, http_client(server) as http:
        for path in ("/tasks", "/v1/tasks", "/tasks/unknown"):
            query = "?key=k1" if "query" in options else ""
            cookie = {"Cookie": "key=k1"} if "cookie" in options else {}
            assert (await http.get(path + query, headers=cookie)).status_code in (200, 404), path
        sent = await http.post(f"/message:send{query}", json={"message": message}, headers=cookie)
        assert sent.json()["task"]["artifacts"][0]["parts"][0]["text"] == "/alice"
        assert (await http.get("/tasks?key=k2", headers={"Cookie": "key=k2"})).status_code == 401


async def test_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    real = hmac.compare_digest

    def recorded(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", recorded)
    scheme = ApiKeyAuth([f"key {number}" for number in range(10)])
    for key in ("key 0", "key 9", "key", "x"):
        compared.clear()
        with suppress(RefusedCredentialsError):
            await scheme.authenticate(asked({"X-API-Key": key}))
        assert len(compared) == 10


@pytest.mark.parametrize(
    "keys", ["secret", [], {}, [""], {" ": "alice"}, {"k": 1}, {"k": Caller(owner="")}, ["sha256:12"]]
)
def test_keys_that_would_let_anybody_in_are_refused(keys: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        ApiKeyAuth(keys)
    assert "secret" not in str(refused.value)


async def test_a_credential_that_is_there_twice_is_refused() -> None:
    server = serve(Whoami(), auth=[ApiKeyAuth(["k1"]), MutualTLSAuth(header="Cert", trusted_proxies=["127.0.0.1"])])
    async with server, http_client(server) as http:
        for header in ("X-API-Key", "Cert"):
            answer = await http.get("/tasks", headers=[(header, "k1"), (header, "k2")])
            assert answer.status_code == 401


# Certificates


@pytest.fixture(scope="module")
def certificate() -> x509.Certificate:
    authority = trustme.CA()
    issued = authority.issue_cert("robot@example.com", common_name="robot", organization_name="Acme")
    return x509.load_pem_x509_certificate(issued.cert_chain_pems[0].bytes())


def pem(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415

    return certificate.public_bytes(Encoding.PEM).decode()


async def test_a_certificate_of_the_connection_names_the_caller(certificate: x509.Certificate) -> None:
    tls = {"tls": {"client_cert_chain": [pem(certificate)]}}
    names = {"email": "robot@example.com", "common_name": "robot", "fingerprint": None, "subject": None}
    for identity, name in names.items():
        caller = await MutualTLSAuth(identity=identity).authenticate(asked(extensions=tls))  # type: ignore[arg-type]
        assert caller is not None
        assert name in (None, caller.owner)
        assert caller.owner
    without: list[dict[str, Any]] = [{}, {"tls": {}}, {"tls": {"client_cert_chain": []}}]
    for nothing in without:
        assert await MutualTLSAuth().authenticate(asked(extensions=nothing)) is None
    with pytest.raises(RefusedCredentialsError, match="1 to 500"):
        await MutualTLSAuth(identity="uri").authenticate(asked(extensions=tls))


async def test_only_a_trusted_proxy_may_forward_a_certificate(certificate: x509.Certificate) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415

    structured = f":{base64.b64encode(certificate.public_bytes(Encoding.DER)).decode()}:"
    scheme = MutualTLSAuth(
        header="Client-Cert", trusted_proxies=["10.0.0.0/8"], identity="common_name", callers={"robot": "the robot"}
    )
    for value in (structured, quote(pem(certificate))):
        caller = await scheme.authenticate(asked({"Client-Cert": value}, client="10.1.2.3"))
        assert caller == Caller(owner="the robot", scheme="mutual_tls")
        assert await scheme.authenticate(asked({"Client-Cert": value}, client="::ffff:10.1.2.3")) == caller
        for stranger in ("11.0.0.1", "::1", "testclient", ""):
            assert await scheme.authenticate(asked({"Client-Cert": value}, client=stranger)) is None
    for value in ("x", ":x:", "robot", structured[:-20]):
        with pytest.raises(RefusedCredentialsError, match="cannot be read"):
            await scheme.authenticate(asked({"Client-Cert": value}))
    unknown = MutualTLSAuth(header="Client-Cert", trusted_proxies=["10.0.0.0/8"], callers={"robot": "the robot"})
    with pytest.raises(RefusedCredentialsError, match="not one of those"):
        await unknown.authenticate(asked({"Client-Cert": structured}))


@pytest.mark.parametrize(
    "options",
    [
        {"header": "Client-Cert"},
        {"trusted_proxies": ["10.0.0.1"]},
        {"header": "Client-Cert", "trusted_proxies": ["everywhere"]},
        {"header": "Client-Cert", "trusted_proxies": "10.0.0.1"},
        {"identity": "shoe size"},
    ],
)
def test_certificates_that_anybody_could_write_are_not_accepted(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        MutualTLSAuth(**options)


# Functions


async def test_a_function_may_know_the_callers() -> None:
    async def known(request: Request) -> Caller | None:
        user = request.headers.get("x-user")
        return Caller(owner=user) if user else None

    for check in (known, lambda request: Caller(owner="alice")):
        scheme = CallableAuth(check, scheme={"type": "http", "scheme": "basic"}, challenge="Basic")
        caller = await scheme.authenticate(asked({"X-User": "alice"}))
        assert caller == Caller(owner="alice", scheme="custom")
    server = serve(Whoami(), auth=[CallableAuth(known, scheme={"type": "http", "scheme": "basic"}, challenge="Basic")])
    async with server, http_client(server) as http:
        refused = await http.get("/tasks")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, 'Basic realm="a2a"')


async def test_a_function_that_fails_admits_nobody_and_says_nothing() -> None:
    def broken(request: Request) -> NoReturn:
        raise RuntimeError("the password is 1234")

    server = serve(Whoami(), auth=[CallableAuth(broken, scheme={"type": "http", "scheme": "basic"})])
    async with server, http_client(server) as http:
        answer = await http.get("/tasks")
        assert answer.status_code == 500
        assert "1234" not in answer.text


# Several schemes


def both(keys: Keys) -> list[AuthScheme]:
    return [JWTAuth(issuer=ISSUER, audience=AUDIENCE, keys=keys.published(), scopes=["use"]), ApiKeyAuth({"k": "bob"})]


async def test_any_scheme_is_enough_and_the_challenge_names_all_of_them() -> None:
    keys = Keys()
    server = serve(Whoami(), auth=both(keys))
    async with connect(server, client={"headers": {"X-API-Key": "k"}}) as client, http_client(server) as http:
        assert (await client.send("hi")).text == "/bob"
        token = {"Authorization": f"Bearer {keys.token(scope='use')}"}
        assert (await http.get("/tasks", headers=token)).json()["totalSize"] == 0
        assert (await http.get("/tasks", headers={"Authorization": "Bearer x", "X-API-Key": "k"})).status_code == 200
        refused = await http.get("/tasks", headers={"X-API-Key": "wrong"})
        wrong = 'error="invalid_token", error_description="The API key is not valid"'
        assert refused.headers.get_list("www-authenticate") == [
            'Bearer realm="a2a", scope="use"',
            f'ApiKey realm="a2a", {wrong}, in="header", name="X-API-Key"',
        ]
        assert refused.json()["error"]["details"][0]["metadata"] == {"schemes": "bearer, api_key"}


async def test_grpc_is_told_the_same_in_its_metadata() -> None:
    keys = Keys()
    async with over_grpc(serve(Whoami(), auth=both(keys), grpc_port=0)) as served:
        for call in (served.v1_0.GetTask(pb.GetTaskRequest(id="t")), served.v0_3.GetTask(old.GetTaskRequest(name="t"))):
            refused = await refusal(call)
            assert (refused.code, refused.reason) == ("UNAUTHENTICATED", "UNAUTHENTICATED")
            assert refused.metadata["www-authenticate"].startswith("ApiKey")  # the last of two
        lacking = (("authorization", f"Bearer {keys.token()}"),)
        denied = await refusal(served.v1_0.GetTask(pb.GetTaskRequest(id="t"), metadata=lacking))
        assert denied.code == "PERMISSION_DENIED"
        assert 'error="insufficient_scope"' in denied.metadata["www-authenticate"]


@pytest.mark.parametrize("path", ["/", "/message:send", "/v1/message:send", "/a2a"])
async def test_the_body_of_a_stranger_is_not_read(path: str) -> None:
    statuses: list[int] = []

    async def unread() -> NoReturn:
        raise AssertionError("the body was read")

    async def send(event: Any) -> None:
        if event["type"] == "http.response.start":
            statuses.append(event["status"])

    server = serve(Whoami(), auth=[ApiKeyAuth(["k"])])
    headers = [(b"host", b"agent.test"), (b"content-type", b"application/json"), (b"content-length", b"9999999")]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    async with server:
        await server.app({**scope, "headers": headers, "client": ("1.2.3.4", 5)}, unread, send)
    assert statuses == [401]


async def test_the_card_and_the_health_pages_are_public() -> None:
    server = serve(Whoami(), auth=[ApiKeyAuth(["k"])])
    async with server, http_client(server) as http:
        for path in ("/.well-known/agent-card.json", "/.well-known/agent.json", "/health", "/health/ready"):
            assert (await http.get(path)).status_code == 200
        assert server.asks_who_calls


@pytest.mark.parametrize(
    "auth", [[], ApiKeyAuth(["k"]), [ApiKeyAuth], ["api_key"], [ApiKeyAuth(["k"]), ApiKeyAuth(["l"])]]
)
def test_what_is_not_a_list_of_schemes_is_refused(auth: Any) -> None:
    with pytest.raises(ConfigurationError, match="auth"):
        serve(Whoami(), auth=auth)


# The card


CARD = AgentCardConfig(
    name="Clerk",
    description="Files things.",
    capabilities=CapabilitiesConfig(streaming=True, extended_agent_card=True),
    skills=[
        SkillConfig(id="read", name="Read", description="Reads."),
        SkillConfig(id="write", name="Write", description="Writes.", security=[{"bearer": ["write"]}]),
    ],
)


async def test_the_card_publishes_what_is_enforced_in_both_versions() -> None:
    keys = Keys()
    auth = [*both(keys), MutualTLSAuth()]
    server = serve(Whoami(), agent_card=CARD, auth=auth, extended_card_provider=extended)
    async with server, http_client(server) as http:
        new = (await http.get("/.well-known/agent-card.json", headers={"A2A-Version": "1.0"})).json()
        assert new["securitySchemes"] == {
            "bearer": {"httpAuthSecurityScheme": {"scheme": "bearer", "bearerFormat": "JWT"}},
            "api_key": {"apiKeySecurityScheme": {"location": "header", "name": "X-API-Key"}},
            "mutual_tls": {"mtlsSecurityScheme": {}},
        }
        requirements = [{"bearer": {"list": ["use"]}}, {"api_key": {"list": []}}, {"mutual_tls": {"list": []}}]
        assert new["securityRequirements"] == [{"schemes": one} for one in requirements]
        assert new["skills"][1]["securityRequirements"] == [{"schemes": {"bearer": {"list": ["write"]}}}]
        older = (await http.get("/.well-known/agent-card.json", headers={"A2A-Version": "0.3"})).json()
        assert older["securitySchemes"]["api_key"] == {"type": "apiKey", "in": "header", "name": "X-API-Key"}
        assert older["security"] == [{"bearer": ["use"]}, {"api_key": []}, {"mutual_tls": []}]
        assert older["skills"][1]["security"] == [{"bearer": ["write"]}]

        assert (await http.get("/extendedAgentCard")).status_code == 401
        shown = (await http.get("/extendedAgentCard", headers={"X-API-Key": "k"})).json()
        assert shown["name"] == "Clerk for members"
        assert shown["securitySchemes"] == new["securitySchemes"]
    assert CARD.security_schemes is None  # the author's card is as it was


def test_the_card_says_where_clients_get_tokens() -> None:
    keys, url = Keys().published(), "https://id.example.com/token"
    scheme = JWTAuth(issuer=ISSUER, audience=AUDIENCE, keys=keys, scopes=["use"], token_url=url)
    published = serve(Whoami(), auth=[scheme]).agent_card.security_schemes
    assert published is not None
    oauth2 = published["bearer"].oauth2_security_scheme
    assert oauth2 is not None
    assert oauth2.flows.client_credentials is not None
    assert (oauth2.flows.client_credentials.token_url, oauth2.flows.client_credentials.scopes) == (url, {"use": ""})


async def extended(request: Request) -> AgentCardConfig:
    return AgentCardConfig(name="Clerk for members", description="Files more.")


async def test_the_scopes_of_a_skill_are_needed_by_messages_that_name_it() -> None:
    keys = Keys()
    auth = [JWTAuth(issuer=ISSUER, audience=AUDIENCE, keys=keys.published()), ApiKeyAuth({"k": "bob"})]
    server = serve(Whoami(), agent_card=CARD, auth=auth, extended_card_provider=extended)

    async def send(skill: str, headers: dict[str, str]) -> int:
        message = {"messageId": skill, "role": "ROLE_USER", "parts": [{"text": "hi"}]}
        for body in (
            {"message": {**message, "metadata": {"skillId": skill}}},
            {"message": message, "metadata": {"skillId": skill}},
        ):
            answer = await http.post("/message:send", json=body, headers=headers)
        return answer.status_code

    async with server, http_client(server) as http:
        reader = {"Authorization": f"Bearer {keys.token()}"}
        writer = {"Authorization": f"Bearer {keys.token(scope='write')}"}
        assert [await send("read", one) for one in (reader, writer, {"X-API-Key": "k"})] == [200, 200, 200]
        assert [await send("write", one) for one in (reader, writer, {"X-API-Key": "k"})] == [403, 200, 403]
        assert await send("unknown", reader) == 200


def test_a_skill_that_asks_for_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"the skill write .*api_key"):
        serve(Whoami(), agent_card=CARD, auth=[ApiKeyAuth(["k"])])
