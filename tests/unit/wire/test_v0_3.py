"""What is particular to A2A 0.3, over JSON-RPC and in both ways of HTTP+JSON."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from errands import errors
from errands.errors import InvalidParamsError, ParseError, TaskNotFoundError, UnsupportedOperationError
from errands.model import (
    Message,
    Part,
    Role,
    StreamResponse,
    Task,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
    encode,
)
from errands.model.requests import (
    AuthenticationInfo,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    Empty,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    SendMessageConfiguration,
    SendMessageRequest,
    SendMessageResponse,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)
from errands.operations import OPERATIONS
from errands.wire.dialect import Dialect, Located, MalformedAnswerError
from errands.wire.status import ERRORS, STATUS
from errands.wire.v0_3 import JSONRPC, REST, REST_PLAIN

SEND = OPERATIONS["SendMessage"]
MESSAGE = Message(message_id="m", role=Role.agent, parts=[Part(text="hi")])
TASK = Task(id="t", context_id="c", status=TaskStatus(state=TaskState.canceled))
CONFIG = TaskPushNotificationConfig(
    url="http://hook", id="p", task_id="t", authentication=AuthenticationInfo(scheme="Bearer")
)

every_dialect = pytest.mark.parametrize("dialect", [JSONRPC, REST, REST_PLAIN], ids=["jsonrpc", "rest", "rest-plain"])
plain_dialects = pytest.mark.parametrize("dialect", [JSONRPC, REST_PLAIN], ids=["jsonrpc", "rest-plain"])


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def said(*parts: Any, **fields: Any) -> dict[str, Any]:
    return {"kind": "message", "messageId": "m", "role": "user", "parts": list(parts), **fields}


def read_parts(*parts: Any) -> list[Part]:
    request: SendMessageRequest = JSONRPC.read_request(SEND, body(message=said(*parts)))
    return request.message.parts


def text(words: str) -> dict[str, Any]:
    return {"kind": "text", "text": words}


# Requests


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
def test_the_other_requests_over_jsonrpc(operation: str, request_: Any, params: dict[str, Any]) -> None:
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
    with pytest.raises(InvalidParamsError, match="no such state"):
        JSONRPC.read_request(OPERATIONS["ListTasks"], body(status="asleep"))


# HTTP+JSON


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


def test_files_are_base64_twice_in_protojson_and_read_either_way() -> None:
    message = Message(message_id="m", role=Role.user, parts=[Part(raw=b"\xff\x00")])
    written = json.loads(REST.write_request(SEND, SendMessageRequest(message=message)))
    file = written["message"]["content"][0]["file"]
    assert base64.b64decode(base64.b64decode(file["fileWithBytes"])) == b"\xff\x00"
    file["fileWithBytes"] = base64.b64encode(b"\xff\x00").decode()
    assert REST.read_request(SEND, encode(written)).message == message


def test_agents_that_follow_the_text_are_understood() -> None:
    plain = REST_PLAIN.write_response(SEND, SendMessageResponse(message=MESSAGE))
    bare = JSONRPC.write_response(SEND, SendMessageResponse(message=MESSAGE))
    assert REST.read_response(SEND, plain) == REST.read_response(SEND, bare) == SendMessageResponse(message=MESSAGE)
    assert REST.read_response(OPERATIONS["GetTask"], JSONRPC.write_response(OPERATIONS["GetTask"], TASK)) == TASK


# Answers


@pytest.mark.parametrize("state", TaskState)
@every_dialect
def test_final_is_where_nothing_follows(dialect: Dialect, state: TaskState) -> None:
    update = TaskStatusUpdateEvent(task_id="t", context_id="c", status=TaskStatus(state=state))
    event = json.loads(dialect.write_event(encode(StreamResponse(status_update=update))))
    going_on = {TaskState.UNSPECIFIED, TaskState.submitted, TaskState.working}
    assert event.get("statusUpdate", event).get("final", False) is (state not in going_on)


def test_over_jsonrpc_results_are_the_objects_themselves() -> None:
    task = json.loads(JSONRPC.write_response(SEND, SendMessageResponse(task=TASK)))
    assert task == {"kind": "task", "id": "t", "contextId": "c", "status": {"state": "canceled"}}
    message = json.loads(JSONRPC.write_response(SEND, SendMessageResponse(message=MESSAGE)))
    assert message == {"kind": "message", "messageId": "m", "role": "agent", "parts": [text("hi")]}


def test_over_http_results_say_what_they_are() -> None:
    state = {"state": "TASK_STATE_CANCELLED"}
    response = SendMessageResponse(task=TASK)
    assert json.loads(REST.write_response(SEND, response)) == {"task": {"id": "t", "contextId": "c", "status": state}}
    assert json.loads(REST_PLAIN.write_response(SEND, response))["task"]["kind"] == "task"


def test_a_task_without_a_context_has_an_empty_one() -> None:
    task = Task(id="t", status=TaskStatus(state=TaskState.working))
    written = JSONRPC.write_response(OPERATIONS["GetTask"], task)
    assert json.loads(written)["contextId"] == ""
    assert JSONRPC.read_response(OPERATIONS["GetTask"], written) == task


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"messageId": "m", "role": "agent", "parts": [text("x")]}, "message"),
        ({"id": "t", "contextId": "c", "status": {"state": "working"}}, "task"),
        ({"taskId": "t", "contextId": "c", "status": {"state": "working"}, "final": False}, "status_update"),
        ({"taskId": "t", "contextId": "c", "artifact": {"artifactId": "a", "parts": []}}, "artifact_update"),
    ],
)
def test_objects_without_kind_are_recognised(fields: dict[str, Any], kind: str) -> None:
    assert getattr(JSONRPC.read_event(body(**fields)), kind) is not None


@pytest.mark.parametrize("raw", [b"", b"1", b"null", b"{}", b'{"kind":"robot"}', b'{"kind":"task","id":1}'])
@every_dialect
def test_what_is_no_answer_is_refused(dialect: Dialect, raw: bytes) -> None:
    with pytest.raises(MalformedAnswerError):
        dialect.read_response(SEND, raw)
    with pytest.raises(MalformedAnswerError):
        dialect.read_event(raw)


@every_dialect
def test_push_configs_are_answered(dialect: Dialect) -> None:
    get, list_all = OPERATIONS["GetTaskPushNotificationConfig"], OPERATIONS["ListTaskPushNotificationConfigs"]
    assert dialect.read_response(get, dialect.write_response(get, CONFIG)) == CONFIG
    listed = ListTaskPushNotificationConfigsResponse(configs=[CONFIG])
    written = dialect.write_response(list_all, listed)
    assert dialect.read_response(list_all, written) == listed
    under_configs = written if written.startswith(b"{") else b'{"configs":%b}' % written
    assert dialect.read_response(list_all, under_configs) == listed
    with pytest.raises(MalformedAnswerError):
        dialect.read_response(list_all, b'{"configs":1}')


def test_a_deleted_push_config_is_answered_with_nothing() -> None:
    row = OPERATIONS["DeleteTaskPushNotificationConfig"]
    assert JSONRPC.write_response(row, Empty()) == b"null"
    assert JSONRPC.read_response(row, b"null") == Empty()
    assert REST.write_response(row, Empty()) == b"{}"


# Errors


@pytest.mark.parametrize("reason", STATUS)
@every_dialect
def test_every_error_survives_both_bindings(dialect: Dialect, reason: str) -> None:
    error = ERRORS[reason]("what happened")
    over_jsonrpc = dialect.read_jsonrpc_error(dialect.jsonrpc_error(error))
    over_http = dialect.read_http_error(*dialect.http_error(error))
    assert type(over_jsonrpc) is type(over_http) is ERRORS[reason]
    assert over_http is not None
    assert over_jsonrpc.message == over_http.message == "what happened"


def test_the_code_and_the_details_are_in_a_jsonrpc_error() -> None:
    error = JSONRPC.jsonrpc_error(TaskNotFoundError("gone", taskId="t"))
    assert (error["code"], error["message"]) == (-32001, "gone")
    assert error["data"][0]["metadata"] == {"taskId": "t"}
    assert JSONRPC.read_jsonrpc_error(error).metadata == {"taskId": "t"}


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        (None, {}),
        ({"taskId": "t", "more": [1]}, {"taskId": "t", "more": [1]}),
        ("why", {"data": "why"}),
        ([{"loc": ["params"], "msg": "missing"}], {"data": [{"loc": ["params"], "msg": "missing"}]}),
    ],
)
def test_whatever_an_agent_says_about_an_error_is_kept(data: Any, kept: dict[str, Any]) -> None:
    error = JSONRPC.read_jsonrpc_error({"code": -32001, "message": "gone", "data": data})
    assert type(error) is TaskNotFoundError
    assert error.metadata == kept


@pytest.mark.parametrize(
    ("status", "answer", "wanted"),
    [
        (404, {"message": "gone"}, TaskNotFoundError),
        (409, {"message": "too late"}, errors.TaskNotCancelableError),
        (422, {"message": "wrong"}, InvalidParamsError),
        (501, {"message": "no"}, UnsupportedOperationError),
        (501, {"message": "no", "type": "PushNotificationNotSupportedError"}, errors.PushNotificationNotSupportedError),
        (500, {"message": "unknown exception"}, errors.InternalError),
        (400, {"code": -32003, "message": "no"}, errors.PushNotificationNotSupportedError),
        (404, {"type": "AuthenticatedExtendedCardNotConfiguredError", "message": "no"}, None),
    ],
)
def test_errors_of_official_servers_are_read(status: int, answer: dict[str, Any], wanted: Any) -> None:
    assert type(REST.read_http_error(status, answer)) is (wanted or errors.ExtendedAgentCardNotConfiguredError)


@pytest.mark.parametrize("answer", [None, [], "x", {}, {"detail": "Not Found"}, {"message": 1}])
def test_what_is_no_error_of_an_agent_is_none(answer: Any) -> None:
    assert REST.read_http_error(404, answer) is None


def test_http_errors_have_the_statuses_of_the_official_server() -> None:
    status, answer = REST.http_error(errors.TaskNotCancelableError("too late"))
    assert status == 409
    assert (answer["message"], answer["type"]) == ("too late", "TaskNotCancelableError")
    assert answer["data"][0]["reason"] == "TASK_NOT_CANCELABLE"


def test_each_binding_has_only_its_own_questions() -> None:
    with pytest.raises(UnsupportedOperationError):
        JSONRPC.locate(SEND, SendMessageRequest(message=MESSAGE))
    with pytest.raises(UnsupportedOperationError):
        JSONRPC.read_query(SEND, {})
    with pytest.raises(UnsupportedOperationError):
        REST.method_of(SEND)
