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


@pytest.mark.parametrize("prefix", ["", "/v1"], ids=["1.0", "0.3"])
@pytest.mark.parametrize("colon", [":", "%3A", "%3a"])
@pytest.mark.parametrize("body", [b"", b"null", b" null\n", b"{}"])
async def test_cancel_and_subscribe_need_no_body(prefix: str, colon: str, body: bytes) -> None:
    worker = Patient()
    async with http(serve(worker)) as client:
        sent = {"message": message(), "configuration": {"returnImmediately": True}}
        task = (await client.post("/message:send", json=sent)).json()["task"]
        await worker.started.wait()
        request: dict[str, Any] = {"headers": {"Content-Type": "application/json"}, "content": body}
        place = f"{prefix}/tasks/{task['id']}{colon}"
        async with client.stream("POST", f"{place}subscribe", **request) as stream:
            assert stream.status_code == 200
        async with client.stream("GET", f"{place}subscribe") as stream:
            assert stream.status_code == 200
            assert stream.headers["content-type"].startswith("text/event-stream")
        answer = await client.post(f"{place}cancel", **request)
        assert answer.json()["status"]["state"] in ("TASK_STATE_CANCELED", "TASK_STATE_CANCELLED")


@pytest.mark.parametrize("path", ["/message:send", "/v1/message:send", "/tasks/t/pushNotificationConfigs"])
@pytest.mark.parametrize("body", [b"", b"null"])
async def test_a_request_that_needs_a_body_names_the_field_it_misses(path: str, body: bytes) -> None:
    async with http(serve(Echo())) as client:
        answer = await client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 422)
        assert "required field" in answer.text or "push notifications" in answer.text


@pytest.mark.parametrize(("path", "method"), [("/", "ListTasks"), ("/", "tasks/list"), ("/a2a", "tasks/list")])
@pytest.mark.parametrize("params", [{}, {"params": None}, {"params": {}}])
async def test_over_jsonrpc_a_method_without_required_fields_needs_no_params(
    path: str, method: str, params: dict[str, Any]
) -> None:
    async with http(serve(Echo())) as client:
        answer = await client.post(path, json={"jsonrpc": "2.0", "id": 1, "method": method, **params})
        assert "result" in answer.json()


@pytest.mark.parametrize("path", ["/message%3Asend", "/message%3asend", "/acme/message%3Asend"])
async def test_the_colon_before_a_verb_may_be_percent_encoded(path: str) -> None:
    async with http(serve(Echo())) as client:
        answer = await client.post(path, json={"message": message()})
        assert answer.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_an_id_may_contain_a_percent_encoded_colon() -> None:
    async with http(serve(Echo())) as client:
        for task_id in ("a%3Ab", "a%3Acancel"):
            answer = await client.get(f"/tasks/{task_id}")
            assert answer.status_code == 404
            assert answer.json()["error"]["details"][0]["reason"] == "TASK_NOT_FOUND"


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
