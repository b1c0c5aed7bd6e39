"""What is on the wire, byte for byte where it matters: envelopes, errors, headers, versions, cards, streams."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
import pytest
from starlette.requests import Request

from errands import (
    A2AMiddleware,
    A2AServer,
    AgentCardConfig,
    ApiKeyMiddleware,
    BearerTokenMiddleware,
    CapabilitiesConfig,
    ExtensionConfig,
    RequestEnvelope,
    Settings,
)
from errands.engines.base import Retention
from errands.engines.memory import MemoryEngine
from errands.errors import PayloadTooLargeError
from errands.model.card import HTTPAuthSecurityScheme, SecurityScheme
from errands.operations import OPERATIONS
from errands.server.exchange import Exchange, Receive
from errands.testing import http_client, serve
from errands.wire.status import STATUS
from tests.interaction.agents import Asks, Echo, Gated, Patient, card

pytestmark = pytest.mark.anyio

CARD = "/.well-known/agent-card.json"


@asynccontextmanager
async def http(server: A2AServer, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with server, http_client(server, **options) as client:
        yield client


def message(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": text}], **fields}


def rpc(method: str, params: Any, request_id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


async def call(client: httpx.AsyncClient, operation: str, params: dict[str, Any], binding: str, **headers: str) -> Any:
    """The operation over either binding: (reason or None, document)."""
    if binding == "jsonrpc":
        answer = await client.post("/", json=rpc(operation, params), headers=headers)
        document = answer.json()
        if "error" in document:
            return document["error"]["data"][0]["reason"], document["error"]
        return None, document["result"]
    row = OPERATIONS[operation]
    values = {name: str(params.get(camel)) for name, camel in (("id", "id"), ("task_id", "taskId"))}
    path = row.path.format(**values)
    if row.http_method == "POST":
        answer = await client.post(path, json=params, headers=headers)
    else:
        answer = await client.request(row.http_method, path, params=params, headers=headers)
    document = answer.json()
    if "error" in document:
        reason = document["error"]["details"][0]["reason"]
        assert answer.status_code == STATUS[reason].http
        assert document["error"]["status"] == STATUS[reason].grpc
        return reason, document["error"]
    return None, document


# Envelopes


@pytest.mark.parametrize("request_id", [1, -5, 1.5, "abc", "", None, 2**60])
async def test_the_answer_carries_the_requests_id_as_it_came(request_id: Any) -> None:
    async with http(serve(Echo())) as client:
        answer = await client.post("/", json=rpc("SendMessage", {"message": message()}, request_id))
        assert answer.json()["id"] == request_id
        refused = await client.post("/", json=rpc("NoSuchMethod", {}, request_id))
        assert refused.json()["id"] == request_id
        assert refused.json()["error"]["code"] == -32601


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"\xff"}}', -32700),
        (b"[]", -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"GetTask"}]', -32600),
        (b"1", -32600),
        (b'{"id":1,"method":"GetTask"}', -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"GetTask"}', -32600),
        (b'{"jsonrpc":"2.0","id":{},"method":"GetTask"}', -32600),
        (b'{"jsonrpc":"2.0","id":1}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":[1]}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"tasks/unheard-of","params":{}}', -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"GetTask"}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":5}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"x","historyLength":-1}}', -32602),
    ],
)
async def test_each_malformed_request_has_its_code(body: bytes, code: int) -> None:
    async with http(serve(Echo())) as client:
        answer = await client.post("/", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 200
        assert answer.json()["error"]["code"] == code


async def test_a_wrong_content_type_is_refused_before_the_body_is_looked_at(binding: str) -> None:
    async with http(serve(Echo())) as client:
        path = "/" if binding == "jsonrpc" else "/message:send"
        answer = await client.post(path, content=b"<xml/>", headers={"content-type": "text/xml"})
        error = answer.json()["error"]
        assert error["code"] == (-32005 if binding == "jsonrpc" else 400)
        assert "text/xml" in error["message"]


async def test_snake_case_is_understood_and_camel_case_answered(binding: str) -> None:
    body = {
        "message": {"message_id": "m", "role": "ROLE_USER", "parts": [{"data": {"my_key": 1}}], "context_id": "c"},
        "configuration": {"return_immediately": False, "history_length": 5},
    }
    async with http(serve(Echo())) as client:
        _, answer = await call(client, "SendMessage", body, binding)
        assert answer["task"]["contextId"] == "c"
        assert answer["task"]["history"][0]["parts"] == [{"data": {"my_key": 1}}]


async def test_unknown_fields_are_passed_over_and_never_answered(binding: str) -> None:
    async with http(serve(Echo())) as client:
        _, answer = await call(client, "SendMessage", {"message": message(color="red"), "mood": 1}, binding)
        assert "color" not in str(answer)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"parts": []}, "message.parts"),
        ({"parts": [{}]}, "message.parts[0]"),
        ({"parts": [{"text": "a", "url": "b"}]}, "message.parts[0]"),
        ({"parts": [{"raw": "not base64!"}]}, "message.parts[0].raw"),
        ({"messageId": ""}, "message.messageId"),
        ({"role": "ROLE_AGENT"}, "message.role"),
        ({"role": "ROLE_UNSPECIFIED"}, "message.role"),
        ({"role": "user"}, "message.role"),
        ({"metadata": []}, "message.metadata"),
    ],
)
async def test_an_invalid_message_is_refused_with_the_field_that_is_wrong(
    binding: str, fields: dict[str, Any], where: str
) -> None:
    async with http(serve(Echo())) as client:
        reason, error = await call(client, "SendMessage", {"message": message() | fields}, binding)
        assert reason == "INVALID_PARAMS"
        details = error["data"] if binding == "jsonrpc" else error["details"]
        assert details[1]["fieldViolations"][0]["field"] == where
        assert (await client.get("/tasks")).json()["totalSize"] == 0


# Versions and extensions


@pytest.mark.parametrize("version", ["1.0", "1.0.1", ""])
async def test_this_version_is_spoken(binding: str, version: str) -> None:
    async with http(serve(Echo())) as client:
        reason, _ = await call(client, "SendMessage", {"message": message()}, binding, **{"A2A-Version": version})
        assert reason is None


async def test_another_version_is_refused(binding: str) -> None:
    async with http(serve(Echo())) as client:
        reason, error = await call(client, "SendMessage", {"message": message()}, binding, **{"A2A-Version": "99.0"})
        assert reason == "VERSION_NOT_SUPPORTED"
        assert "1.0" in error["message"]
        assert (await client.get("/tasks?A2A-Version=99.0")).status_code == 400


async def test_a_required_extension_must_be_declared(binding: str) -> None:
    needed = ExtensionConfig(uri="urn:needed", required=True)
    liked = ExtensionConfig(uri="urn:liked")
    async with http(serve(Echo(), agent_card=card(extensions=[needed, liked]))) as client:
        reason, error = await call(client, "SendMessage", {"message": message()}, binding)
        assert reason == "EXTENSION_SUPPORT_REQUIRED"
        assert "urn:needed" in error["message"]
        headers = {"A2A-Extensions": "urn:liked, urn:needed,urn:unknown"}
        answer = await client.post("/message:send", json={"message": message()}, headers=headers)
        assert answer.status_code == 200
        assert answer.headers["a2a-extensions"] == "urn:liked, urn:needed"
        assert "x-a2a-extensions" not in answer.headers


async def test_extensions_are_declared_in_the_header_of_either_version_and_confirmed_in_the_same() -> None:
    needed, liked = ExtensionConfig(uri="urn:needed", required=True), ExtensionConfig(uri="urn:liked")
    params = {"message": message(role="user")}
    async with http(serve(Echo(), agent_card=card(extensions=[needed, liked]))) as client:
        answer = await client.post("/", json=rpc("message/send", params), headers={"X-A2A-Extensions": "urn:needed"})
        assert "result" in answer.json()
        assert answer.headers["x-a2a-extensions"] == "urn:needed"
        assert "a2a-extensions" not in answer.headers
        refused = await client.post("/", json=rpc("message/send", params), headers={"X-A2A-Extensions": "urn:liked"})
        assert "X-A2A-Extensions" in refused.json()["error"]["message"]
        both = [("A2A-Extensions", "urn:needed"), ("X-A2A-Extensions", "urn:needed"), ("X-A2A-Extensions", "urn:liked")]
        answer = await client.post("/", json=rpc("message/send", params), headers=both)
        for name in ("a2a-extensions", "x-a2a-extensions"):
            assert answer.headers.get_list(name) == ["urn:needed, urn:liked"]


# Capabilities


async def test_an_agent_that_does_not_stream_says_so(binding: str) -> None:
    async with http(serve(Asks(), agent_card=card(capabilities=CapabilitiesConfig()))) as client:
        _, asked = await call(client, "SendMessage", {"message": message()}, binding)
        for operation, params in (
            ("SendStreamingMessage", {"message": message()}),
            ("SubscribeToTask", {"id": asked["task"]["id"]}),
        ):
            assert (await call(client, operation, params, binding))[0] == "UNSUPPORTED_OPERATION"


@pytest.mark.parametrize("operation", [name for name, row in OPERATIONS.items() if "Push" in name])
async def test_push_notifications_are_not_supported_yet(binding: str, operation: str) -> None:
    async with http(serve(Echo())) as client:
        params = {"taskId": "t", "id": "c", "url": "https://example.com"}
        assert (await call(client, operation, params, binding))[0] == "PUSH_NOTIFICATION_NOT_SUPPORTED"


async def test_a_send_that_wants_push_notifications_is_refused_and_creates_nothing(binding: str) -> None:
    body = {
        "message": message(),
        "configuration": {"taskPushNotificationConfig": {"url": "https://example.com"}},
    }
    async with http(serve(Echo())) as client:
        assert (await call(client, "SendMessage", body, binding))[0] == "PUSH_NOTIFICATION_NOT_SUPPORTED"
        assert (await client.get("/tasks")).json()["totalSize"] == 0


async def test_the_extended_card_is_unsupported_unconfigured_or_given(binding: str) -> None:
    async with http(serve(Echo())) as client:
        assert (await call(client, "GetExtendedAgentCard", {}, binding))[0] == "UNSUPPORTED_OPERATION"
    offered = card(capabilities=CapabilitiesConfig(extended_agent_card=True))
    async with http(serve(Echo(), agent_card=offered)) as client:
        assert (await call(client, "GetExtendedAgentCard", {}, binding))[0] == "EXTENDED_AGENT_CARD_NOT_CONFIGURED"

    async def provider(request: Request) -> AgentCardConfig:
        return AgentCardConfig(name="Extended", description="More.")

    async with http(serve(Echo(), agent_card=card(), extended_card_provider=provider)) as client:
        _, document = await call(client, "GetExtendedAgentCard", {}, binding)
        assert document["name"] == "Extended"
        assert (await client.get(CARD)).json()["capabilities"]["extendedAgentCard"] is True


async def test_the_extended_card_of_a_secured_agent_is_for_authenticated_clients(binding: str) -> None:
    async def provider(request: Request) -> AgentCardConfig:
        return AgentCardConfig(name="Extended", description="More.")

    scheme = SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Bearer"))
    secured = card(security_schemes={"bearer": scheme})
    async with http(serve(Echo(), agent_card=secured, extended_card_provider=provider)) as client:
        assert (await call(client, "GetExtendedAgentCard", {}, binding))[0] == "UNAUTHENTICATED"


async def test_a_media_type_the_agent_does_not_take_is_refused(binding: str) -> None:
    parts = [{"raw": "aGk=", "mediaType": "image/png"}]
    async with http(serve(Echo(), agent_card=card(input_modes=["text/plain"]))) as client:
        reason, error = await call(client, "SendMessage", {"message": message(parts=parts)}, binding)
        assert reason == "CONTENT_TYPE_NOT_SUPPORTED"
        assert "text/plain" in error["message"]
        assert (await client.get("/tasks")).json()["totalSize"] == 0
    async with http(serve(Echo(), agent_card=card(input_modes=["image/*"]))) as client:
        assert (await call(client, "SendMessage", {"message": message(parts=parts)}, binding))[0] is None


# Owners and tenants


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


# Paths


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
        answer = await client.post(f"/tasks/{task['id']}:cancel", headers={"Content-Type": "application/json"})
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


# Streams


async def test_a_stream_is_server_sent_events_with_the_version_as_id(binding: str) -> None:
    worker = Gated()
    worker.gate.set()
    async with http(serve(worker)) as client:
        path = "/" if binding == "jsonrpc" else "/message:stream"
        body: Any = {"message": message()}
        answer = await client.post(path, json=rpc("SendStreamingMessage", body, 7) if path == "/" else body)
        assert answer.headers["content-type"].startswith("text/event-stream")
        frames = answer.text.strip().split("\n\n")
        assert [frame.split("\n")[0] for frame in frames] == [f"id: {n}" for n in range(1, 6)]
        start = 'data: {"jsonrpc":"2.0","id":7,"result":{"task":' if binding == "jsonrpc" else 'data: {"task":'
        assert frames[0].split("\n")[1].startswith(start)


@pytest.mark.parametrize(
    ("method", "content_type"), [("tasks/resubscribe", "text/event-stream"), ("SubscribeToTask", "application/json")]
)
async def test_a_stream_is_refused_as_the_clients_of_its_version_expect_it(method: str, content_type: str) -> None:
    async with http(serve(Echo(), agent_card=card())) as client:
        answer = await client.post("/", json=rpc(method, {"id": "no-such-task"}, "7"))
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(content_type)
    document = json.loads(answer.text.removeprefix("data: "))
    assert (document["id"], document["error"]["code"]) == ("7", -32001)


async def test_a_quiet_stream_is_kept_alive_with_comments() -> None:
    worker = Gated()
    settings = Settings(storage="memory", keep_alive=0.01)
    async with (
        http(serve(worker, settings=settings)) as client,
        client.stream("POST", "/message:stream", json={"message": message()}) as answer,
    ):
        async for line in answer.aiter_lines():
            if line == ": keep-alive":
                worker.gate.set()
                break
        else:
            pytest.fail("no comment came")


async def test_events_that_are_no_longer_kept_are_told_as_a_gap_with_the_task_as_it_is() -> None:
    worker = Gated()
    worker.gate.set()
    engine = MemoryEngine(retention=Retention(events_per_task=2))
    async with http(serve(worker, storage=engine)) as client:
        task = (await client.post("/message:send", json={"message": message()})).json()["task"]
        answer = await client.post(f"/tasks/{task['id']}:subscribe", headers={"Last-Event-ID": "1"})
        assert answer.text.startswith('event: gap\nid: 5\ndata: {"task":')
        assert "TASK_STATE_COMPLETED" in answer.text


async def test_a_last_event_id_that_is_none_is_refused(binding: str) -> None:
    async with http(serve(Asks())) as client:
        task = (await client.post("/message:send", json={"message": message()})).json()["task"]
        reason, _ = await call(client, "SubscribeToTask", {"id": task["id"]}, binding, **{"Last-Event-ID": "x"})
        assert reason == "INVALID_PARAMS"


# The card and the pages


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


async def test_a_body_without_a_length_is_cut_off_at_the_limit() -> None:
    exchange = Exchange({"headers": []}, pieces_of([b" " * 600, b" " * 600]), nowhere, max_body_bytes=1000)
    with pytest.raises(PayloadTooLargeError):
        await exchange.body()


def pieces_of(pieces: list[bytes]) -> Receive:
    """A request body in pieces, as a server hands it on."""
    rest = list(pieces)

    async def receive() -> dict[str, Any]:
        piece = rest.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(rest)}

    return receive


async def nowhere(message: Any) -> None:
    pytest.fail("nothing is to be sent")
