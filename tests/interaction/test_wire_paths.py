"""On the wire: the paths of the bindings, of the card and of the health pages."""

from __future__ import annotations

from typing import Any

import pytest

from errands import Settings
from errands.testing import serve
from tests.interaction.agents import Echo, Patient
from tests.interaction.wire import CARD, http, message, rpc

pytestmark = pytest.mark.anyio


async def test_jsonrpc_is_served_with_and_without_a_trailing_slash_below_a_mount() -> None:
    async with http(serve(Echo())) as client:
        for path in ("", "/"):
            answer = await client.post(path, json=rpc("SendMessage", {"message": message()}))
            assert answer.json()["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/", "POST"),
        ("POST", "/health", "GET, HEAD"),
        ("GET", "/message:send", "POST"),
        ("PUT", "/tasks", "GET"),
    ],
)
async def test_a_wrong_method_is_told_the_right_one(method: str, path: str, allowed: str) -> None:
    async with http(serve(Echo())) as client:
        answer = await client.request(method, path)
        assert answer.status_code == 405
        assert answer.headers["allow"] == allowed


async def test_cancel_and_subscribe_need_no_body() -> None:
    worker = Patient()
    async with http(serve(worker)) as client:
        body = {"message": message(), "configuration": {"returnImmediately": True}}
        task = (await client.post("/message:send", json=body)).json()["task"]
        await worker.started.wait()
        headers = {"Content-Type": "application/json"}
        async with client.stream("POST", f"/tasks/{task['id']}:subscribe", headers=headers) as stream:
            assert stream.status_code == 200
        answer = await client.post(f"/tasks/{task['id']}:cancel", headers=headers)
        assert answer.json()["status"]["state"] == "TASK_STATE_CANCELED"


@pytest.mark.parametrize(
    ("sent", "accept", "answered"),
    [
        ("application/json", "*/*", "application/json"),
        ("application/a2a+json", "*/*", "application/a2a+json"),
        (None, "application/json", "application/json"),
        (None, "*/*", "application/a2a+json"),
    ],
)
async def test_http_json_answers_in_the_type_the_client_speaks(sent: str | None, accept: str, answered: str) -> None:
    async with http(serve(Echo())) as client:
        headers = {"Accept": accept} | ({"Content-Type": sent} if sent else {})
        answer = await client.get("/tasks", headers=headers)
        assert answer.headers["content-type"] == answered


async def test_the_card_is_cached_and_revalidated() -> None:
    async with http(serve(Echo())) as client:
        first = await client.get(CARD)
        assert first.headers["cache-control"] == "public, max-age=300"
        same = await client.get(CARD, headers={"If-None-Match": first.headers["etag"]})
        assert (same.status_code, same.content) == (304, b"")
        unchanged = await client.get(CARD, headers={"If-Modified-Since": first.headers["last-modified"]})
        assert unchanged.status_code == 304
        assert (await client.get(CARD, headers={"If-None-Match": '"other"'})).status_code == 200
        head = await client.head(CARD)
        assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    ("settings", "headers", "url"),
    [
        ({}, {"Host": "a.example"}, "http://a.example/"),
        ({}, {"Host": "a.example", "X-Forwarded-Host": "evil.example"}, "http://a.example/"),
        (
            {"trust_forwarded": True},
            {"X-Forwarded-Host": "b.example", "X-Forwarded-Proto": "https", "X-Forwarded-Prefix": "/x/"},
            "https://b.example/x/",
        ),
        ({"public_url": "https://agents.example/echo"}, {"Host": "inner"}, "https://agents.example/echo/"),
    ],
)
async def test_the_card_names_the_address_that_clients_can_reach(
    settings: dict[str, Any], headers: dict[str, str], url: str
) -> None:
    async with http(serve(Echo(), settings=Settings(storage="memory", **settings))) as client:
        interfaces = (await client.get(CARD, headers=headers)).json()["supportedInterfaces"]
        assert interfaces[0] == {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        assert interfaces[1]["protocolBinding"] == "HTTP+JSON"
        assert interfaces[1]["url"] == url.rstrip("/")


async def test_health_says_alive_and_ready() -> None:
    server = serve(Echo())
    async with http(server) as client:
        assert (await client.get("/health")).json() == {"status": "ok"}
        assert (await client.get("/health/ready")).status_code == 200
        await server.drain()
        assert (await client.get("/health/ready")).status_code == 503
        refused = await client.post("/message:send", json={"message": message()})
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"


async def test_an_agent_of_1_0_alone_has_no_paths_and_methods_of_0_3() -> None:
    async with http(serve(Echo(), protocol_versions=["1.0"])) as client:
        # Not even for a tenant of that name.
        assert (await client.get("/v1/tasks")).status_code == 404
        refused = await client.post("/", json=rpc("message/send", {"message": message()}))
        assert refused.json()["error"]["code"] == -32601
