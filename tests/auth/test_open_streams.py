"""Streams that are open while their credentials are revoked or expire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from errands import (
    A2AServer,
    AgentCardConfig,
    ApiKeyAuth,
    Caller,
    CapabilitiesConfig,
    IntrospectionAuth,
    TaskContext,
    Worker,
)
from errands.client import A2AClient, BearerToken, StreamEvent
from errands.errors import AuthenticationRequiredError
from errands.model.core import TaskState
from errands.server import auth
from errands.server.auth import AuthScheme
from errands.testing import connect, http_client
from tests.auth.issuer import AUDIENCE, Provider

pytestmark = pytest.mark.anyio

BINDINGS = [(version, binding) for version in ("1.0", "0.3") for binding in ("jsonrpc", "http+json", "grpc")]
KEY = {"X-API-Key": "a key"}


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials are checked each time that a stream shows something."""
    monkeypatch.setattr(auth, "STREAM_CHECK", 0.0)


class Waits(Worker):
    """Goes on until it is told to end."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def handle(self, ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("working", artifact_id="a")
        await self.may_end.wait()
        await ctx.complete("done")


def serving(worker: Worker, scheme: AuthScheme, binding: str = "jsonrpc") -> A2AServer:
    card = AgentCardConfig(name="Waits", description="Takes its time.", capabilities=CapabilitiesConfig(streaming=True))
    return A2AServer(
        worker=worker,
        agent_card=card,
        storage="memory",
        auth=[scheme],
        keep_alive=0.05,
        grpc_port=0 if binding == "grpc" else None,
        outbound_allow="127.0.0.1",  # the issuer of tokens
    )


async def begun(client: A2AClient) -> tuple[str, AsyncGenerator[StreamEvent, None]]:
    """The id of a new task, and the rest of the stream of its events."""
    events = client.stream("go")
    async for event in events:
        if event.artifact_id:
            break
    return event.task_id or "", events


async def collect(events: AsyncGenerator[StreamEvent, None]) -> list[StreamEvent]:
    return [event async for event in events]


@pytest.mark.parametrize(("version", "binding"), BINDINGS, ids=["-".join(one) for one in BINDINGS])
async def test_an_open_stream_ends_when_its_key_is_revoked_and_its_task_goes_on(version: str, binding: str) -> None:
    worker, keys = Waits(), ApiKeyAuth({"a key": "alice"})
    server = serving(worker, keys, binding)
    async with connect(server, client={"headers": KEY, "protocol": binding, "version": version}) as client:
        task_id, events = await begun(client)
        keys.use({"another": "alice"})
        with pytest.raises(AuthenticationRequiredError):
            async for _ in events:
                pass
        assert (await server.engine.load(task_id, None)).state is TaskState.WORKING
        keys.use({"a key": "alice"})
        worker.may_end.set()
        assert [event.state async for event in client.subscribe(task_id)][-1] == "completed"


async def test_an_open_stream_ends_when_its_key_becomes_that_of_another_caller() -> None:
    worker, keys = Waits(), ApiKeyAuth({"a key": "alice"})
    async with connect(serving(worker, keys), client={"headers": KEY}) as client:
        _, events = await begun(client)
        keys.use({"a key": Caller(owner="alice", tenant="other")})
        with pytest.raises(AuthenticationRequiredError, match="another caller"):
            await anext(events)
        worker.may_end.set()


async def test_the_log_of_a_task_for_operators_ends_too() -> None:
    worker, keys = Waits(), ApiKeyAuth({"a key": "alice"})
    server = serving(worker, keys)
    async with connect(server, client={"headers": KEY}) as client, http_client(server) as http:
        task_id, events = await begun(client)
        async with http.stream("GET", f"/admin/tasks/{task_id}/stream", headers=KEY) as answer:
            keys.use({"another": "alice"})
            assert "UNAUTHENTICATED" in "".join([line async for line in answer.aiter_lines()])
        await events.aclose()
        worker.may_end.set()


def introspection(idp: Provider) -> IntrospectionAuth:
    user, password = idp.client
    return IntrospectionAuth(
        url=f"{idp.url}/introspect",
        client_id=user,
        client_secret=password,
        audience=AUDIENCE,
        cache_for=0.0,
        allow_http=True,
    )


async def test_a_stream_stays_open_while_the_issuer_cannot_be_asked(idp: Provider) -> None:
    worker = Waits()
    async with connect(serving(worker, introspection(idp)), client={"credentials": idp.token()}) as client:
        _, events = await begun(client)
        idp.status = 503
        asked = idp.asked["/introspect"]
        while idp.asked["/introspect"] < asked + 3:
            await asyncio.sleep(0)
        worker.may_end.set()
        assert [event.state async for event in events][-1] == "completed"


async def test_a_client_with_new_credentials_goes_on_where_it_was(idp: Provider) -> None:
    worker, given = Waits(), [idp.token()]
    credential = BearerToken(lambda: given[-1])
    async with connect(serving(worker, introspection(idp)), client={"credentials": credential}) as client:
        _, events = await begun(client)
        reading = asyncio.ensure_future(collect(events))
        for number in range(2):
            given.append(idp.token(jti=str(number)))
            idp.revoked.add(given[-2])
            asked = idp.asked["/introspect"]
            while idp.asked["/introspect"] < asked + 4:  # the refusal, and the new token with which it goes on
                await asyncio.sleep(0)
        worker.may_end.set()
        seen = await reading
    assert "a" not in [event.artifact_id for event in seen]
    assert seen[-1].state == "completed"
