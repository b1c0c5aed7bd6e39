"""On the wire: whose task it is, and who is let in."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request

from errands import A2AMiddleware, ApiKeyMiddleware, BearerTokenMiddleware, RequestEnvelope
from errands.errors import ConfigurationError
from errands.testing import serve
from tests.interaction.agents import Asks, Echo
from tests.interaction.wire import call, http, message, rpc

pytestmark = pytest.mark.anyio


class ByHeader(A2AMiddleware):
    async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
        envelope.owner = request.headers.get("x-user", "")


@pytest.mark.parametrize("operation", ["GetTask", "CancelTask", "SubscribeToTask", "SendMessage"])
async def test_somebody_elses_task_is_not_found(binding: str, storage: str, operation: str) -> None:
    async with http(serve(Asks(), middlewares=[ByHeader()], storage=storage)) as client:
        _, asked = await call(client, "SendMessage", {"message": message()}, binding, **{"X-User": "alice"})
        task_id = asked["task"]["id"]
        params = {"message": message(taskId=task_id)} if operation == "SendMessage" else {"id": task_id}
        assert (await call(client, operation, params, binding, **{"X-User": "bob"}))[0] == "TASK_NOT_FOUND"
        assert (await call(client, "GetTask", {"id": task_id}, binding, **{"X-User": "alice"}))[0] is None


async def test_a_listing_shows_the_callers_tasks_and_nobody_elses(binding: str, storage: str) -> None:
    async with http(serve(Echo(), middlewares=[ByHeader()], storage=storage)) as client:
        for user in ("alice", "alice", "bob"):
            await call(client, "SendMessage", {"message": message()}, binding, **{"X-User": user})
        _, page = await call(client, "ListTasks", {}, binding, **{"X-User": "alice"})
        assert page["totalSize"] == len(page["tasks"]) == 2


async def test_the_same_message_from_two_callers_makes_two_tasks(binding: str, storage: str) -> None:
    same = message()
    async with http(serve(Echo(), middlewares=[ByHeader()], storage=storage)) as client:
        answers = [
            (await call(client, "SendMessage", {"message": same}, binding, **{"X-User": user}))[1]
            for user in ("alice", "bob", "alice")
        ]
        first, second, again = (answer["task"]["id"] for answer in answers)
        assert first == again != second


async def test_tenants_are_kept_apart_in_the_path_and_in_the_request(storage: str) -> None:
    async with http(serve(Asks(), storage=storage)) as client:
        made = (await client.post("/acme/message:send", json={"message": message()})).json()["task"]["id"]
        assert (await client.get(f"/acme/tasks/{made}")).status_code == 200
        assert (await client.get(f"/tasks/{made}")).status_code == 404
        assert (await client.get(f"/other/tasks/{made}")).status_code == 404
        found = await client.post("/", json=rpc("GetTask", {"id": made, "tenant": "acme"}))
        assert found.json()["result"]["id"] == made


async def test_a_request_without_credentials_is_challenged(binding: str) -> None:
    async def verify(token: str) -> dict[str, Any] | None:
        return {"sub": "alice"} if token == "good" else None

    async with http(serve(Echo(), middlewares=[BearerTokenMiddleware(verify)])) as client:
        path = "/" if binding == "jsonrpc" else "/message:send"
        body = rpc("SendMessage", {"message": message()}) if binding == "jsonrpc" else {"message": message()}
        for headers in ({}, {"Authorization": "Bearer bad"}, {"Authorization": "Basic good"}):
            refused = await client.post(path, json=body, headers=headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == 'Bearer realm="a2a"'
        accepted = await client.post(path, json=body, headers={"Authorization": "bearer good"})
        assert accepted.status_code == 200


async def test_each_api_key_is_an_owner_of_its_own() -> None:
    async with http(serve(Echo(), middlewares=[ApiKeyMiddleware({"k1", "k2"})])) as client:
        await client.post("/message:send", json={"message": message()}, headers={"X-API-Key": "k1"})
        assert (await client.get("/tasks", headers={"X-API-Key": "k1"})).json()["totalSize"] == 1
        assert (await client.get("/tasks", headers={"X-API-Key": "k2"})).json()["totalSize"] == 0
        assert (await client.get("/tasks", headers={"X-API-Key": "k3"})).status_code == 401


@pytest.mark.parametrize("host", ["x/open?", "x/open#", "x/open"])
async def test_nobody_comes_in_by_naming_an_open_path_in_another_place(host: str) -> None:
    guards = [ApiKeyMiddleware(["secret"], exclude_paths={"/open"})]
    async with http(serve(Echo(), middlewares=guards)) as client:
        for path in (
            "/message:send",
            "/message:send?/open",
            "/message:send/open",
            "//open/message:send",
            "/open%3F/message:send",
        ):
            answer = await client.post(path, json={"message": message()}, headers={"Host": host})
            assert answer.status_code in (401, 404)


@pytest.mark.parametrize("keys", ["secret", [""], ["secret", ""]])
def test_keys_that_would_let_anybody_in_are_refused(keys: Any) -> None:
    with pytest.raises(ConfigurationError, match="list of keys"):
        ApiKeyMiddleware(keys)


@pytest.mark.parametrize("header", ["Bearer", "Bearer ", "bearer   ", "Basic x", ""])
async def test_no_token_is_not_looked_up(header: str) -> None:
    async def anybody(token: str) -> dict[str, Any]:
        return {"sub": "me"}

    async with http(serve(Echo(), middlewares=[BearerTokenMiddleware(anybody)])) as client:
        assert (await client.get("/tasks", headers={"Authorization": header})).status_code == 401
        assert (await client.get("/tasks", headers={"Authorization": "Bearer t"})).status_code == 200
