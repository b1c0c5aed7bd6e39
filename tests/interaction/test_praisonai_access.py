"""PraisonAI's dialect: where it is served, with which card, and to whom."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from errands import A2AMiddleware, AgentCardConfig, BearerTokenMiddleware, RequestEnvelope, TaskNotCancelableError
from errands.testing import serve
from errands.wire.praisonai import METHODS
from tests.interaction.agents import Echo, card
from tests.interaction.praisonai import praison, say, verify

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("path", ["/a2a", "/a2a/"])
async def test_the_path_may_end_with_a_slash(path: str) -> None:
    async with praison(Echo()) as client:
        body = {"jsonrpc": "2.0", "method": "message/send", "id": 1, "params": {"message": say()}}
        assert (await client.http.post(path, json=body)).json()["result"]["status"]["state"] == "completed"
        assert (await client.http.get(path)).status_code == 405


async def test_the_extended_card_is_given_or_the_public_one_in_its_place() -> None:
    async def provider(request: Request) -> AgentCardConfig:
        return card(version="9.9.9")

    async with praison(Echo(), agent_card=card()) as client:
        public = (await client.http.get("/.well-known/agent.json")).json()
        assert await client.result("agent/getExtendedCard") == public
    async with praison(Echo(), agent_card=card(), extended_card_provider=provider) as client:
        extended = await client.result("agent/getExtendedCard")
        assert (extended["version"], extended["protocolVersion"]) == ("9.9.9", "0.3.0")


async def test_the_older_card_has_what_its_client_reads() -> None:
    async with praison(Echo()) as client:
        found = (await client.http.get("/.well-known/agent.json")).json()
        assert {"name", "url", "version", "capabilities"} <= set(found)
        assert None not in found["capabilities"].values()


async def test_middleware_decides_who_is_let_in_and_whose_tasks_are_seen() -> None:
    server = serve(Echo(), middlewares=[BearerTokenMiddleware(verify)])
    async with praison(server) as client:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/list"}
        for method in METHODS:
            params = {"message": say(), "id": "t"}
            answer = await client.http.post("/a2a", json={**body, "method": method, "params": params})
            assert answer.status_code == 401, method
            assert "www-authenticate" in answer.headers
            assert "error" in answer.json()
        ada, alan = {"Authorization": "Bearer ada"}, {"Authorization": "Bearer alan"}
        task = await client.result("message/send", {"message": say()}, **ada)
        assert len(await client.result("tasks/list", {}, **ada)) == 1
        assert await client.result("tasks/list", {}, **alan) == []
        error = (await client.call("tasks/get", {"id": task["id"]}, **alan))["error"]
        assert error == {"code": -32000, "message": f"Task not found: {task['id']}"}
        error = (await client.call("tasks/cancel", {"id": task["id"]}, **alan))["error"]
        assert error["code"] == -32000


async def test_middleware_may_refuse_with_any_error() -> None:
    class Refuses(A2AMiddleware):
        async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
            raise TaskNotCancelableError("Not now")

    async with praison(Echo(), middlewares=[Refuses()]) as client:
        assert await client.refused("tasks/get", {"id": "t"}) == (-32002, "Not now")


async def test_middleware_sees_the_message_of_a_send() -> None:
    seen: list[str | None] = []

    class Sees(A2AMiddleware):
        async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
            if envelope.params is not None:
                seen.append(envelope.params.message.parts[0].text)

    async with praison(Echo(), middlewares=[Sees()]) as client:
        await client.send("look")
    assert seen == ["look"]


async def test_an_agent_that_serves_1_0_alone_has_no_such_path() -> None:
    async with praison(Echo(), protocol_versions=["1.0"]) as client:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/list"}
        assert (await client.http.post("/a2a", json=body)).status_code == 404
