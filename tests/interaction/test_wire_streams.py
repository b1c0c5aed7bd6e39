"""On the wire: a stream is server-sent events, which can be gone on with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from errands import Settings
from errands.engines.base import Retention
from errands.engines.memory import MemoryEngine
from errands.testing import serve
from tests.interaction.agents import Asks, Echo, Gated, card
from tests.interaction.wire import call, http, message, rpc

pytestmark = pytest.mark.anyio


async def test_a_stream_is_server_sent_events_with_the_version_as_id(binding: str) -> None:
    worker = Gated()
    worker.gate.set()
    async with http(serve(worker)) as client:
        path = "/" if binding == "jsonrpc" else "/message:stream"
        body: Any = {"message": message()}
        answer = await client.post(path, json=rpc("SendStreamingMessage", body, 7) if path == "/" else body)
        assert answer.headers["content-type"].startswith("text/event-stream")
        frames = answer.text.strip().split("\n\n")
        assert [frame.split("\n")[0] for frame in frames] == [f"id: {n}" for n in range(1, 6)]
        start = 'data: {"jsonrpc":"2.0","id":7,"result":{"task":' if binding == "jsonrpc" else 'data: {"task":'
        assert frames[0].split("\n")[1].startswith(start)


@pytest.mark.parametrize(
    ("method", "content_type"), [("tasks/resubscribe", "text/event-stream"), ("SubscribeToTask", "application/json")]
)
async def test_a_stream_is_refused_as_the_clients_of_its_version_expect_it(method: str, content_type: str) -> None:
    async with http(serve(Echo(), agent_card=card())) as client:
        answer = await client.post("/", json=rpc(method, {"id": "no-such-task"}, "7"))
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(content_type)
    document = json.loads(answer.text.removeprefix("data: "))
    assert (document["id"], document["error"]["code"]) == ("7", -32001)


async def test_a_quiet_stream_is_kept_alive_with_comments() -> None:
    worker = Gated()
    settings = Settings(storage="memory", keep_alive=0.01)
    async with (
        http(serve(worker, settings=settings)) as client,
        client.stream("POST", "/message:stream", json={"message": message()}) as answer,
    ):
        async for line in answer.aiter_lines():
            if line == ": keep-alive":
                worker.gate.set()
                break
        else:
            pytest.fail("no comment came")


async def test_events_that_are_no_longer_kept_are_told_as_a_gap_with_the_task_as_it_is() -> None:
    worker = Gated()
    worker.gate.set()
    engine = MemoryEngine(retention=Retention(events_per_task=2))
    async with http(serve(worker, storage=engine)) as client:
        task = (await client.post("/message:send", json={"message": message()})).json()["task"]
        answer = await client.post(f"/tasks/{task['id']}:subscribe", headers={"Last-Event-ID": "1"})
        assert answer.text.startswith('event: gap\nid: 5\ndata: {"task":')
        assert "TASK_STATE_COMPLETED" in answer.text


async def test_a_last_event_id_that_is_none_is_refused(binding: str) -> None:
    async with http(serve(Asks())) as client:
        task = (await client.post("/message:send", json={"message": message()})).json()["task"]
        reason, _ = await call(client, "SubscribeToTask", {"id": task["id"]}, binding, **{"Last-Event-ID": "x"})
        assert reason == "INVALID_PARAMS"
