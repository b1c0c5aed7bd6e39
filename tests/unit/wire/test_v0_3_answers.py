"""A2A 0.3: answers and events, over JSON-RPC and in both ways of HTTP+JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from errands.model.base import encode
from errands.model.core import StreamResponse, Task, TaskState, TaskStatus, TaskStatusUpdateEvent
from errands.model.requests import Empty, ListTaskPushNotificationConfigsResponse, SendMessageResponse
from errands.operations import OPERATIONS
from errands.wire.dialect import Dialect, MalformedAnswerError
from errands.wire.v0_3 import JSONRPC, REST, REST_PLAIN
from tests.unit.wire.v0_3 import CONFIG, MESSAGE, SEND, TASK, body, every_dialect, text


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
