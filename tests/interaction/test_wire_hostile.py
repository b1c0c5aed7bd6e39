"""On the wire: ids, tokens and times that were made to hurt a store are answered or refused, and never break it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
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


#: What is not JSON in UTF-8, inside a text that is otherwise a message, or around it.
NOT_UTF8 = {
    "a stray byte": b"a\xffb",
    "a cut character": b"a\xe2\x82",
    "a surrogate in bytes": b"\xed\xa0\x80",
    "an overlong NUL": b"\xc0\x80",
    "beyond Unicode": b"\xf5\x80\x80\x80",
    "half a surrogate pair": b"\\ud800",
    "the other half": b"\\udc00x",
    "a raw NUL": b"a\x00b",
}
MESSAGES = {
    "/": b'{"jsonrpc":"2.0","id":"%b","method":"SendMessage","params":{"message":'
    b'{"messageId":"m","role":"ROLE_USER","parts":[{"text":"%b"}]}}}',
    "/a2a": b'{"jsonrpc":"2.0","id":"%b","method":"message/send","params":{"message":'
    b'{"messageId":"m","role":"user","parts":[{"kind":"text","text":"%b"}]}}}',
    "/message:send": b'{"message":{"messageId":"m%b","role":"ROLE_USER","parts":[{"text":"%b"}]}}',
    "/v1/message:send": b'{"message":{"kind":"message","messageId":"m%b","role":"user",'
    b'"parts":[{"kind":"text","text":"%b"}]}}',
}
VERSION_0_3 = MESSAGES["/"].replace(b"SendMessage", b"message/send").replace(b"ROLE_USER", b"user")


def unreadable() -> Iterator[Any]:
    for path, form in [*MESSAGES.items(), ("/", VERSION_0_3)]:
        for name, text in NOT_UTF8.items():
            yield pytest.param(path, form % (b"1", text), id=f"{path} {name}")
            yield pytest.param(path, form % (text, b"hi"), id=f"{path} {name} in an id")
        document = form % (b"1", b"hi")
        yield pytest.param(path, b"\xef\xbb\xbf" + document, id=f"{path} with a byte order mark")
        for encoding in ("utf-16", "utf-16-le", "utf-32"):
            yield pytest.param(path, document.decode().encode(encoding), id=f"{path} in {encoding}")


@pytest.mark.parametrize(("path", "body"), list(unreadable()))
async def test_what_is_not_json_in_utf8_is_the_fault_of_the_client(
    path: str, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with http(serve(Echo())) as client:
        answer = await client.post(path, content=body, headers={"Content-Type": "application/json"})
        if path in ("/", "/a2a"):
            assert answer.json()["error"]["code"] == -32700
        else:
            assert answer.status_code in (400, 422)
        assert (await client.get("/tasks")).json()["totalSize"] == 0
    assert not caplog.records
