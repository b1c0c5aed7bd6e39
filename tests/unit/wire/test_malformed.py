"""Nothing but the specified errors comes out of a dialect, whatever goes in."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from errands.errors import A2AError, InvalidParamsError, ParseError
from errands.model.card import AgentCard
from errands.model.core import Message, Part, Role, StreamResponse, Task, TaskState, TaskStatus
from errands.model.requests import SendMessageConfiguration, SendMessageRequest, SendMessageResponse
from errands.operations import OPERATIONS, Operation
from errands.wire.dialect import Dialect, MalformedAnswerError
from errands.wire.v0_3 import JSONRPC, REST, REST_PLAIN
from errands.wire.v0_3_card import from_v0_3
from tests.soak import examples
from tests.unit.wire.strategies import json_values, paths, replaced

FEW = settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
SEND = OPERATIONS["SendMessage"]

every_dialect = pytest.mark.parametrize("dialect", [JSONRPC, REST, REST_PLAIN], ids=["jsonrpc", "rest", "rest-plain"])
operations = st.sampled_from(list(OPERATIONS.values()))

MESSAGE = Message(
    message_id="m",
    role=Role.user,
    parts=[Part(text="hi"), Part(raw=b"x", filename="f"), Part(url="u"), Part(data={"a": 1}), Part(data=[1])],
    context_id="c",
    metadata={"k": "v"},
)
REQUEST = SendMessageRequest(message=MESSAGE, configuration=SendMessageConfiguration(history_length=1))
TASK = Task(id="t", status=TaskStatus(state=TaskState.working, message=MESSAGE), history=[MESSAGE])


def damaged(data: st.DataObject, valid: bytes) -> bytes:
    """A valid body with one value in it exchanged."""
    value = json.loads(valid)
    path = data.draw(st.sampled_from(list(paths(value))))
    return json.dumps(replaced(value, path, data.draw(json_values))).encode()


def assert_read_or_refused(dialect: Dialect, operation: Operation, body: bytes) -> None:
    for spoken in (dialect.variant, lambda _: dialect):
        try:
            request = spoken(body).read_request(operation, body)
        except (ParseError, InvalidParamsError):
            continue
        assert isinstance(request, operation.request)


@every_dialect
@FEW
@given(body=st.binary(max_size=60), operation=operations)
def test_any_bytes_are_read_as_a_request_or_refused(dialect: Dialect, body: bytes, operation: Operation) -> None:
    assert_read_or_refused(dialect, operation, body)


@every_dialect
@FEW
@given(value=json_values, operation=operations)
def test_any_json_is_read_as_a_request_or_refused(dialect: Dialect, value: Any, operation: Operation) -> None:
    assert_read_or_refused(dialect, operation, json.dumps(value).encode())


@every_dialect
@FEW
@given(data=st.data())
def test_a_message_with_one_wrong_value_is_read_or_refused(dialect: Dialect, data: st.DataObject) -> None:
    assert_read_or_refused(dialect, SEND, damaged(data, dialect.write_request(SEND, REQUEST)))


@every_dialect
@FEW
@given(data=st.data())
def test_a_truncated_message_is_refused(dialect: Dialect, data: st.DataObject) -> None:
    whole = dialect.write_request(SEND, REQUEST)
    body = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(ParseError):
        dialect.variant(body).read_request(SEND, body)


@every_dialect
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_a_deeply_nested_request_is_read_or_refused(dialect: Dialect, operation: Operation) -> None:
    body = b'{"message":' * 5000 + b"1" + b"}" * 5000
    assert_read_or_refused(dialect, operation, body)
    assert_read_or_refused(dialect, operation, b'{"some_key":' + body + b"}")


@FEW
@given(
    operation=operations,
    values=st.dictionaries(
        st.sampled_from(["id", "task_id", "historyLength", "page_size", "status", "includeArtifacts", "x"]),
        st.text(max_size=8),
    ),
)
@pytest.mark.parametrize("dialect", [REST, REST_PLAIN], ids=["rest", "rest-plain"])
def test_any_query_is_read_or_refused(dialect: Dialect, operation: Operation, values: dict[str, str]) -> None:
    try:
        request = dialect.read_query(operation, values)
    except InvalidParamsError:
        return
    assert isinstance(request, operation.request)


@every_dialect
@FEW
@given(data=st.data(), operation=operations.filter(lambda operation: not operation.streams))
def test_any_answer_is_read_or_called_malformed(dialect: Dialect, data: st.DataObject, operation: Operation) -> None:
    valid = dialect.write_response(SEND, SendMessageResponse(task=TASK))
    for raw in (data.draw(st.binary(max_size=60)), json.dumps(data.draw(json_values)).encode(), damaged(data, valid)):
        for read, kind in (
            (partial(dialect.read_response, operation), operation.response),
            (dialect.read_event, StreamResponse),
            (from_v0_3, AgentCard),
        ):
            try:
                answer = read(raw)
            except MalformedAnswerError:
                continue
            assert isinstance(answer, kind)


@every_dialect
@FEW
@given(
    error=st.fixed_dictionaries({}, optional=dict.fromkeys(("code", "message", "data", "type", "error"), json_values)),
    status=st.integers(400, 599),
)
def test_any_error_is_one_that_a2a_knows(dialect: Dialect, error: dict[str, Any], status: int) -> None:
    assert isinstance(dialect.read_jsonrpc_error(error), A2AError)
    assert isinstance(dialect.read_http_error(status, error), A2AError | None)
