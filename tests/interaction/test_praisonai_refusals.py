"""PraisonAI's dialect: what is wrong is refused with a code and a reason, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interaction.agents import Echo
from tests.interaction.praisonai import praison, say

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("params", [{}, {"message": None}])
@pytest.mark.parametrize("method", ["message/send", "message/stream"])
async def test_a_message_is_required(method: str, params: dict[str, Any]) -> None:
    async with praison(Echo()) as client:
        assert await client.refused(method, params) == (-32602, "Invalid params: 'message' required")


@pytest.mark.parametrize("params", [{}, {"id": None}, {"id": ""}])
@pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel"])
async def test_an_id_is_required(method: str, params: dict[str, Any]) -> None:
    async with praison(Echo()) as client:
        assert await client.refused(method, params) == (-32602, "Invalid params: 'id' required")


@pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel"])
async def test_an_unknown_task_is_not_found(method: str) -> None:
    async with praison(Echo()) as client:
        assert await client.refused(method, {"id": "task-1"}) == (-32000, "Task not found: task-1")
        params = {"message": say(taskId="task-1")}
        assert await client.refused("message/send", params) == (-32000, "Task not found: task-1")


@pytest.mark.parametrize("method", ["SendMessage", "tasks/resubscribe", "agent/getAuthenticatedExtendedCard", "x"])
async def test_an_unknown_method_is_not_found(method: str) -> None:
    async with praison(Echo()) as client:
        assert await client.refused(method) == (-32601, f"Method not found: {method}")


@pytest.mark.parametrize("verb", ["set", "get", "list", "delete"])
async def test_push_notifications_are_not_supported(verb: str) -> None:
    method = f"tasks/pushNotificationConfig/{verb}"
    async with praison(Echo()) as client:
        assert await client.refused(method) == (-32601, f"Push notifications not supported: {method}")
        push = {"message": say(), "configuration": {"pushNotificationConfig": {"url": "https://hook.test"}}}
        assert (await client.refused("message/send", push))[0] == -32601
        assert await client.result("tasks/list") == []


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user"},
        {"role": "user", "parts": []},
        {"role": "user", "parts": [{}]},
        {"role": "user", "parts": [{"kind": "text"}]},
        {"role": "user", "parts": [{"text": "a"}, {"sound": "b"}]},
        {"role": "user", "parts": [{"text": 1}]},
        {"role": "user", "parts": [{"raw": "not base64!"}]},
        {"role": "agent", "parts": [{"text": "a"}]},
        {"role": "user", "parts": [{"text": "a"}], "messageId": 5},
        {"role": "user", "parts": "a"},
        "hello",
        ["hello"],
        5,
    ],
)
async def test_a_message_that_is_none_is_refused_with_a_reason_and_makes_no_task(message: Any) -> None:
    async with praison(Echo()) as client:
        code, reason = await client.refused("message/send", {"message": message})
        assert code == -32602
        assert reason.startswith("Invalid params: ")
        assert await client.result("tasks/list") == []


@pytest.mark.parametrize(
    ("body", "code", "message", "request_id"),
    [
        (b"{", -32700, "Parse error: invalid JSON", None),
        (b"\xff\xfe", -32700, "Parse error: invalid JSON", None),
        (b"", -32700, "Parse error: invalid JSON", None),
        (b'{"id": 3, "method": "tasks/list"}', -32600, "Invalid Request: jsonrpc must be '2.0'", 3),
        (b'{"jsonrpc": "1.0", "id": 3, "method": "tasks/list"}', -32600, "Invalid Request: jsonrpc must be '2.0'", 3),
        (b"[]", -32600, None, None),
        (b'{"jsonrpc": "2.0", "id": 3, "method": "tasks/get", "params": []}', -32600, None, 3),
        (b'{"jsonrpc": "2.0", "id": 3, "method": 4}', -32600, None, 3),
    ],
)
async def test_a_broken_envelope_is_told_so(body: bytes, code: int, message: str | None, request_id: Any) -> None:
    async with praison(Echo()) as client:
        answer = await client.http.post("/a2a", content=body, headers={"Content-Type": "application/json"})
        document = answer.json()
        assert (answer.status_code, document["id"]) == (200, request_id)
        assert document["error"]["code"] == code
        assert set(document["error"]) == {"code", "message"}
        assert message in (None, document["error"]["message"])


async def test_deep_nesting_and_other_types_are_refused() -> None:
    async with praison(Echo()) as client:
        deep = b"[" * 100_000
        body = b'{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":%b}}' % deep
        answer = await client.http.post("/a2a", content=body, headers={"Content-Type": "application/json"})
        assert answer.json()["error"]["code"] in (-32600, -32602, -32700)
        answer = await client.http.post("/a2a", content=b"{}", headers={"Content-Type": "text/plain"})
        assert answer.json()["error"]["code"] == -32005


async def test_a_body_that_is_too_large_is_refused() -> None:
    async with praison(Echo()) as client:
        body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": say("x" * 11_000_000)}}
        answer = await client.http.post("/a2a", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, -32600)
