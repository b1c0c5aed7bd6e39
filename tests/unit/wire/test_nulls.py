"""In ProtoJSON a field that is null is one that is left out; so it is in requests and in answers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from errands.errors import InvalidParamsError, ParseError
from errands.model.base import A2AObject
from errands.model.core import (
    Artifact,
    Message,
    Part,
    Role,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from errands.model.requests import ListTasksRequest, ListTasksResponse, SendMessageConfiguration, SendMessageRequest
from errands.wire import v1_0
from errands.wire.v0_3 import JSONRPC, REST
from tests.unit.wire.v0_3 import SEND

MESSAGE = Message(message_id="m", role=Role.USER, parts=[Part(text="hi"), Part(raw=b"\x00"), Part(data=None)])
TASK = Task(
    id="t",
    status=TaskStatus(state=TaskState.WORKING),
    artifacts=[Artifact(artifact_id="a", parts=[])],
    history=[MESSAGE],
    metadata={"kept": None},
)
STATUS = TaskStatusUpdateEvent(task_id="t", context_id="c", status=TASK.status)
PIECE = TaskArtifactUpdateEvent(task_id="t", context_id="c", artifact=Artifact(artifact_id="a", parts=[Part(text="x")]))


def with_nulls(value: Any) -> Any:
    """The value as JSON has it, with null wherever there is nothing."""
    if isinstance(value, msgspec.Struct):
        fields = ((field.encode_name, getattr(value, field.name)) for field in msgspec.structs.fields(value))
        return {name: with_nulls(content) for name, content in fields if content is not msgspec.UNSET}
    if isinstance(value, list) and value:
        return [with_nulls(item) for item in value]
    return msgspec.to_builtins(value) or None


@pytest.mark.parametrize(
    "request_",
    [
        SendMessageRequest(message=MESSAGE),
        SendMessageRequest(message=MESSAGE, configuration=SendMessageConfiguration()),
        ListTasksRequest(context_id="c"),
    ],
    ids=lambda request: type(request).__name__,
)
def test_a_request_may_have_nulls(request_: A2AObject) -> None:
    assert v1_0.read_body(type(request_), msgspec.json.encode(with_nulls(request_))) == request_


def test_a_null_where_something_is_needed_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidParamsError, match="message"):
        v1_0.read_body(SendMessageRequest, b'{"message":null}')


@pytest.mark.parametrize(
    "answer",
    [
        StreamResponse(task=TASK),
        StreamResponse(status_update=STATUS),
        StreamResponse(artifact_update=PIECE),
        ListTasksResponse(tasks=[TASK], next_page_token="", page_size=0, total_size=0),
    ],
    ids=["task", "status", "artifact", "list"],
)
def test_an_answer_may_have_nulls(answer: A2AObject) -> None:
    assert v1_0.read_answer(type(answer), msgspec.json.encode(with_nulls(answer))) == answer


@pytest.mark.parametrize("event", [StreamResponse(task=TASK), StreamResponse(artifact_update=PIECE)])
def test_an_event_of_0_3_may_have_nulls(event: StreamResponse) -> None:
    written = msgspec.json.decode(JSONRPC.write_event(msgspec.json.encode(event)))
    holders = [written, written.get("status"), *(written.get("artifacts") or [written.get("artifact")])]
    for holder in filter(None, holders):
        holder |= dict.fromkeys({"name", "description", "append", "lastChunk", "timestamp"} - holder.keys())
        holder |= {"parts": None} if holder.get("parts") == [] else {}
    assert JSONRPC.read_event(msgspec.json.encode(written)) == JSONRPC.read_event(
        JSONRPC.write_event(msgspec.json.encode(event))
    )


@pytest.mark.parametrize("final", [{}, {"final": None}])
def test_a_status_of_0_3_may_leave_out_whether_it_is_the_last(final: dict[str, Any]) -> None:
    event = {"kind": "status-update", "taskId": "t", "contextId": "c", "status": {"state": "working"}, **final}
    assert JSONRPC.read_event(msgspec.json.encode(event)).status_update == STATUS


@pytest.mark.parametrize("body", [b'{"message":null,', b'{"message":null,"metadata":{"a":"\xff"}}'])
def test_what_is_no_json_is_said_to_be_none_though_a_null_comes_first(body: bytes) -> None:
    with pytest.raises(ParseError, match="Invalid JSON payload"):
        v1_0.read_body(SendMessageRequest, body)


@pytest.mark.parametrize("state", [2, "2"])
def test_an_answer_may_have_numbers_for_enums(state: Any) -> None:
    written = {
        "id": "t",
        "status": {"state": state, "message": {"messageId": "m", "role": 2, "parts": [{"text": "x"}]}},
    }
    task = v1_0.read_answer(Task, msgspec.json.encode(written))
    assert task.status.state is TaskState.WORKING
    assert task.status.message is not None
    assert task.status.message.role is Role.AGENT


@pytest.mark.parametrize("number", range(9))
def test_a_state_of_0_3_has_its_number_of_the_proto(number: int) -> None:
    read = REST.read_event(msgspec.json.encode({"statusUpdate": {"taskId": "t", "status": {"state": number}}}))
    assert read.status_update is not None
    assert read.status_update.status.state is list(TaskState)[number]


def test_over_jsonrpc_0_3_has_names_and_no_numbers() -> None:
    said = {"messageId": "m", "role": 0, "parts": [{"kind": "text", "text": "x"}]}
    with pytest.raises(InvalidParamsError, match="role"):
        JSONRPC.read_request(SEND, msgspec.json.encode({"message": said}))
