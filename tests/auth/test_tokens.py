"""Bearer tokens of a real OpenID provider: keys that change, providers that fail, strangers that flood."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from errands import IntrospectionAuth, JWTAuth, OIDCAuth, TaskContext, Worker
from errands.errors import ConfigurationError, UnavailableError
from errands.outbound import Outbound, Resolve
from errands.server.auth import AuthScheme, RefusedCredentialsError
from errands.server.tokens import BearerAuth, IssuerError, IssuerKeys
from errands.testing import http_client, serve
from tests.auth.issuer import AUDIENCE, ISSUER, Keys, Provider, now

pytestmark = pytest.mark.anyio

#: The provider runs on this machine, which the guard closes unless the operator opens it.
HERE: dict[str, Any] = {"outbound_allow": "127.0.0.1"}


class Whoami(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        caller = ctx.request_context["caller"]
        await ctx.complete_json(
            {"owner": ctx.owner, "scopes": sorted(caller.scopes), "context": str(ctx.request_context)}
        )


@asynccontextmanager
async def agent(*auth: AuthScheme, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    server = serve(Whoami(), auth=list(auth), **{**HERE, **options})
    async with server, http_client(server) as http:
        yield http


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def status(http: httpx.AsyncClient, token: str) -> int:
    return (await http.get("/tasks", headers=bearer(token))).status_code


def oidc(idp: Provider, **options: Any) -> OIDCAuth:
    return OIDCAuth(issuer=idp.url, audience=AUDIENCE, **{"allow_http": True, "retry_after": 0.0, **options})


# OpenID providers


async def test_a_token_of_the_provider_is_accepted_and_its_claims_become_the_caller(idp: Provider) -> None:
    async with agent(oidc(idp)) as http:
        async with httpx.AsyncClient() as client:
            form = {"grant_type": "client_credentials", "client_id": "robot", "audience": AUDIENCE, "scope": "a b"}
            token = (await client.post(f"{idp.url}/token", data=form)).json()["access_token"]
        message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
        answer = await http.post("/message:send", json={"message": message}, headers=bearer(token))
        seen = answer.json()["task"]["artifacts"][0]["parts"][0]["data"]
        assert (seen["owner"], seen["scopes"]) == ("robot", ["a", "b"])
        assert token not in answer.text


async def test_keys_are_rotated_while_the_agent_serves(idp: Provider) -> None:
    async with agent(oidc(idp)) as http:
        before = idp.token()
        assert await status(http, before) == 200
        for _ in range(3):
            idp.rotate()
            after = idp.token()
            assert await status(http, after) == 200
            assert await status(http, before) == 401  # its key is no longer published
            before = after


async def test_many_requests_at_once_fetch_the_keys_once(idp: Provider) -> None:
    async with agent(oidc(idp)) as http:
        assert set(await asyncio.gather(*(status(http, idp.token()) for _ in range(50)))) == {200}
        assert (idp.asked["/.well-known/openid-configuration"], idp.asked["/keys"]) == (1, 1)


async def test_tokens_with_invented_keys_do_not_make_the_server_ask_again_and_again(idp: Provider) -> None:
    async with agent(oidc(idp, retry_after=3600.0)) as http:
        assert await status(http, idp.token()) == 200
        assert {await status(http, Keys().token(iss=idp.url)) for _ in range(50)} == {401}
        assert idp.asked["/keys"] == 1
        assert await status(http, idp.token()) == 200


async def test_a_provider_that_fails_makes_the_server_unavailable_and_not_open(idp: Provider) -> None:
    async with agent(oidc(idp)) as http:
        idp.status = 500
        answer = await http.get("/tasks", headers=bearer(idp.token()))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
        assert idp.url not in answer.text
        idp.status = 200
        assert await status(http, idp.token()) == 200
        idp.status = 500  # keys that are known are used further
        assert await status(http, idp.token()) == 200
        assert await status(http, Keys().token(iss=idp.url)) == 401


async def test_another_scheme_may_know_the_caller_while_a_provider_fails(idp: Provider) -> None:
    keys = Keys()
    other = JWTAuth(issuer=ISSUER, audience=AUDIENCE, keys=keys.published(), prefix="other:")
    same = JWTAuth(issuer=idp.url, audience=AUDIENCE, keys=idp.published(), prefix="", name="same")
    idp.status = 500
    async with agent(oidc(idp, prefix=""), other, same) as http:
        assert await status(http, keys.token()) == 200
        assert not idp.asked  # it is not the issuer
        assert await status(http, idp.token()) == 200
        assert await status(http, Keys().token(iss=idp.url)) == 503


@pytest.mark.parametrize(
    "document",
    [
        {"issuer": "https://other.example.com"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": "http://user:password@127.0.0.1/keys"},
        {"jwks_uri": None},
    ],
)
async def test_a_discovery_document_that_cannot_be_trusted_is_not_used(idp: Provider, document: dict[str, Any]) -> None:
    idp.discovery = document
    async with agent(oidc(idp)) as http:
        assert await status(http, idp.token()) == 503
        assert idp.asked["/keys"] == 0


async def test_keys_over_plain_http_are_for_development_only(idp: Provider) -> None:
    with pytest.raises(ConfigurationError, match="https://"):
        oidc(idp, allow_http=False)


async def test_old_keys_are_used_for_an_hour_and_no_longer() -> None:
    time = 0.0
    fetched: list[str] = []

    async def fetch() -> Any:
        fetched.append("keys")
        if len(fetched) > 1:
            raise IssuerError("gone")
        return ["first"]

    keys = IssuerKeys(fetch, refresh_after=300, retry_after=10, clock=lambda: time)
    assert await keys.current() == ["first"]
    time = 301.0
    assert await keys.current() == ["first"]  # and others are fetched meanwhile
    assert await keys.newer_than(await keys.current()) == ["first"]
    assert len(fetched) == 2
    assert await keys.newer_than(await keys.current()) == ["first"]
    assert len(fetched) == 2  # it is too early to ask again
    time = 3601.0
    with pytest.raises(Exception, match="try again later"):
        await keys.current()
    await keys.close()


# Tokens


def forged(header: dict[str, Any], token: str) -> str:
    """The token with another header and without a signature."""
    encoded = base64.urlsafe_b64encode(json.dumps(header).encode()).rstrip(b"=").decode()
    return f"{encoded}.{token.split('.')[1]}."


def signed_with_public_key(token: str, public: bytes) -> str:
    """The token with a signature by a key that everyone knows, taken for a shared one."""
    signature = hmac.digest(public, token.rstrip(".").encode(), "sha256")
    return token + base64.urlsafe_b64encode(signature).rstrip(b"=").decode()


async def test_a_token_that_is_not_signed_as_it_must_be_is_refused() -> None:
    keys = Keys()
    public = keys.keys[0].as_pem(private=False)
    kid = keys.keys[0].kid
    good = keys.token()
    hostile = [
        forged({"alg": "none"}, good),
        forged({"alg": "none", "kid": kid}, good),
        forged({"alg": "ES256", "kid": kid}, good),
        signed_with_public_key(forged({"alg": "HS256", "kid": kid}, good), public),
        good[:-4] + "AAAA",
        f"{good}.",
        f"{good}.a.b",
        "..",
        "a.b.c",
        good.replace(".", ""),
        "x" * 20_000,
        "é.é.é",
        forged({"alg": "ES256", "kid": kid, "crit": ["b64"], "b64": False}, good),
        forged({"alg": "ES256", "kid": kid, "jku": "https://evil.example.com/keys"}, good),
    ]
    async with agent(JWTAuth(issuer=ISSUER, audience=AUDIENCE, keys=keys.published())) as http:
        assert await status(http, good) == 200
        for token in hostile:
            answer = await http.get("/tasks", headers={b"Authorization": f"Bearer {token}".encode()})
            assert answer.status_code == 401, token[:60]
            assert token not in answer.text
            assert 'error="invalid_token"' in answer.headers["www-authenticate"]


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"exp": now() - 31}, "has expired"),
        ({"exp": None}, "claim exp"),
        ({"exp": "soon"}, "claim exp"),
        ({"nbf": now() + 3600}, "valid"),
        ({"aud": None}, "claim aud"),
        ({"aud": ["other", "another"]}, "claim aud"),
        ({"iss": None}, "claim iss"),
        ({"sub": None}, "claim sub"),
        ({"sub": ""}, "claim sub"),
        ({"sub": ["alice"]}, "claim sub"),
        ({"sub": "a" * 501}, "claim sub"),
    ],
)
async def test_a_token_whose_claims_do_not_fit_is_refused_with_the_reason(claims: dict[str, Any], problem: str) -> None:
    keys = Keys()
    async with agent(JWTAuth(issuer=ISSUER, audience=AUDIENCE, keys=keys.published())) as http:
        answer = await http.get("/tasks", headers=bearer(keys.token(**claims)))
        assert answer.status_code == 401
        assert problem in answer.json()["error"]["message"]
        assert problem in answer.headers["www-authenticate"]


async def test_clocks_may_differ_a_little_and_one_of_several_audiences_is_enough() -> None:
    keys = Keys()
    async with agent(JWTAuth(issuer=ISSUER, audience=["x", AUDIENCE], keys=keys.published(), leeway=60)) as http:
        assert await status(http, keys.token(exp=now() - 20, aud=["other", AUDIENCE])) == 200


async def test_a_token_without_a_required_scope_is_refused_and_told_which_one() -> None:
    keys = Keys()
    scheme = JWTAuth(issuer=ISSUER, audience=AUDIENCE, keys=keys.published(), scopes=["agent.use"])
    async with agent(scheme) as http:
        assert await status(http, keys.token(scope="agent.use more")) == 200
        assert await status(http, keys.token(scp=["agent.use"])) == 200
        answer = await http.get("/tasks", headers=bearer(keys.token(scope="more")))
        assert answer.status_code == 403
        challenge = answer.headers["www-authenticate"]
        assert challenge == 'Bearer realm="a2a", error="insufficient_scope", scope="agent.use"'
        assert (await http.get("/tasks")).headers["www-authenticate"] == 'Bearer realm="a2a", scope="agent.use"'


async def test_workers_see_the_token_only_if_the_author_asks_for_it() -> None:
    keys = Keys()
    token = keys.token()
    for passes in (False, True):
        scheme = JWTAuth(issuer=ISSUER, audience=AUDIENCE, keys=keys.published(), pass_token=passes)
        async with agent(scheme) as http:
            message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
            answer = await http.post("/message:send", json={"message": message}, headers=bearer(token))
            assert (token in answer.text) is passes


async def test_no_token_is_logged(idp: Provider, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    tokens = [idp.token(), Keys().token(iss=idp.url), idp.token(exp=1), "opaque"]
    scheme = IntrospectionAuth(
        url=f"{idp.url}/introspect", client_id=idp.client[0], client_secret=idp.client[1], allow_http=True, prefix="i:"
    )
    async with agent(oidc(idp, prefix=""), scheme) as http:
        for token in tokens:
            await status(http, token)
    assert caplog.records
    assert not [token for token in (*tokens, idp.client[1]) if token in caplog.text]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"keys": None}, "either jwks_url or keys"),
        ({"jwks_url": "https://id.example.com/keys"}, "either jwks_url or keys"),
        ({"keys": {"keys": []}}, "no key that can be used"),
        ({"audience": ""}, "must not be empty"),
        ({"issuer": ""}, "must not be empty"),
        ({"algorithms": ["none"]}, "invalid algorithm 'none'"),
        ({"algorithms": ["ES257"]}, "invalid algorithm 'ES257'"),
        ({"algorithms": []}, "at least one"),
        ({"keys": None, "jwks_url": "https://id.example.com/keys", "algorithms": ["HS256"]}, "needs a shared key"),
    ],
)
def test_a_configuration_that_would_let_strangers_in_is_refused(options: dict[str, Any], problem: str) -> None:
    arguments = {"issuer": ISSUER, "audience": AUDIENCE, "keys": Keys().published(), **options}
    with pytest.raises(ConfigurationError, match=problem):
        JWTAuth(**arguments)


def test_two_issuers_need_names_that_differ() -> None:
    schemes = [
        JWTAuth(issuer=f"https://{name}", audience=AUDIENCE, keys=Keys().published(), name=name, prefix=prefix)
        for name, prefix in {"a": "a:", "b": None}.items()
    ]
    with pytest.raises(ConfigurationError, match="so b needs a prefix"):
        serve(Whoami(), auth=schemes)


# Introspection


def introspection(idp: Provider, **options: Any) -> IntrospectionAuth:
    user, password = idp.client
    return IntrospectionAuth(
        url=f"{idp.url}/introspect", client_id=user, client_secret=password, allow_http=True, **options
    )


async def test_an_active_token_is_accepted_and_asked_about_once(idp: Provider) -> None:
    async with agent(introspection(idp, audience=AUDIENCE, issuer=idp.url)) as http:
        token = idp.token()
        assert set(await asyncio.gather(*(status(http, token) for _ in range(20)))) == {200}
        assert {await status(http, "invented") for _ in range(20)} == {401}
        assert idp.asked["/introspect"] == 2
        assert await status(http, idp.token(aud="other")) == 401
        assert await status(http, idp.token(iss="https://evil.example.com")) == 401


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"active": True, "sub": "alice", "aud": AUDIENCE, "exp": None}, ""),
        ({"active": True, "sub": "alice", "aud": [AUDIENCE, 1], "exp": 9e9}, ""),
        ({"active": True, "sub": "alice", "aud": 42}, "aud"),
        ({"active": True, "sub": "alice", "aud": {AUDIENCE: 1}}, "aud"),
        ({"active": True, "sub": "alice", "aud": AUDIENCE, "exp": "soon"}, "expired"),
        ({"active": "true", "sub": "alice", "aud": AUDIENCE}, "not valid"),
        ([], "not valid"),
    ],
)
async def test_an_unusual_answer_is_understood_or_refused(answer: Any, problem: str) -> None:
    scheme = IntrospectionAuth(url="https://id.example.com", client_id="a", client_secret="b", audience=AUDIENCE)

    async def ask(*_: Any, **__: Any) -> Any:
        return answer

    scheme.ask = ask  # type: ignore[method-assign]
    if problem:
        with pytest.raises(RefusedCredentialsError, match=problem):
            await scheme.claims_of("token")
    else:
        assert (await scheme.claims_of("token"))["sub"] == "alice"


async def test_a_revoked_token_is_refused_once_its_answer_is_old(idp: Provider) -> None:
    async with agent(introspection(idp, cache_for=0.0)) as http:
        token = idp.token()
        assert await status(http, token) == 200
        idp.revoked.add(token)
        assert await status(http, token) == 401


async def test_invented_tokens_do_not_displace_what_is_known_of_valid_ones(
    idp: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IntrospectionAuth, "most_cached", 5)
    async with agent(introspection(idp)) as http:
        token = idp.token()
        assert await status(http, token) == 200
        for number in range(20):
            assert await status(http, f"invented {number}".replace(" ", "-")) == 401
        asked = idp.asked["/introspect"]
        assert await status(http, token) == 200
        assert idp.asked["/introspect"] == asked


async def test_a_server_that_cannot_be_asked_admits_nobody(idp: Provider) -> None:
    async with agent(introspection(idp)) as http:
        idp.status = 500
        assert await status(http, idp.token()) == 503


# Where issuers may be


@pytest.mark.parametrize(
    "url",
    [
        "http://id.example.com/keys",
        "https://user:password@id.example.com/keys",
        "https://id.example.com/keys\r\nX-Evil: 1",
        "https://id.example.com /keys",
        "https://id.example.com\\@evil.example.com/keys",
        "https://id.example.com/keys#fragment",
        "https://",
        "https://[::1",
        "https://id.example.com:99999/keys",
        "file:///etc/passwd",
        "ftp://id.example.com/keys",
        "",
    ],
)
def test_an_address_that_is_not_what_it_looks_like_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        JWTAuth(issuer=ISSUER, audience=AUDIENCE, jwks_url=url)
    assert "password" not in str(refused.value)


HOSTS = [
    "127.0.0.1",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "127.1",
    "169.254.169.254",
    "10.0.0.1",
    "0.0.0.0",
    "localhost",
]


async def test_a_closed_address_is_not_asked_for_keys_however_it_is_written(idp: Provider) -> None:
    port = idp.url.rpartition(":")[2]
    outbound = Outbound()
    for host in HOSTS:
        base = f"http://{host}:{port}"
        schemes: list[BearerAuth] = [
            JWTAuth(issuer=base, audience=AUDIENCE, jwks_url=f"{base}/keys", allow_http=True),
            OIDCAuth(issuer=base, audience=AUDIENCE, allow_http=True),
            IntrospectionAuth(url=f"{base}/introspect", client_id="a", client_secret="b", allow_http=True),
        ]
        for scheme in schemes:
            scheme.open(outbound)
            with pytest.raises(UnavailableError, match="try again later"):
                await scheme.claims_of(idp.token(iss=base))
            await scheme.close()
    assert not idp.asked


async def test_a_redirect_is_not_followed(idp: Provider) -> None:
    idp.status = 302
    async with agent(JWTAuth(issuer=idp.url, audience=AUDIENCE, jwks_url=f"{idp.url}/keys", allow_http=True)) as http:
        assert await status(http, idp.token()) == 503
        assert idp.asked["/keys"] == 1


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["93.184.215.14", "127.0.0.1"], ["::ffff:127.0.0.1"]])
async def test_a_name_is_judged_by_its_addresses_each_time_it_is_asked(idp: Provider, addresses: list[str]) -> None:
    port = idp.url.rpartition(":")[2]

    async def lying(host: str, port: int) -> list[str]:
        return addresses

    resolve: Resolve = lying
    scheme = JWTAuth(issuer=ISSUER, audience=AUDIENCE, jwks_url=f"http://id.example.com:{port}/keys", allow_http=True)
    scheme.open(Outbound(resolve=resolve))
    with pytest.raises(IssuerError, match="only public addresses"):
        await scheme.ask("GET", f"http://id.example.com:{port}/keys")
    await scheme.close()
    assert not idp.asked
