"""Bad input of any kind gets a specified error and changes nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from errands import A2AServer, TaskContext, Worker
from errands.model.log import ListQuery
from errands.operations import OPERATIONS
from errands.testing import BASE_URL, http_client, serve
from errands.wire.status import STATUS

JSONRPC_CODES = {status.jsonrpc for status in STATUS.values()} - {STATUS["INTERNAL"].jsonrpc}
HTTP_CODES = {status.http for status in STATUS.values()} - {500} | {405}
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))

MESSAGE = {
    "messageId": "m1",
    "role": "ROLE_USER",
    "parts": [{"text": "hi"}, {"data": {"a": 1}}, {"raw": "aGk=", "mediaType": "text/plain", "filename": "f"}],
    "contextId": "c1",
    "taskId": "no-such-task",
    "metadata": {"k": "v"},
    "extensions": ["x"],
    "referenceTaskIds": ["t"],
}
REQUEST = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "SendMessage",
    "params": {
        "tenant": "",
        "message": MESSAGE,
        "configuration": {"historyLength": 1, "returnImmediately": True, "acceptedOutputModes": ["text/plain"]},
        "metadata": {"k": "v"},
    },
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield prefix
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield from paths(inner, (*prefix, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any, *, drop: bool) -> Any:
    if not path:
        return new
    key, *rest = path
    copy = dict(value) if isinstance(value, dict) else list(value)
    if drop and not rest:
        del copy[key]
    else:
        copy[key] = replaced(value[key], tuple(rest), new, drop=drop)
    return copy


mutations = st.builds(
    lambda path, new, drop: json.dumps(replaced(REQUEST, path, new, drop=drop)).encode(),
    st.sampled_from(list(paths(REQUEST))),
    json_values,
    st.booleans(),
)
truncations = st.integers(0, len(json.dumps(REQUEST)) - 1).map(lambda end: json.dumps(REQUEST).encode()[:end])
depths = st.integers(1, 200_000)
deep = st.one_of(
    depths.map(lambda depth: b"[" * depth),
    depths.map(lambda depth: b'{"params":' * depth),
    st.integers(1, 2000).map(
        lambda depth: json.dumps(REQUEST).encode().replace(b'{"a": 1}', b"[" * depth + b"1" + b"]" * depth)
    ),
)
bodies = st.binary(max_size=200) | mutations | truncations | deep | json_values.map(lambda v: json.dumps(v).encode())


class Quiet(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete("done")


class Target:
    """A server in this process that is driven from synchronous tests."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.server: A2AServer = serve(Quiet())
        self.runner.run(self.server.start())
        self.client = http_client(self.server)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.runner.run(self.client.request(method, path, **options))

    def count(self) -> int:
        page = self.runner.run(self.server.engine.list(ListQuery(scope=self.server.scope())))
        return page.total_size

    def close(self) -> None:
        self.runner.run(self.client.aclose())
        self.runner.run(self.server.stop())
        self.runner.close()


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    target = Target()
    yield target
    target.close()


def check_clean(answer: httpx.Response) -> None:
    assert "Traceback" not in answer.text
    assert 'File "' not in answer.text


@given(body=bodies)
@FUZZ
def test_any_body_over_jsonrpc_is_answered_or_refused_with_a_code_of_the_table(target: Target, body: bytes) -> None:
    before = target.count()
    answer = target.request("POST", "/", content=body, headers={"content-type": "application/json"})
    check_clean(answer)
    if answer.headers["content-type"].startswith("text/event-stream"):
        return
    document = msgspec.json.decode(answer.content)
    assert document["jsonrpc"] == "2.0"
    if "error" in document:
        assert document["error"]["code"] in JSONRPC_CODES
        assert document["error"]["message"]
        assert target.count() == before


@given(body=bodies, operation=st.sampled_from([o for o in OPERATIONS.values() if o.http_method == "POST"]))
@FUZZ
def test_any_body_over_http_json_is_answered_or_refused_with_a_code_of_the_table(
    target: Target, body: bytes, operation: Any
) -> None:
    before = target.count()
    path = operation.path.replace("{id}", "t1").replace("{task_id}", "t1")
    answer = target.request("POST", path, content=body, headers={"content-type": "application/a2a+json"})
    check_clean(answer)
    if answer.status_code != 200:
        assert answer.status_code in HTTP_CODES
        error = msgspec.json.decode(answer.content)["error"]
        assert error["code"] == answer.status_code
        assert error["message"]
        assert error["details"]
        assert target.count() == before


@given(
    method=st.sampled_from(["GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"]),
    segments=st.lists(st.text(max_size=12) | st.sampled_from(["tasks", "message:send", "t1:cancel"]), max_size=4),
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
    answer = target.request(method, BASE_URL + path, params=query)
    check_clean(answer)
    assert answer.status_code in HTTP_CODES | {200}


@given(
    name=st.sampled_from(["A2A-Version", "A2A-Extensions", "Last-Event-ID", "Content-Type", "Content-Length"]),
    value=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40),
)
@FUZZ
def test_any_header_is_answered_or_refused_with_a_code_of_the_table(target: Target, name: str, value: str) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"method":"SubscribeToTask","params":{"id":"none"}}'
    answer = target.request("POST", "/", content=body, headers={"content-type": "application/json", name: value})
    check_clean(answer)
    assert answer.status_code in (200, 413)
    assert msgspec.json.decode(answer.content)["error"]["code"] in JSONRPC_CODES


def test_a_body_over_the_limit_is_refused_before_it_is_read(target: Target) -> None:
    answer = target.request("POST", "/", content=b" " * (10 * 1024 * 1024 + 1))
    assert answer.status_code == 413
    assert msgspec.json.decode(answer.content)["error"]["code"] == -32600
