"""A2A 0.3: errors, over JSON-RPC and in both ways of HTTP+JSON."""

from __future__ import annotations

from typing import Any

import pytest

from errands import errors
from errands.errors import InvalidParamsError, TaskNotFoundError, UnsupportedOperationError
from errands.model.requests import SendMessageRequest
from errands.wire.dialect import Dialect
from errands.wire.status import ERRORS, STATUS
from errands.wire.v0_3 import JSONRPC, REST
from tests.unit.wire.v0_3 import MESSAGE, SEND, every_dialect


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
