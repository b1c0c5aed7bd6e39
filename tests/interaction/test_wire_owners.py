"""On the wire: whose task it is, and who is let in."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
from starlette.requests import Request
from starlette.types import ASGIApp

from errands import A2AMiddleware, ApiKeyMiddleware, BearerTokenMiddleware, RequestEnvelope, head_only
from errands.errors import ConfigurationError
from errands.testing import serve
from tests.interaction.agents import Asks, ByHeader, Echo
from tests.interaction.wire import call, http, message, rpc

pytestmark = pytest.mark.anyio


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


async def verify(token: str) -> dict[str, Any] | None:
    return {"sub": token} if token == "good" else None


async def unread() -> NoReturn:
    raise AssertionError("the body was read")


async def asked(app: ASGIApp, path: str, **headers: str) -> int:
    """The status of the answer to a request whose body must not be read."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [
            (b"host", b"x"),
            (b"content-type", b"application/json"),
            (b"content-length", b"10000000"),
            *((name.encode(), value.encode()) for name, value in headers.items()),
        ],
    }
    await app(scope, unread, send)
    status: int = sent[0]["status"]
    return status


@pytest.mark.parametrize("path", ["/", "/a2a", "/message:send", "/v1/message:send", "/tasks/t:cancel"])
@pytest.mark.parametrize("middleware", [BearerTokenMiddleware(verify), ApiKeyMiddleware(["good"])])
async def test_a_body_is_not_read_for_strangers(path: str, middleware: A2AMiddleware) -> None:
    async with serve(Echo(), middlewares=[middleware, ByHeader()]) as server:
        assert await asked(server.app, path) == 401
        assert await asked(server.app, path, authorization="Bearer bad", **{"x-api-key": "bad"}) == 401


async def test_middleware_is_asked_in_the_order_of_the_list(binding: str) -> None:
    """One that must see the message is asked when it was decoded, and so is what comes after it in the list."""
    order: list[str] = []

    class Noting(A2AMiddleware):
        def __init__(self, name: str) -> None:
            self.name = name

        async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
            assert envelope.params is not None
            order.append(f"{self.name} sees {envelope.owner}'s message for {envelope.tenant}")

    class OnHead(Noting):
        @head_only
        async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
            order.append(f"{self.name} sees the {'head' if envelope.params is None else 'message'}")
            envelope.owner = "ada"

    middlewares = [OnHead("first"), Noting("second"), OnHead("third")]
    async with http(serve(Echo(), middlewares=middlewares)) as client:
        await call(client, "SendMessage", {"message": message(), "tenant": "acme"}, binding)
    assert order == ["first sees the head", "second sees ada's message for acme", "third sees the message"]


async def test_a_subclass_that_looks_at_more_than_the_head_is_asked_when_there_is_more() -> None:
    class Lenient(ApiKeyMiddleware):
        async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
            if envelope.params is None or envelope.params.message.parts[0].text != "public":
                await super().before_dispatch(envelope, request)

    async with http(serve(Echo(), middlewares=[Lenient(["good"])])) as client:
        assert (await client.post("/message:send", json={"message": message("public")})).status_code == 200
        assert (await client.post("/message:send", json={"message": message("other")})).status_code == 401


async def test_a_middleware_that_fails_on_the_head_is_an_internal_error(binding: str) -> None:
    class Failing(A2AMiddleware):
        @head_only
        async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
            raise RuntimeError("secret")

    async with http(serve(Echo(), middlewares=[Failing()])) as client:
        reason, error = await call(client, "SendMessage", {"message": message()}, binding)
        assert reason == "INTERNAL"
        assert "secret" not in str(error)
