"""On the wire: a stream is server-sent events, which can be gone on with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from errands import Settings
from errands.engines.base import Retention
from errands.engines.memory import MemoryEngine
from errands.testing import serve
from tests.interaction.agents import Asks, Echo, Gated, Patient, card
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
        lines = []
        async for line in answer.aiter_lines():
            lines.append(line)
            if line == ": keep-alive":
                worker.gate.set()
    assert ": keep-alive" in lines
    # An empty line after a comment is an event without data to the client of a2a-sdk 0.3.
    assert {before.partition(":")[0] for before, line in pairwise(lines) if not line} == {"data"}


def strings_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings_in(item)


@pytest.mark.parametrize("path", ["/", "/message:stream", "/a2a"])
async def test_no_character_of_a_text_breaks_a_line(path: str) -> None:
    text = "".join(map(chr, range(1, 0x2100))) + "\U0001f600"
    method = "message/stream" if path == "/a2a" else "SendStreamingMessage"
    async with http(serve(Echo())) as client:
        body: Any = {"message": message(text)}
        answer = await client.post(path, json=body if path == "/message:stream" else rpc(method, body))
    # As Python splits lines, and with it the client of a2a-sdk 1.x: not only at those that events are made of.
    lines = [line.partition(": ") for line in answer.text.splitlines() if line]
    assert {name for name, _, _ in lines} <= {"id", "event", "data"}
    assert f"Echo: {text}" in {
        found for name, _, data in lines if name == "data" for found in strings_in(json.loads(data))
    }


async def test_a_stream_that_the_server_ends_says_that_the_task_goes_on(binding: str) -> None:
    worker = Patient()
    server = serve(worker, settings=Settings(storage="memory", drain_timeout=0.01))
    async with http(server) as client:
        body: Any = {"message": message()}
        request = ("/", rpc("SendStreamingMessage", body)) if binding == "jsonrpc" else ("/message:stream", body)
        streaming = asyncio.create_task(client.post(request[0], json=request[1]))
        await worker.started.wait()
        server.engine.disconnect()
        *_, last = (await streaming).text.strip().split("\n\n")
    name, data = last.split("\n")
    error = json.loads(data.removeprefix("data: "))["error"]
    assert name == "event: error"
    assert error["data" if binding == "jsonrpc" else "details"][0]["reason"] == "UNAVAILABLE"


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
