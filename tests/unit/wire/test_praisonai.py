"""What a server writes in PraisonAI's dialect, errands' client reads, and the other way round.

Not told apart there: an unspecified state and a submitted one, a rejected task and a failed one; an empty list and
none; an extension named once and twice. A part with an empty address has no content.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from errands.errors import PayloadTooLargeError
from errands.model.base import encode
from errands.model.core import COMPLETED, FAILED, REJECTED, SUBMITTED, UNSPECIFIED, Message, Role, StreamResponse, Task
from errands.model.requests import SendMessageConfiguration, SendMessageRequest
from errands.operations import OPERATIONS
from errands.wire.dialect import MalformedAnswerError
from errands.wire.praisonai import DIALECT, METHODS, PraisonPart, PraisonStream, read_request, write_task, write_tasks
from errands.wire.sse import SSEParser
from tests.soak import examples
from tests.unit.wire import strategies

FEW = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
ALIKE = {UNSPECIFIED.value: SUBMITTED.value, REJECTED.value: FAILED.value}


def essence(value: Any) -> Any:
    """What is told apart."""
    if isinstance(value, msgspec.Struct):
        return essence(msgspec.to_builtins(value))
    if isinstance(value, list):
        return [essence(item) for item in value if item != {"url": ""}]
    if not isinstance(value, dict):
        return ALIKE.get(value, value) if isinstance(value, str) else value
    fields = {name: essence(item) for name, item in value.items() if name == "parts" or item != []}
    if "extensions" in fields:
        fields["extensions"] = list(dict.fromkeys(fields["extensions"]))
    return fields


def has_empty_address(value: msgspec.Struct) -> bool:
    return b'"url":""' in encode(value)


@FEW
@given(task=strategies.tasks(True))
def test_any_task_survives(task: Task) -> None:
    assume(not has_empty_address(task))
    read = DIALECT.read_response(OPERATIONS["GetTask"], write_task(task))
    assert read.status.state is not UNSPECIFIED
    if task.status.state is not COMPLETED:  # a completed one has its answer twice
        assert essence(read) == essence(task)
    listed = DIALECT.read_response(OPERATIONS["ListTasks"], write_tasks([task, task]))
    assert (listed.tasks, listed.next_page_token) == ([read, read], "")


@FEW
@given(event=strategies.events(True))
def test_any_update_survives(event: StreamResponse) -> None:
    assume(event.task is None and event.message is None and not has_empty_address(event))
    written = SSEParser().feed(PraisonStream().write(encode(event)))
    assert essence(DIALECT.read_event(written[-1].data.encode())) == essence(event)


@FEW
@given(message=strategies.messages(True), immediately=st.booleans())
def test_any_sent_message_survives(message: Message, immediately: bool) -> None:
    assume(not has_empty_address(message))
    message = msgspec.structs.replace(message, role=Role.USER)
    configuration = SendMessageConfiguration(return_immediately=immediately, accepted_output_modes=["text/plain"])
    request = SendMessageRequest(message=message, configuration=configuration, metadata={"k": "v"})
    body = DIALECT.write_request(OPERATIONS["SendMessage"], request)
    operation, read = read_request("message/send", body, max_parts=1000)
    if not message.context_id and not message.task_id:
        message.context_id = f"context-{message.message_id}"
    assert operation.name == "SendMessage"
    assert essence(read) == essence(request)


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_operation_has_a_method_or_is_lacking(name: str) -> None:
    assert (name in DIALECT.lacks) != (name in METHODS.values())


@FEW
@given(raw=st.binary(max_size=40) | strategies.json_values.map(encode))
def test_nothing_but_an_answer_is_read_as_one(raw: bytes) -> None:
    with pytest.raises(MalformedAnswerError):
        DIALECT.read_response(OPERATIONS["GetTask"], raw)
    with pytest.raises(MalformedAnswerError):
        DIALECT.read_event(raw)


def test_too_many_parts_are_refused_before_they_are_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(PraisonPart, "parts")
    body = encode({"message": {"role": "user", "parts": [{"text": ""}] * 6}})
    with pytest.raises(PayloadTooLargeError, match="max_message_parts"):
        read_request("message/send", body, max_parts=5)


@pytest.mark.parametrize(("method", "params"), [("tasks/get", {"id": "t", "contextId": 5}), ("tasks/list", {"id": 5})])
def test_parameters_of_other_methods_are_ignored(method: str, params: dict[str, object]) -> None:
    operation, _ = read_request(method, encode(params), max_parts=5)
    assert operation.name == METHODS[method]
