"""A2A 0.3: requests, over JSON-RPC and in both ways of HTTP+JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from errands.errors import InvalidParamsError, ParseError
from errands.model.core import Message, Part, Role, TaskState
from errands.model.requests import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
)
from errands.operations import OPERATIONS
from errands.wire.dialect import Dialect
from errands.wire.v0_3 import JSONRPC, REST
from tests.unit.wire.v0_3 import CONFIG, MESSAGE, SEND, body, every_dialect, plain_dialects, said, text


def read_parts(*parts: Any) -> list[Part]:
    request: SendMessageRequest = JSONRPC.read_request(SEND, body(message=said(*parts)))
    return request.message.parts


@pytest.mark.parametrize(
    ("configuration", "at_once"),
    [({}, False), ({"blocking": True}, False), ({"blocking": False}, True), ({"blocking": None}, False)],
)
@plain_dialects
def test_only_blocking_false_asks_for_an_answer_at_once(
    dialect: Dialect, configuration: dict[str, Any], at_once: bool
) -> None:
    request = dialect.read_request(SEND, body(message=said(text("hi")), configuration=configuration))
    assert request.configuration.return_immediately is at_once
    assert dialect.read_request(SEND, body(message=said(text("hi")))).configuration is None


@pytest.mark.parametrize("dialect", [JSONRPC, REST])
def test_a_client_always_says_whether_it_waits(dialect: Dialect) -> None:
    """Agents differ in what they take a missing `blocking` for."""
    for configuration, waits in [(None, True), (SendMessageConfiguration(return_immediately=True), False)]:
        written = dialect.write_request(SEND, SendMessageRequest(message=MESSAGE, configuration=configuration))
        assert json.loads(written)["configuration"].get("blocking", False) is waits


@pytest.mark.parametrize(("configuration", "at_once"), [({}, True), ({"blocking": True}, False)])
def test_in_protojson_a_missing_flag_is_a_false_one(configuration: dict[str, Any], at_once: bool) -> None:
    message = {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "hi"}]}
    request = REST.read_request(SEND, body(message=message, configuration=configuration))
    assert request.configuration.return_immediately is at_once
    assert REST.read_request(SEND, body(message=message)).configuration is None


@every_dialect
@pytest.mark.parametrize("at_once", [True, False])
def test_a_client_says_whether_it_waits(dialect: Dialect, at_once: bool) -> None:
    request = SendMessageRequest(message=MESSAGE, configuration=SendMessageConfiguration(return_immediately=at_once))
    written = json.loads(dialect.write_request(SEND, request))
    assert written["configuration"].get("blocking", False) is not at_once


def test_a_client_without_wishes_waits_in_protojson_too() -> None:
    written = json.loads(REST.write_request(SEND, SendMessageRequest(message=MESSAGE)))
    assert written["configuration"] == {"blocking": True}


def test_snake_case_and_unknown_fields_are_read() -> None:
    message = {"message_id": "m", "role": "user", "context_id": "c", "parts": [{"text": "hi", "x": 1}], "y": {}}
    file = {"kind": "file", "file": {"uri": "u", "mime_type": "image/png"}}
    message["parts"] = [{"text": "hi", "x": 1}, file]
    configuration = {"history_length": 2, "accepted_output_modes": ["a/b"], "z": 1}
    request = JSONRPC.read_request(SEND, body(message=message, configuration=configuration))
    assert request == SendMessageRequest(
        message=Message(
            message_id="m",
            role=Role.user,
            context_id="c",
            parts=[Part(text="hi"), Part(url="u", media_type="image/png")],
        ),
        configuration=SendMessageConfiguration(history_length=2, accepted_output_modes=["a/b"]),
    )


def test_keys_in_metadata_and_data_are_nobodys_but_the_senders() -> None:
    part = {"kind": "data", "data": {"snake_case": 1}, "metadata": {"other_key": 2}}
    assert read_parts(part) == [Part(data={"snake_case": 1}, metadata={"other_key": 2})]


@pytest.mark.parametrize("value", [None, 1, "x", [1, 2], True])
@every_dialect
def test_data_that_is_no_object_is_wrapped_as_the_sdk_wraps_it(dialect: Dialect, value: Any) -> None:
    message = Message(message_id="m", role=Role.user, parts=[Part(data=value, metadata={"k": "v"})])
    written = json.loads(dialect.write_request(SEND, SendMessageRequest(message=message)))["message"]
    part = (written.get("parts") or written["content"])[0]
    assert part["metadata"] == {"k": "v", "data_part_compat": True}
    assert (part["data"] if "kind" in part else part["data"]["data"]) == {"value": value}
    assert dialect.read_request(SEND, body(message=written)).message.parts == message.parts


def test_a_part_without_kind_is_what_it_has() -> None:
    assert read_parts({"text": "a"}, {"data": {}}, {"file": {"bytes": "aGk=", "name": "f"}}) == [
        Part(text="a"),
        Part(data={}),
        Part(raw=b"hi", filename="f"),
    ]


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"kind": "video", "text": "x"}, "message.parts[0]"),
        ({"kind": "text"}, "message.parts[0]"),
        ({"kind": "file", "file": {}}, "message.parts[0].file"),
        ({"kind": "file", "file": {"bytes": "aGk=", "uri": "u"}}, "message.parts[0].file"),
        ({"kind": "file", "file": {"bytes": "no base64!"}}, "message.parts[0].file.bytes"),
        ({"kind": "data"}, "message.parts[0]"),
        ({}, "message.parts[0]"),
    ],
)
def test_a_wrong_part_is_named(part: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidParamsError) as caught:
        read_parts(part)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (said(), "message.parts"),
        (said(text("hi"), messageId=""), "message.messageId"),
        (said(text("hi"), role="ROLE_USER"), "message.role"),
        (said(text("hi"), kind="task"), "message.kind"),
    ],
)
@plain_dialects
def test_a_wrong_message_is_refused_with_its_field(dialect: Dialect, message: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidParamsError) as caught:
        dialect.read_request(SEND, body(message=message))
    assert caught.value.field == field


@every_dialect
def test_a_request_without_a_message_is_refused(dialect: Dialect) -> None:
    with pytest.raises(InvalidParamsError, match="message"):
        dialect.read_request(SEND, b"{}")
    with pytest.raises(ParseError):
        dialect.read_request(SEND, b"{")


def test_every_operation_has_its_method() -> None:
    assert {operation.name for operation in JSONRPC.methods.values()} == set(OPERATIONS)
    assert all(JSONRPC.methods[JSONRPC.method_of(operation)] is operation for operation in OPERATIONS.values())


@pytest.mark.parametrize(
    ("operation", "request_", "params"),
    [
        ("GetTask", GetTaskRequest(id="t", history_length=0), {"id": "t", "historyLength": 0}),
        ("CancelTask", CancelTaskRequest(id="t", metadata={"k": 1}), {"id": "t", "metadata": {"k": 1}}),
        ("SubscribeToTask", SubscribeToTaskRequest(id="t"), {"id": "t"}),
        (
            "ListTasks",
            ListTasksRequest(context_id="c", status=TaskState.input_required, page_size=5),
            {"contextId": "c", "status": "input-required", "pageSize": 5},
        ),
        (
            "CreateTaskPushNotificationConfig",
            CONFIG,
            {
                "taskId": "t",
                "pushNotificationConfig": {"url": "http://hook", "id": "p", "authentication": {"schemes": ["Bearer"]}},
            },
        ),
        (
            "GetTaskPushNotificationConfig",
            GetTaskPushNotificationConfigRequest(task_id="t", id="p"),
            {"id": "t", "pushNotificationConfigId": "p"},
        ),
        (
            "DeleteTaskPushNotificationConfig",
            DeleteTaskPushNotificationConfigRequest(task_id="t", id="p"),
            {"id": "t", "pushNotificationConfigId": "p"},
        ),
        ("ListTaskPushNotificationConfigs", ListTaskPushNotificationConfigsRequest(task_id="t"), {"id": "t"}),
    ],
)
def test_the_other_requests_are_written_and_read_over_jsonrpc(
    operation: str, request_: Any, params: dict[str, Any]
) -> None:
    row = OPERATIONS[operation]
    assert json.loads(JSONRPC.write_request(row, request_)) == params
    assert JSONRPC.read_request(row, body(**params)) == request_


def test_a_push_config_without_an_id_goes_by_its_tasks() -> None:
    created = JSONRPC.read_request(
        OPERATIONS["CreateTaskPushNotificationConfig"], body(taskId="t", pushNotificationConfig={"url": "u"})
    )
    found = JSONRPC.read_request(OPERATIONS["GetTaskPushNotificationConfig"], body(id="t"))
    assert created.id == found.id == "t"


@pytest.mark.parametrize("params", [{}, {"taskId": "t"}, {"taskId": "", "pushNotificationConfig": {"url": "u"}}])
def test_half_a_push_config_is_refused(params: dict[str, Any]) -> None:
    with pytest.raises(InvalidParamsError):
        JSONRPC.read_request(OPERATIONS["CreateTaskPushNotificationConfig"], body(**params))


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("canceled", TaskState.canceled),
        ("auth-required", TaskState.auth_required),
        ("TASK_STATE_WORKING", TaskState.working),
        ("TASK_STATE_CANCELLED", TaskState.canceled),
        ("unknown", TaskState.UNSPECIFIED),
    ],
)
def test_tasks_are_listed_by_any_spelling_of_a_state(name: str, state: TaskState) -> None:
    assert JSONRPC.read_request(OPERATIONS["ListTasks"], body(status=name)).status is state
    assert REST.read_query(OPERATIONS["ListTasks"], {"status": name, "page_size": "3"}) == ListTasksRequest(
        status=state, page_size=3
    )


def test_a_state_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidParamsError, match="invalid state 'asleep'"):
        JSONRPC.read_request(OPERATIONS["ListTasks"], body(status="asleep"))
