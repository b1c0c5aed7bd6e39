"""Bad input of any kind, over every HTTP binding and in every spelling, gets a specified error and changes nothing."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from errands.testing import BASE_URL
from errands.wire import v0_3, v1_0
from errands.wire.dialect import Dialect
from errands.wire.status import ERRORS
from tests.interaction.fuzzing import FUZZ, JSONRPC_CODES, Target, check_clean, wrecked

#: What a server says of itself and not of a request.
FAULTS = {500, 502}

FIELDS = {
    "messageId": "m1",
    "contextId": "c1",
    "taskId": "no-such-task",
    "metadata": {"k": "v"},
    "extensions": ["x"],
}
FILE = {"mimeType": "text/plain", "name": "f"}


class Spelled(NamedTuple):
    """One dialect, and the body of a message that is sent in it."""

    dialect: Dialect
    body: dict[str, Any]

    @property
    def http_codes(self) -> set[int]:
        return {self.dialect.http_error(kind())[0] for kind in ERRORS.values()} - FAULTS

    def error_in(self, answer: httpx.Response) -> dict[str, Any]:
        """The error in an HTTP+JSON answer, as this dialect has it."""
        body = msgspec.json.decode(answer.content)
        error: dict[str, Any] = body["error"] if self.dialect.version == "1.0" else body
        return error


V1_0 = Spelled(
    v1_0.JSON,
    {
        "tenant": "",
        "message": {
            **FIELDS,
            "role": "ROLE_USER",
            "parts": [{"text": "hi"}, {"data": {"a": 1}}, {"raw": "aGk=", "mediaType": "text/plain", "filename": "f"}],
            "referenceTaskIds": ["t"],
        },
        "configuration": {"historyLength": 1, "returnImmediately": True, "acceptedOutputModes": ["text/plain"]},
        "metadata": {"k": "v"},
    },
)
#: 0.3 as its JSON schema has it, over either binding.
SCHEMA_BODY: dict[str, Any] = {
    "message": {
        **FIELDS,
        "kind": "message",
        "role": "user",
        "parts": [
            {"kind": "text", "text": "hi"},
            {"kind": "data", "data": {"a": 1}},
            {"kind": "file", "file": {**FILE, "bytes": "aGk="}},
            {"kind": "file", "file": {**FILE, "uri": "https://x.test"}},
        ],
        "referenceTaskIds": ["t"],
    },
    "configuration": {"historyLength": 1, "blocking": False, "acceptedOutputModes": ["text/plain"]},
    "metadata": {"k": "v"},
}
#: 0.3 over HTTP+JSON as the official SDKs write it.
PROTO_BODY: dict[str, Any] = {
    "message": {
        **FIELDS,
        "role": "ROLE_USER",
        "content": [
            {"text": "hi"},
            {"data": {"data": {"a": 1}}},
            {"file": {**FILE, "fileWithBytes": "YUdrPQ=="}},
            {"file": {**FILE, "fileWithUri": "https://x.test"}},
        ],
    },
    "configuration": {"historyLength": 1, "blocking": False, "acceptedOutputModes": ["text/plain"]},
    "metadata": {"k": "v"},
}
OVER_JSONRPC = {"1.0": V1_0, "0.3": Spelled(v0_3.JSONRPC, SCHEMA_BODY)}
OVER_REST = {
    "1.0": V1_0,
    "0.3 as the SDKs write it": Spelled(v0_3.REST, PROTO_BODY),
    "0.3 as the text has it": Spelled(v0_3.REST, SCHEMA_BODY),
}
#: Would be followed for as long as the task waits.
ENDLESS = "SubscribeToTask"


@pytest.mark.parametrize("spelled", OVER_JSONRPC.values(), ids=OVER_JSONRPC)
@given(data=st.data())
@FUZZ
def test_any_body_over_jsonrpc_is_answered_or_refused_with_a_code_of_the_table(
    target: Target, spelled: Spelled, data: st.DataObject
) -> None:
    requests = [
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": method,
            "params": {**spelled.body, "id": "none" if operation.name == ENDLESS else target.waiting},
        }
        for method, operation in spelled.dialect.methods.items()
    ]
    body = data.draw(wrecked(requests))
    before = target.tasks()
    answer = target.request("POST", "/", content=body, headers={"content-type": "application/json"})
    check_clean(answer)
    if answer.headers["content-type"].startswith("text/event-stream"):
        return
    document = msgspec.json.decode(answer.content)
    assert document["jsonrpc"] == "2.0"
    if "error" in document:
        assert document["error"]["code"] in JSONRPC_CODES
        assert document["error"]["message"]
        assert target.tasks() == before


@pytest.mark.parametrize("spelled", OVER_REST.values(), ids=OVER_REST)
@given(data=st.data())
@FUZZ
def test_any_body_over_http_json_is_answered_or_refused_with_a_code_of_the_table(
    target: Target, spelled: Spelled, data: st.DataObject
) -> None:
    route = data.draw(st.sampled_from([route for route in spelled.dialect.routes if "POST" in route.methods]))
    task_id = "none" if route.operation.name == ENDLESS else target.waiting
    path = route.path.replace("{id}", task_id).replace("{task_id}", task_id)
    body = data.draw(wrecked([spelled.body]))
    before = target.tasks()
    answer = target.request("POST", path, content=body, headers={"content-type": spelled.dialect.media_type})
    check_clean(answer)
    if answer.status_code != 200:
        assert answer.status_code in spelled.http_codes
        error = spelled.error_in(answer)
        assert error["code"] in {answer.status_code} | JSONRPC_CODES
        assert error["message"]
        assert error["details" if spelled.dialect.version == "1.0" else "data"]
        assert target.tasks() == before


@given(
    method=st.sampled_from(["GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"]),
    segments=st.lists(
        st.text(max_size=12) | st.sampled_from(["v1", "tasks", "message:send", "message:stream", "t1:cancel", "card"]),
        max_size=4,
    ),
    query=st.dictionaries(
        st.sampled_from(["pageSize", "pageToken", "status", "historyLength", "contextId", "A2A-Version", "x"]),
        st.text(max_size=12),
        max_size=3,
    ),
)
@FUZZ
def test_any_path_and_query_is_answered_or_refused_with_a_code_of_the_table(
    target: Target, method: str, segments: list[str], query: dict[str, str]
) -> None:
    path = "/" + "/".join(quote(segment, safe=":") for segment in segments)
    before = target.tasks()
    answer = target.request(method, BASE_URL + path, params=query)
    check_clean(answer)
    assert answer.status_code in {200, 405}.union(*(spelled.http_codes for spelled in OVER_REST.values()))
    assert target.tasks() == before


@pytest.mark.parametrize("method", ["SubscribeToTask", "tasks/resubscribe"])
@given(
    name=st.sampled_from(
        ["A2A-Version", "A2A-Extensions", "X-A2A-Extensions", "Last-Event-ID", "Content-Type", "Content-Length"]
    ),
    value=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40),
)
@FUZZ
def test_any_header_is_answered_or_refused_with_a_code_of_the_table(
    target: Target, method: str, name: str, value: str
) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"method":"%b","params":{"id":"none"}}' % method.encode()
    answer = target.request("POST", "/", content=body, headers={"content-type": "application/json", name: value})
    check_clean(answer)
    assert answer.status_code in (200, 413)
    # 0.3 refuses a stream in a stream.
    content = answer.content.removeprefix(b"data: ")
    assert msgspec.json.decode(content)["error"]["code"] in JSONRPC_CODES


@pytest.mark.parametrize("path", ["/", "/a2a", "/message:send", "/v1/message:send"])
def test_a_body_over_the_limit_is_refused_before_it_is_read(target: Target, path: str) -> None:
    answer = target.request("POST", path, content=b" " * (10 * 1024 * 1024 + 1))
    assert answer.status_code == 413
    document = msgspec.json.decode(answer.content)
    assert document.get("error", document)["code"] in {-32600, 413}
