"""Whatever our model can say survives version 0.3, up to what 0.3 cannot say.

That is: the file name and media type of a part that is no file; an unspecified role; empty metadata beside data that
is no object; the difference between an empty and a missing context; a tenant; that no configuration was sent. Over
ProtoJSON also `referenceTaskIds` and a history length of 0. The strategies build none of these.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from errands.model.base import encode
from errands.model.requests import ListTasksResponse, SendMessageResponse
from errands.operations import OPERATIONS
from errands.wire.dialect import Dialect
from errands.wire.v0_3 import JSONRPC, REST, REST_PLAIN
from tests.soak import examples
from tests.unit.wire import strategies

FEW = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))

every_dialect = pytest.mark.parametrize(
    ("dialect", "references"),
    [(JSONRPC, True), (REST_PLAIN, True), (REST, False)],
    ids=["jsonrpc", "rest-plain", "rest"],
)


def through(dialect: Dialect, operation: str, result: Any) -> Any:
    row = OPERATIONS[operation]
    return dialect.read_response(row, dialect.write_response(row, result))


@every_dialect
@FEW
@given(data=st.data())
def test_any_task_survives(dialect: Dialect, references: bool, data: st.DataObject) -> None:
    task = data.draw(strategies.tasks(references))
    assert through(dialect, "GetTask", task) == task
    assert through(dialect, "SendMessage", SendMessageResponse(task=task)) == SendMessageResponse(task=task)
    listed = ListTasksResponse(tasks=[task], next_page_token="next", page_size=1, total_size=2)
    assert through(dialect, "ListTasks", listed) == listed


@every_dialect
@FEW
@given(data=st.data())
def test_any_message_survives(dialect: Dialect, references: bool, data: st.DataObject) -> None:
    response = SendMessageResponse(message=data.draw(strategies.messages(references)))
    assert through(dialect, "SendMessage", response) == response


@every_dialect
@FEW
@given(data=st.data())
def test_any_event_survives(dialect: Dialect, references: bool, data: st.DataObject) -> None:
    event = data.draw(strategies.events(references))
    assert dialect.read_event(dialect.write_event(encode(event))) == event


@every_dialect
@FEW
@given(data=st.data())
def test_any_sent_message_survives(dialect: Dialect, references: bool, data: st.DataObject) -> None:
    request = data.draw(strategies.requests(references))
    operation = OPERATIONS["SendMessage"]
    body = dialect.write_request(operation, request)
    assert dialect.variant(body) is dialect
    assert dialect.read_request(operation, body) == request
