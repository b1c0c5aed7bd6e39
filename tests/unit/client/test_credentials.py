"""Credentials of a client, against real servers: an agent that asks for them, and one that issues tokens."""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
import trustme
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from errands import A2AClient, A2AServer, AgentCardConfig, CapabilitiesConfig, TaskContext, Worker
from errands.client import (
    AgentNotFoundError,
    ApiKey,
    BasicAuth,
    BearerToken,
    ClientCertificate,
    ClientCredentials,
    Credential,
    CredentialsError,
    ForeignOriginError,
    ProtocolError,
    TokenExchange,
)
from errands.client.agent_session import TransientError
from errands.client.credentials import Origins
from errands.client.grpc_transport import GrpcTransport, channel_credentials
from errands.errors import AuthenticationRequiredError, ConfigurationError
from errands.model.requests import GetTaskRequest
from errands.operations import OPERATIONS
from errands.runtime.middleware import A2AMiddleware, RequestEnvelope, head_only
from errands.testing import connect
from tests.live import live

pytestmark = pytest.mark.anyio

SECRET = "s3cret-value"
#: Every interface of an errands agent.
INTERFACES = [
    ("jsonrpc", "1.0"),
    ("http+json", "1.0"),
    ("grpc", "1.0"),
    ("jsonrpc", "0.3"),
    ("http+json", "0.3"),
    ("grpc", "0.3"),
]
BEARER = {"type": "http", "scheme": "bearer"}


class Echo(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete(f"Echo: {ctx.user_text}")


class Door(A2AMiddleware):
    """Admits requests that have all of these; `header:NAME`, `query:NAME` or `cookie:NAME` says where."""

    def __init__(self, **wanted: set[str]) -> None:
        self.wanted = wanted
        self.seen: list[dict[str, str | None]] = []

    @head_only
    async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
        places: dict[str, Any] = {"header": request.headers, "query": request.query_params, "cookie": request.cookies}
        seen: dict[str, str | None] = {}
        for place, accepted in self.wanted.items():
            where, _, name = place.partition("_")
            value = places[where].get(name.replace("_", "-"))
            seen[place] = value
            if value not in accepted:
                self.seen.append(seen)
                raise AuthenticationRequiredError
        self.seen.append(seen)


@contextmanager
def agent(door: Door, schemes: dict[str, Any], security: list[dict[str, list[str]]] | None = None) -> Iterator[str]:
    """The address of an agent that asks for what its card says."""
    server = A2AServer(
        worker=Echo(),
        agent_card=AgentCardConfig(
            name="Guarded",
            description="Asks who calls.",
            capabilities=CapabilitiesConfig(streaming=True),
            security_schemes=schemes,
            security=[{name: []} for name in schemes] if security is None else security,
        ),
        middlewares=[door],
        storage="memory",
        grpc_port=0,
    )
    with live(server.app, lifespan="on") as url:
        yield url


class TokenServer:
    """An authorization server: OAuth 2 client credentials, token exchange, and discovery."""

    def __init__(self) -> None:
        self.requests: list[dict[str, str]] = []
        self.authorizations: list[str | None] = []
        self.issued: set[str] = set()
        self.expires_in = 3600
        self.status = 200
        self.url = ""

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/token", self.token, methods=["POST"]),
                Route("/.well-known/openid-configuration", self.metadata),
                Route("/moved", lambda _: RedirectResponse("http://127.0.0.1:1/"), methods=["POST"]),
            ]
        )

    async def token(self, request: Request) -> Response:
        self.requests.append({name: str(value) for name, value in (await request.form()).items()})
        self.authorizations.append(request.headers.get("authorization"))
        await asyncio.sleep(0)
        if self.status != 200:
            return JSONResponse({"error": "invalid_client", "error_description": SECRET}, self.status)
        token = f"token-{len(self.requests)}"
        self.issued.add(token)
        return JSONResponse({"access_token": token, "token_type": "Bearer", "expires_in": self.expires_in})

    async def metadata(self, request: Request) -> Response:
        return JSONResponse({"issuer": self.url, "token_endpoint": f"{self.url}/token"})


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    server = TokenServer()
    with live(server.app()) as url:
        server.url = url
        yield server


@pytest.fixture
def loop_for_grpc(one_loop: None) -> None:
    """See `one_loop`."""


async def meet(client: A2AClient) -> None:
    """Connect, and close whatever comes of it."""
    async with client:
        pass


# Which credentials are sent, and where


@pytest.mark.usefixtures("loop_for_grpc")
@pytest.mark.parametrize(("protocol", "version"), INTERFACES)
async def test_credentials_go_with_every_call_over_every_binding(protocol: str, version: str) -> None:
    door = Door(header_authorization={f"Bearer {SECRET}"}, header_x_key={"k"})
    schemes = {"user": BEARER, "app": {"type": "apiKey", "in": "header", "name": "X-Key"}}
    with agent(door, schemes, [{"user": [], "app": []}]) as url:
        async with A2AClient(
            url, protocol=protocol, version=version, credentials=[ApiKey("k"), BearerToken(SECRET)]
        ) as client:
            result = await client.send("hi")
            assert result.text == "Echo: hi"
            assert [event.state async for event in client.stream("hi")][-1] == "completed"
            assert (await client.get_task(result.task_id)).completed


@pytest.mark.parametrize(
    ("scheme", "door", "credential"),
    [
        ({"type": "apiKey", "in": "header", "name": "X-Key"}, Door(header_x_key={SECRET}), ApiKey(SECRET)),
        ({"type": "apiKey", "in": "query", "name": "key"}, Door(query_key={SECRET}), ApiKey(SECRET)),
        ({"type": "apiKey", "in": "cookie", "name": "session"}, Door(cookie_session={SECRET}), ApiKey(SECRET)),
        (BEARER, Door(header_authorization={f"Bearer {SECRET}"}), BearerToken(SECRET)),
        (
            {"type": "http", "scheme": "Basic"},
            Door(header_authorization={"Basic " + base64.b64encode(f"me:{SECRET}".encode()).decode()}),
            BasicAuth("me", SECRET),
        ),
        (
            {"type": "openIdConnect", "openIdConnectUrl": "https://login.example/.well-known/openid-configuration"},
            Door(header_authorization={f"Bearer {SECRET}"}),
            BearerToken(lambda: SECRET),
        ),
    ],
    ids=["header", "query", "cookie", "bearer", "basic", "oidc"],
)
async def test_the_scheme_on_the_card_says_how_a_credential_is_sent(
    scheme: dict[str, Any], door: Door, credential: Credential, caplog: pytest.LogCaptureFixture
) -> None:
    with agent(door, {"it": scheme}) as url, caplog.at_level(logging.DEBUG):
        async with A2AClient(url, credentials=credential) as client:
            assert (await client.send("hi")).text == "Echo: hi"
    assert door.seen
    logged = "".join(record.getMessage() for record in caplog.records if record.name.startswith(("httpx", "errands")))
    assert SECRET not in logged + repr(credential)


async def test_the_first_requirement_that_can_be_met_is_used() -> None:
    door = Door(header_x_key={"k"})
    schemes = {"user": BEARER, "app": {"type": "apiKey", "in": "header", "name": "X-Key"}}
    with agent(door, schemes, [{"user": [], "app": []}, {"user": []}, {"app": []}]) as url:
        async with A2AClient(url, credentials=ApiKey("k")) as client:
            assert (await client.send("hi")).completed
        async with A2AClient(url, credentials={"app": ApiKey("k")}) as client:
            assert (await client.send("hi")).completed
        with pytest.raises(CredentialsError, match=r"asks for .* or an API key in the header 'X-Key' \[app\], which"):
            await meet(A2AClient(url, credentials={"user": ApiKey("k")}))


async def test_credentials_that_fit_nothing_are_an_error_that_says_what_is_wanted() -> None:
    scheme = {"type": "oauth2", "flows": {"clientCredentials": {"tokenUrl": "https://t/", "scopes": {}}}}
    wanted = r"asks for an OAuth 2 token \(client credentials\) \[oauth\].*BasicAuth"
    with agent(Door(), {"oauth": scheme}) as url, pytest.raises(CredentialsError, match=wanted):
        await meet(A2AClient(url, credentials=BasicAuth("me", SECRET)))


async def test_an_agent_that_says_nothing_gets_what_needs_no_explanation() -> None:
    door = Door(header_authorization={f"Bearer {SECRET}"})
    with agent(door, {}, []) as url:
        async with A2AClient(url, credentials=SECRET) as client:
            assert (await client.send("hi")).completed


# One call


@pytest.mark.usefixtures("loop_for_grpc")
@pytest.mark.parametrize("protocol", ["jsonrpc", "http+json", "grpc"])
async def test_a_call_may_have_a_token_of_its_own(protocol: str) -> None:
    door = Door(header_authorization={"Bearer alice", "Bearer bob"})
    with agent(door, {"user": BEARER}) as url:
        async with A2AClient(url, protocol=protocol, credentials="alice") as client:
            results = await asyncio.gather(client.send("hi"), client.send("hi", credentials="bob"))
            assert [result.completed for result in results] == [True, True]
            assert sorted(str(seen["header_authorization"]) for seen in door.seen) == ["Bearer alice", "Bearer bob"]
            task_id, door.seen[:] = results[1].task_id, []
            await client.get_task(task_id, credentials="bob")
            await client.list_tasks(credentials="bob")
            assert [one async for one in client.subscribe(task_id, credentials="bob")]
            assert {seen["header_authorization"] for seen in door.seen} == {"Bearer bob"}
            await client.conversation().send("hi", credentials="bob")
            with pytest.raises(CredentialsError, match="is not met by ApiKey, BearerToken"):
                await client.send("hi", credentials=ApiKey("k"))


# Refusals


@pytest.mark.usefixtures("loop_for_grpc")
@pytest.mark.parametrize(("protocol", "version"), INTERFACES)
async def test_a_refusal_says_what_the_card_wants_and_what_was_sent(protocol: str, version: str) -> None:
    schemes = {"user": BEARER, "app": {"type": "apiKey", "in": "header", "name": "X-Key"}}
    wanted = r"the card asks for HTTP bearer authentication \[user\] or an API key in the header 'X-Key' \[app\]"
    with agent(Door(header_authorization=set()), schemes) as url:
        async with A2AClient(url, protocol=protocol, version=version) as client:
            with pytest.raises(AuthenticationRequiredError, match=rf"{wanted}; no credentials sent") as caught:
                await client.send("hi")
            assert caught.value.tried == "no credentials"
            assert caught.value.wanted == client.wanted_credentials
            with pytest.raises(AuthenticationRequiredError, match=rf"{wanted}; BearerToken sent") as caught:
                await client.send("hi", credentials=SECRET)
            assert SECRET not in f"{caught.value!r}{caught.value}"
            with pytest.raises(AuthenticationRequiredError, match=wanted):
                [event async for event in client.stream("hi")]


async def test_a_task_that_waits_for_authorization_can_be_an_error_that_says_the_same() -> None:
    class Shy(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            await ctx.request_auth("Who are you?")

    card = AgentCardConfig(name="Shy", description="Asks.", security_schemes={"user": BEARER}, security=[{"user": []}])  # type: ignore[dict-item]
    async with connect(Shy(), agent_card=card, client={"credentials": SECRET}) as client:
        result = await client.send("hi")
        assert result.auth_required
        error = client.authorization_error(result)
    assert str(error) == "Who are you? (the card asks for HTTP bearer authentication [user]; BearerToken sent)"


@pytest.mark.parametrize("value", ["line\nbreak", "line\r\nX-Admin: 1", "ümlaut"])
@pytest.mark.parametrize("make", [ApiKey, BearerToken], ids=["key", "token"])
def test_a_credential_cannot_smuggle_in_a_header(make: type[ApiKey | BearerToken], value: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make(value)
    assert value not in str(caught.value)


# Tokens


def oauth2(tokens: TokenServer) -> dict[str, Any]:
    return {"type": "oauth2", "flows": {"clientCredentials": {"tokenUrl": f"{tokens.url}/token", "scopes": {"a": ""}}}}


async def test_callers_at_the_same_time_share_one_token(tokens: TokenServer) -> None:
    door = Door(header_authorization={"Bearer token-1"})
    with agent(door, {"oauth": oauth2(tokens)}, [{"oauth": ["a", "b"]}]) as url:
        mine = ClientCredentials("me", SECRET, token_url=f"{tokens.url}/token")
        async with A2AClient(url, credentials=mine) as client:
            await asyncio.gather(*(client.send("hi") for _ in range(10)))
    assert tokens.requests == [{"grant_type": "client_credentials", "scope": "a b"}]
    assert tokens.authorizations == ["Basic " + base64.b64encode(f"me:{SECRET}".encode()).decode()]


async def test_a_token_is_replaced_before_it_expires(tokens: TokenServer) -> None:
    now = 0.0
    door = Door(header_authorization={"Bearer token-1", "Bearer token-2"})
    mine = ClientCredentials("me", SECRET, issuer=tokens.url, secret_in_body=True, clock=lambda: now)
    with agent(door, {"oauth": oauth2(tokens)}) as url:
        async with A2AClient(url, credentials=mine) as client:
            await client.send("hi")
            now = 3569
            await client.send("hi")
            assert len(tokens.requests) == 1
            now = 3571
            await client.send("hi")
    assert [str(seen["header_authorization"])[-1] for seen in door.seen] == ["1", "1", "2"]
    assert tokens.requests[1] == {
        "grant_type": "client_credentials",
        "client_id": "me",
        "client_secret": SECRET,
    }


@pytest.mark.usefixtures("loop_for_grpc")
@pytest.mark.parametrize("protocol", ["jsonrpc", "http+json", "grpc"])
async def test_a_token_that_is_refused_is_replaced_once(tokens: TokenServer, protocol: str) -> None:
    door = Door(header_authorization={"Bearer token-2"})
    mine = ClientCredentials("me", SECRET, token_url=f"{tokens.url}/token")
    with agent(door, {"oauth": oauth2(tokens)}) as url:
        async with A2AClient(url, protocol=protocol, credentials=mine) as client:
            await asyncio.gather(*(client.send("hi") for _ in range(5)))
            assert len(tokens.requests) == 2
            door.wanted["header_authorization"] = {"Bearer token-3"}
            assert [event.state async for event in client.stream("hi")][-1] == "completed"
            door.wanted["header_authorization"] = set()
            with pytest.raises(AuthenticationRequiredError, match="ClientCredentials sent"):
                await client.send("hi")
            assert len(tokens.requests) == 4


async def test_a_token_of_the_user_is_exchanged(tokens: TokenServer) -> None:
    door = Door(header_authorization={"Bearer token-1"})
    mine = TokenExchange("of-the-user", token_url=f"{tokens.url}/token", audience="agent", client_id="me")
    with agent(door, {"user": BEARER}) as url:
        async with A2AClient(url) as client:
            await client.send("hi", credentials=mine)
            await client.send("hi", credentials=mine)
    token_type = "urn:ietf:params:oauth:token-type:access_token"
    assert tokens.requests == [
        {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "subject_token": "of-the-user",
            "subject_token_type": token_type,
            "requested_token_type": token_type,
            "audience": "agent",
            "client_id": "me",
        }
    ]


async def test_users_never_get_the_token_of_another(tokens: TokenServer) -> None:
    users = iter(["alice", "alice", "bob", "alice"])
    door = Door(header_authorization={"Bearer token-1", "Bearer token-2"})
    mine = TokenExchange(lambda: next(users), issuer=tokens.url)
    with agent(door, {"user": BEARER}) as url:
        async with A2AClient(url, credentials=mine) as client:
            for _ in range(4):
                await client.send("hi")
    assert [request["subject_token"] for request in tokens.requests] == ["alice", "bob"]
    assert [str(seen["header_authorization"])[-1] for seen in door.seen] == ["1", "1", "2", "1"]


async def test_a_token_endpoint_that_refuses_is_an_error_without_secrets(tokens: TokenServer) -> None:
    tokens.status = 401
    mine = ClientCredentials("me", SECRET, token_url=f"{tokens.url}/token")
    with agent(Door(), {"oauth": oauth2(tokens)}) as url:
        async with A2AClient(url, credentials=mine) as client:
            with pytest.raises(CredentialsError, match=r"/token gave no token: invalid_client") as caught:
                await client.send("hi")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("where", "problem"), [("http://127.0.0.1:1/token", "cannot be asked for a token"), ("moved", "HTTP 307")]
)
async def test_a_token_endpoint_that_is_not_there_is_an_error(tokens: TokenServer, where: str, problem: str) -> None:
    url = where if "://" in where else f"{tokens.url}/{where}"
    with agent(Door(), {"oauth": oauth2(tokens)}) as address:
        async with A2AClient(address, credentials=ClientCredentials("me", SECRET, token_url=url)) as client:
            with pytest.raises(CredentialsError, match=problem):
                await client.send("hi")


async def test_the_secret_goes_to_no_token_endpoint_that_only_the_card_names(tokens: TokenServer) -> None:
    door = Door(header_authorization={"Bearer token-1"})
    metadata = f"{tokens.url}/.well-known/openid-configuration"
    for scheme in (oauth2(tokens), {"type": "openIdConnect", "openIdConnectUrl": metadata}):
        with agent(door, {"oauth": scheme}) as url:
            async with A2AClient(url, credentials=ClientCredentials("me", SECRET)) as client:
                with pytest.raises(CredentialsError, match="is not at the agent's origin"):
                    await client.send("hi")
            assert tokens.requests == []
            trusting = A2AClient(url, credentials=ClientCredentials("me", SECRET), allow_origins=[tokens.url])
            async with trusting as client:
                assert (await client.send("hi")).completed
            tokens.requests.clear()


def test_a_token_endpoint_needs_https() -> None:
    with pytest.raises(ConfigurationError, match="cannot be given secrets"):
        ClientCredentials("me", SECRET, token_url="http://login.example/token")
    with pytest.raises(ConfigurationError, match="token_url or issuer"):
        TokenExchange("user")
    with pytest.raises(TypeError, match="unknown option of ClientCredentials: token_uri"):
        ClientCredentials("me", SECRET, token_uri="https://a/")  # type: ignore[call-arg]


# Origins


CARD = {
    "name": "Elsewhere",
    "description": "",
    "version": "1",
    "capabilities": {},
    "defaultInputModes": [],
    "defaultOutputModes": [],
    "skills": [],
}


@contextmanager
def card_at(interfaces: list[dict[str, str]], seen: list[Request], token: str | None = None) -> Iterator[str]:
    """A site with nothing but a card, which may ask for a token."""

    async def answer(request: Request) -> Response:
        seen.append(request)
        if token is not None and request.headers.get("authorization") != f"Bearer {token}":
            return Response(status_code=401, headers={"WWW-Authenticate": 'Bearer realm="cards"'})
        return JSONResponse({**CARD, "supportedInterfaces": interfaces})

    with live(Starlette(routes=[Route("/.well-known/agent-card.json", answer)])) as url:
        yield url


@pytest.mark.parametrize("options", [{"credentials": SECRET}, {"headers": {"Authorization": f"Bearer {SECRET}"}}])
async def test_credentials_are_not_sent_to_another_origin(options: dict[str, Any]) -> None:
    door = Door(header_authorization={f"Bearer {SECRET}"})
    with agent(door, {"user": BEARER}) as other:
        interface = {"url": f"{other}/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        with card_at([interface], []) as url:
            with pytest.raises(ForeignOriginError, match=f"leads to {other}; if you trust it, pass allow_origins"):
                await meet(A2AClient(url, **options))
            async with A2AClient(url) as client:
                with pytest.raises(ForeignOriginError):
                    await client.send("hi", credentials=SECRET)
            assert door.seen == []
            async with A2AClient(url, allow_origins=[other], **options) as client:
                assert (await client.send("hi")).completed


async def test_an_interface_at_the_own_origin_is_preferred_to_one_elsewhere() -> None:
    there = {"url": "https://evil.example/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    here = {"url": "/", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}
    with card_at([there, here], []) as url:
        async with A2AClient(url, credentials=SECRET) as client:
            assert client.protocol == "http+json"


@pytest.mark.parametrize(
    ("agent_url", "grpc_url", "is_admitted"),
    [
        ("http://a.example", "a.example:50051", True),
        ("https://a.example", "https://a.example:50051", True),
        ("https://a.example", "a.example:50051", False),
        ("https://a.example", "https://b.example:443", False),
        ("http://a.example", "b.example:50051", False),
        ("http://a.example", "dns:///b.example:50051", False),
        ("http://a.example", "unix:/tmp/socket", False),
    ],
)
def test_grpc_has_another_port_and_the_same_host(agent_url: str, grpc_url: str, is_admitted: bool) -> None:
    assert Origins(agent_url).admits_grpc(grpc_url) is is_admitted


async def test_redirects_do_not_carry_credentials() -> None:
    def moved(request: Request) -> Response:
        return RedirectResponse("http://127.0.0.1:1/")

    site = Starlette(routes=[Route("/{path:path}", moved)])
    with live(site) as url, pytest.raises(AgentNotFoundError, match=r"a redirect; use 'http://127.0.0.1:1/' instead"):
        await meet(A2AClient(url, credentials=SECRET))


# The card itself


async def test_the_card_is_fetched_with_credentials_only_if_the_server_asks_for_them() -> None:
    here = {"url": "/", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}
    seen: list[Request] = []
    with card_at([here], seen) as url:
        async with A2AClient(url, credentials=SECRET):
            assert [request.headers.get("authorization") for request in seen] == [None]
    seen.clear()
    with card_at([here], seen, token=SECRET) as url:
        async with A2AClient(url, credentials=SECRET):
            assert [request.headers.get("authorization") for request in seen] == [None, f"Bearer {SECRET}"]
        refusal = "HTTP 401, asks for 'Bearer realm=\"cards\"', refuses BearerToken"
        with pytest.raises(AgentNotFoundError, match=refusal):
            await meet(A2AClient(url, credentials="wrong"))


# Mutual TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(authority: trustme.CA, tmp_path: Path) -> dict[str, Path]:
    """PEM files: the authority's, the server's and the client's."""
    found = {name: tmp_path / f"{name}.pem" for name in ("ca", "server", "client")}
    authority.cert_pem.write_to_path(str(found["ca"]))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(found["server"]))
    authority.issue_cert("me@example.com").private_key_and_cert_chain_pem.write_to_path(str(found["client"]))
    return found


async def test_a_client_certificate_opens_an_agent_that_asks_for_one(files: dict[str, Path]) -> None:
    server = A2AServer(
        worker=Echo(),
        agent_card=AgentCardConfig(
            name="Guarded",
            description="Asks for a certificate.",
            security_schemes={"tls": {"type": "mutualTLS"}},  # type: ignore[dict-item]
            security=[{"tls": []}],
        ),
        storage="memory",
    )
    tls = {"ssl_certfile": files["server"], "ssl_ca_certs": str(files["ca"]), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    with live(server.app, lifespan="on", **tls) as url:
        address = url.replace("http://", "https://")
        async with A2AClient(address, credentials=ClientCertificate(files["client"], ca=files["ca"])) as client:
            assert (await client.send("hi")).text == "Echo: hi"
        async with httpx.AsyncClient(verify=ssl.create_default_context(cafile=files["ca"])) as http:
            with pytest.raises(AgentNotFoundError):
                await meet(A2AClient(address, httpx_client=http, max_retries=0))


@pytest.mark.usefixtures("loop_for_grpc")
async def test_a_client_certificate_works_over_grpc(files: dict[str, Path]) -> None:
    server = grpc.aio.server()
    pem = files["server"].read_bytes()
    secure = grpc.ssl_server_credentials([(pem, pem)], files["ca"].read_bytes(), require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", secure)
    await server.start()
    certificate = ClientCertificate(files["client"], ca=files["ca"])
    try:
        for credentials, expected in (
            (channel_credentials(certificate), ProtocolError),  # it has no such method, and says so
            (grpc.ssl_channel_credentials(files["ca"].read_bytes()), TransientError),
        ):
            transport = GrpcTransport(
                f"https://127.0.0.1:{port}", "1.0", headers={}, timeout=5, credentials=credentials
            )
            with pytest.raises(expected):
                await transport.call(OPERATIONS["GetTask"], GetTaskRequest(id="t"), read_timeout=10)
            await transport.close()
    finally:
        await server.stop(None)


def test_a_certificate_that_cannot_be_used_is_reported_at_once(tmp_path: Path, files: dict[str, Path]) -> None:
    with pytest.raises(ConfigurationError, match=r"missing.pem cannot be used"):
        ClientCertificate(tmp_path / "missing.pem")
    with pytest.raises(ConfigurationError, match="a connection of its own"):
        A2AClient("https://a.example", httpx_client=httpx.AsyncClient(), credentials=ClientCertificate(files["client"]))


def test_something_else_is_not_a_credential() -> None:
    with pytest.raises(ConfigurationError, match="not int"):
        A2AClient("http://a.example", credentials=[1])  # type: ignore[list-item]
