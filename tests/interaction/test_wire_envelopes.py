"""On the wire: what a request must look like, and what is told to one that does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.types import Receive

from errands import Settings, TaskContext, Worker
from errands.errors import PayloadTooLargeError
from errands.server.asgi import HttpExchange
from errands.testing import serve
from tests.interaction.agents import Echo
from tests.interaction.wire import call, http, message, rpc

pytestmark = pytest.mark.anyio


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


@pytest.mark.parametrize("path", ["/message:send", "/v1/message:send", "/", "/a2a"])
async def test_a_wrong_content_type_is_told_each_right_one_once(path: str) -> None:
    async with http(serve(Echo())) as client:
        answer = await client.post(path, content=b"<xml/>", headers={"content-type": "text/xml"})
        said = answer.json().get("message") or answer.json()["error"]["message"]
        assert said.count("application/json") == 1
        assert said.count("application/a2a+json") == (path == "/message:send")


async def test_enums_are_understood_as_numbers_and_answered_by_name(binding: str) -> None:
    async with http(serve(Echo())) as client:
        _, answer = await call(client, "SendMessage", {"message": message() | {"role": 1}}, binding)
        assert answer["task"]["history"][0]["role"] == "ROLE_USER"
        for status, found in ((3, 1), (4, 0)):
            _, listed = await call(client, "ListTasks", {"status": status}, binding)
            assert listed["totalSize"] == found


async def test_enums_of_0_3_are_understood_as_numbers_over_http_json() -> None:
    async with http(serve(Echo())) as client:
        said = {"messageId": "m", "role": 1, "content": [{"text": "hi"}]}
        sent = await client.post("/v1/message:send", json={"message": said, "configuration": {"blocking": True}})
        assert sent.json()["task"]["history"][0]["role"] == "ROLE_USER"
        for status, found in ((3, 1), (4, 0)):
            listed = (await client.get("/v1/tasks", params={"status": status})).json()
            assert len(listed.get("tasks", [])) == found


@pytest.mark.parametrize("role", [3, -1, 1.5, True, "1.5", [1]])
async def test_a_number_that_no_value_of_the_enum_has_is_refused(binding: str, role: Any) -> None:
    async with http(serve(Echo())) as client:
        reason, error = await call(client, "SendMessage", {"message": message() | {"role": role}}, binding)
        assert reason == "INVALID_PARAMS"
        assert "message.role" in error["message"]


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


async def test_a_body_without_a_length_is_cut_off_at_the_limit() -> None:
    exchange = HttpExchange(
        {"headers": []}, pieces_of([b" " * 600, b" " * 600]), nowhere, Settings(max_body_bytes=1000)
    )
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


class AsksOn(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.request_input("And then?")


@pytest.mark.parametrize("path", ["/", "/a2a"])
@pytest.mark.parametrize("padding", [1, 100_000])
async def test_a_message_of_too_many_parts_is_refused_with_the_id_of_its_request(path: str, padding: int) -> None:
    parts = [{"text": "x"}, {"text": "y" * padding}]
    body = rpc("message/send", {"message": {"messageId": "m", "role": "user", "parts": parts}}, 7)
    async with http(serve(AsksOn(), settings=Settings(max_message_parts=1))) as client:
        answer = await client.post(path, json=body)
        assert (answer.status_code, answer.json()["id"]) == (413, 7)
        assert "max_message_parts" in answer.json()["error"]["message"]


async def test_a_task_does_not_grow_without_end(binding: str, storage: str) -> None:
    settings = Settings(storage=storage, max_body_bytes=4096)
    async with http(serve(AsksOn(), settings=settings)) as client:
        _, asked = await call(client, "SendMessage", {"message": message("x" * 3000)}, binding)
        task_id, reason = asked["task"]["id"], None
        sent = []
        while reason is None:
            sent.append(message("x" * 3000, taskId=task_id))
            reason, error = await call(client, "SendMessage", {"message": sent[-1]}, binding)
        assert reason == "PAYLOAD_TOO_LARGE"
        assert "in a new task of the same context" in error["message"]
        assert 10 * 4096 < len(sent) * 3500 < 20 * 4096
        # The one before it was accepted: sent again, it is still answered.
        assert (await call(client, "SendMessage", {"message": sent[-2]}, binding))[0] is None
        assert (await call(client, "GetTask", {"id": task_id}, binding))[0] is None
        assert (await call(client, "CancelTask", {"id": task_id}, binding))[0] is None


@pytest.mark.parametrize("path", ["/", "/a2a", "/message:send", "/admin/reviews/t", "/blobs"])
@pytest.mark.parametrize("length", ["1" * 5_000, "-1", "1.5", "\u00b2", "0x10", ""])
async def test_a_length_that_is_no_number_is_a_bad_request(path: str, length: str, tmp_path: Path) -> None:
    # `errands serve` refuses these itself; other servers may not.
    async with http(serve(Echo(), blobs=str(tmp_path), console="on")) as client:
        headers = {"Content-Length": length.encode("latin-1"), "Content-Type": "application/json", "A2A-Version": "1.0"}
        answer = await client.post(path, content=b"{}", headers=headers)  # type: ignore[arg-type]
        assert answer.status_code in (200, 400), answer.text
        assert "Content-Length is not a valid number" in answer.text


@pytest.mark.parametrize("length", ["2 ", "2\t", "02"])
async def test_white_space_and_zeros_do_not_change_a_length(length: str) -> None:
    async with http(serve(Echo())) as client:
        headers = {"Content-Length": length, "Content-Type": "application/json", "A2A-Version": "1.0"}
        answer = await client.post("/", content=b"{}", headers=headers)
        assert "Content-Length" not in answer.text
