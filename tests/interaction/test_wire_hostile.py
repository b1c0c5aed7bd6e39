"""On the wire: ids, tokens and times that were made to hurt a store are answered or refused, and never break it."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import pytest

from errands.testing import serve
from tests.interaction.agents import Echo
from tests.interaction.wire import http, message, rpc

pytestmark = pytest.mark.anyio

NAMES = {
    "a NUL": "a\0b",
    "separators": "a:b::c/d|e",
    "braces": "{x}:task:{y}",
    "a pattern": "*[a-z]?",
    "a way up": "../../x",
    "a header": "x\r\nSet-Cookie: a=b",
    "quotes": "'\"`;--",
    "escapes": "\\u0000\\x1b[2J\x1b[2J",
    "line separators": "\u2028\u2029\x85",
    "the last character": "\U0010ffff",
    "long": "x" * 200_000,
    "long in bytes": "🐍" * 50_000,
}
TOKENS = [
    [10**30, 1, "x"],
    [1, 10**30, "x"],
    [2**63, 2**63, "x"],
    [-(2**63), -(2**63) - 1, "x"],
    [2**64, 1, "x", True],
    [-1, -1, ""],
    [1, 1, "a\0b"],
    [1, 1, "\U0010ffff" * 10_000, True],
]
TIMES = ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "1e400", "2026-13-41T99:99:99Z"]


async def asked(client: httpx.AsyncClient, method: str, params: dict[str, Any]) -> None:
    """Asks for something that may be refused, with a reason that is the client's fault and not the server's."""
    answer = await client.post("/", json=rpc(method, params))
    assert answer.status_code == 200
    error = answer.json().get("error")
    assert error is None or error["data"][0]["reason"] not in ("INTERNAL", "UNAVAILABLE"), error


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
async def test_any_name_is_taken_or_refused(storage: str, name: str) -> None:
    async with http(serve(Echo(), storage=storage)) as client:
        for method in ("GetTask", "CancelTask", "SubscribeToTask"):
            await asked(client, method, {"id": name})
        for params in ({"tenant": name}, {"contextId": name}, {"pageToken": name}):
            await asked(client, "ListTasks", params)
        for fields in ({"contextId": name}, {"taskId": name}, {"messageId": name}, {"referenceTaskIds": [name]}):
            await asked(client, "SendMessage", {"message": message(**fields)})
        everywhere = {"message": message(name, metadata={name: name}), "tenant": name, "metadata": {name: [name]}}
        await asked(client, "SendMessage", everywhere)


@pytest.mark.parametrize("position", TOKENS, ids=lambda position: str(position)[:30])
async def test_a_token_that_somebody_made_up_is_taken_or_refused(storage: str, position: list[Any]) -> None:
    token = base64.urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip("=")
    async with http(serve(Echo(), storage=storage)) as client:
        await asked(client, "SendMessage", {"message": message()})
        await asked(client, "ListTasks", {"pageToken": token})


@pytest.mark.parametrize("time", TIMES)
async def test_a_time_beyond_all_times_is_taken_or_refused(storage: str, time: str) -> None:
    async with http(serve(Echo(), storage=storage)) as client:
        await asked(client, "ListTasks", {"statusTimestampAfter": time})


@pytest.mark.parametrize("position", [b"\xb2", b"\xb9\xb3", b"-1", b"1.5", b"9" * 19, b"0x1"])
async def test_a_position_that_is_none_is_refused(position: bytes) -> None:
    async with http(serve(Echo())) as client:
        sent = (await client.post("/message:send", json={"message": message()})).json()["task"]["id"]
        answer = await client.post(f"/tasks/{sent}:subscribe", headers=[(b"Last-Event-ID", position)])
        assert answer.status_code == 400
        assert "Last-Event-ID" in answer.json()["error"]["message"]
