"""A2A 0.3 over HTTP+JSON: paths, queries, and the two ways to spell a body."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from errands.errors import InvalidParamsError
from errands.model.base import encode
from errands.model.core import Message, Part, Role, TaskState
from errands.model.requests import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTasksRequest,
    SendMessageResponse,
    SubscribeToTaskRequest,
)
from errands.operations import OPERATIONS
from errands.wire.dialect import Dialect, Located
from errands.wire.v0_3 import JSONRPC, REST, REST_ONCE, REST_PLAIN
from tests.unit.wire.v0_3 import CONFIG, MESSAGE, SEND, TASK, body, said, text


@pytest.mark.parametrize(
    ("written", "dialect"),
    [
        ({"message": said(text("hi"))}, REST_PLAIN),
        ({"message": {"messageId": "m", "role": "user", "parts": []}}, REST_PLAIN),
        ({"message": {"messageId": "m", "role": "ROLE_USER", "content": []}}, REST),
        ({"request": {"message_id": "m", "role": "ROLE_USER", "content": []}}, REST),
        ({"name": "tasks/t"}, REST),
        ({"config": {"name": "tasks/t/pushNotificationConfigs/p"}}, REST),
        ({"config": {"taskId": "t"}}, REST_PLAIN),
        ({"taskId": "t", "pushNotificationConfig": {}}, REST_PLAIN),
        ({}, REST),
    ],
)
def test_a_body_says_how_it_is_spelled(written: dict[str, Any], dialect: Dialect) -> None:
    assert REST.variant(body(**written)) is dialect


def test_words_in_a_message_do_not_decide_how_it_is_spelled() -> None:
    message = {"messageId": "m", "role": "ROLE_USER", "content": [{"text": '"kind": "message", "role": "user"'}]}
    assert REST.variant(body(message=message)) is REST


def test_every_operation_has_its_path() -> None:
    assert {(route.operation.name, route.path, *sorted(route.methods)) for route in REST.routes} == {
        ("SendMessage", "/v1/message:send", "POST"),
        ("SendStreamingMessage", "/v1/message:stream", "POST"),
        ("GetTask", "/v1/tasks/{id}", "GET"),
        ("ListTasks", "/v1/tasks", "GET"),
        ("CancelTask", "/v1/tasks/{id}:cancel", "POST"),
        ("SubscribeToTask", "/v1/tasks/{id}:subscribe", "GET", "POST"),
        ("CreateTaskPushNotificationConfig", "/v1/tasks/{task_id}/pushNotificationConfigs", "POST"),
        ("GetTaskPushNotificationConfig", "/v1/tasks/{task_id}/pushNotificationConfigs/{id}", "GET"),
        ("ListTaskPushNotificationConfigs", "/v1/tasks/{task_id}/pushNotificationConfigs", "GET"),
        ("DeleteTaskPushNotificationConfig", "/v1/tasks/{task_id}/pushNotificationConfigs/{id}", "DELETE"),
        ("GetExtendedAgentCard", "/v1/card", "GET"),
    }


@pytest.mark.parametrize(
    ("operation", "request_", "located"),
    [
        ("GetTask", GetTaskRequest(id="a/b", history_length=3), ("GET", "/v1/tasks/a%2Fb", {"historyLength": "3"})),
        ("SubscribeToTask", SubscribeToTaskRequest(id="t"), ("GET", "/v1/tasks/t:subscribe", {})),
        (
            "ListTasks",
            ListTasksRequest(status=TaskState.canceled, include_artifacts=True),
            ("GET", "/v1/tasks", {"status": "TASK_STATE_CANCELLED", "includeArtifacts": "true"}),
        ),
        (
            "DeleteTaskPushNotificationConfig",
            DeleteTaskPushNotificationConfigRequest(task_id="t", id="p"),
            ("DELETE", "/v1/tasks/t/pushNotificationConfigs/p", {}),
        ),
    ],
)
def test_requests_without_a_body_are_in_path_and_query(
    operation: str, request_: Any, located: tuple[str, str, dict[str, str]]
) -> None:
    assert REST.locate(OPERATIONS[operation], request_) == Located(*located, None)


def test_a_cancel_names_its_task_in_path_and_body() -> None:
    located = REST.locate(OPERATIONS["CancelTask"], CancelTaskRequest(id="t"))
    assert located == Located("POST", "/v1/tasks/t:cancel", {}, b'{"name":"tasks/t"}')
    assert REST.read_request(OPERATIONS["CancelTask"], located.body or b"", {"id": "t"}) == CancelTaskRequest(id="t")


@pytest.mark.parametrize("dialect", [REST, REST_PLAIN], ids=["rest", "rest-plain"])
def test_a_push_config_is_created_under_its_task(dialect: Dialect) -> None:
    row = OPERATIONS["CreateTaskPushNotificationConfig"]
    located = dialect.locate(row, CONFIG)
    assert located.path == "/v1/tasks/t/pushNotificationConfigs"
    assert located.body is not None
    assert dialect.read_request(row, located.body, {"task_id": "t"}) == CONFIG
    bare = encode(json.loads(located.body)["config"])
    assert dialect.read_request(row, bare, {"task_id": "t"}) == CONFIG
    with pytest.raises(InvalidParamsError, match="url"):
        dialect.read_request(row, b"{}", {"task_id": "t"})


#: The second is base64 text itself: of it alone nobody can tell how often it was encoded.
FILES = [b"\xff\x00", b"data", b"", b"not base64!", b"data\n", b"x" * 1000]
#: What peers call themselves, and whether they write files once.
PEERS = {
    b"": False,
    b"python-httpx/0.28.1": False,
    b"Go-http-client/1.1": False,
    b"Java-http-client/17": False,
    b"curl/8.5.0": False,
    b"grpc-python-asyncio/1.85.1 grpc-c/53.0.0 (linux; chttp2)": False,
    b"node": True,
    b"undici": True,
    b"Deno/2.1": True,
    b"Bun/1.2": True,
    b"Mozilla/5.0 (X11; Linux x86_64)": True,
    b"grpc-node-js/1.14.4": True,
    b"Express": True,
}


def sent(*files: bytes, times: int) -> bytes:
    """Return a request with these files, each base64 so many times."""
    parts = []
    for content in files:
        for _ in range(times):
            content = base64.b64encode(content)
        parts.append({"file": {"fileWithBytes": content.decode()}})
    return body(message={"messageId": "m", "role": "ROLE_USER", "content": parts})


@pytest.mark.parametrize(("software", "once"), PEERS.items())
@pytest.mark.parametrize("file", FILES)
def test_a_peer_gets_a_file_as_it_writes_files_itself(software: bytes, once: bool, file: bytes) -> None:
    request = sent(file, times=1 if once else 2)
    dialect = REST.variant(request, software)
    read = dialect.read_request(SEND, request)
    assert read.message.parts == [Part(raw=file)]
    assert dialect.write_request(SEND, read) == REST.variant(b"", software).write_request(SEND, read)
    written = json.loads(dialect.write_request(SEND, read))["message"]["content"][0]["file"]["fileWithBytes"]
    assert written == json.loads(request)["message"]["content"][0]["file"]["fileWithBytes"]


def test_of_an_unknown_peer_one_file_that_is_not_base64_tells_how_it_writes_all() -> None:
    request = sent(b"data", b"not base64!", times=1)
    dialect = REST.variant(request, b"curl/8.5.0")
    read = dialect.read_request(SEND, request)
    assert [part.raw for part in read.message.parts] == [b"data", b"not base64!"]
    answered = json.loads(dialect.write_request(SEND, read))["message"]["content"]
    assert [part["file"] for part in answered] == [part["file"] for part in json.loads(request)["message"]["content"]]


def test_a_single_file_of_an_unknown_peer_that_is_base64_is_taken_for_encoded_twice() -> None:
    request = sent(b"data", times=1)
    read = REST.variant(request).read_request(SEND, request)
    assert read.message.parts == [Part(raw=base64.b64decode(b"data"))]


def test_a_client_reads_files_of_agents_that_write_them_either_way() -> None:
    message = Message(message_id="m", role=Role.agent, parts=[Part(raw=b"\xff\x00")])
    for dialect in (REST, REST_ONCE):
        written = dialect.write_response(SEND, SendMessageResponse(message=message))
        assert REST.read_response(SEND, written) == SendMessageResponse(message=message)


def test_agents_that_follow_the_text_are_understood() -> None:
    plain = REST_PLAIN.write_response(SEND, SendMessageResponse(message=MESSAGE))
    bare = JSONRPC.write_response(SEND, SendMessageResponse(message=MESSAGE))
    assert REST.read_response(SEND, plain) == REST.read_response(SEND, bare) == SendMessageResponse(message=MESSAGE)
    assert REST.read_response(OPERATIONS["GetTask"], JSONRPC.write_response(OPERATIONS["GetTask"], TASK)) == TASK
