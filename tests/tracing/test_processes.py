"""One trace over several processes: from a client to the tool of an agent, whatever lies between them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from errands import A2AClient, A2AServer, telemetry, tracing
from errands.testing import connect
from tests.forking import popen
from tests.live import live
from tests.tracing.clerk import Clerk, write_agent
from tests.tracing.collector import Collector
from tests.tracing.shop import Shop
from tests.waiting import until

pytestmark = pytest.mark.anyio

CALLED, ASKED, AT_WORK = "client: invoke_agent clerk", "server: SendMessage", "internal: invoke_agent clerk"
CHAT, FIND = "client: chat scripted", "internal: execute_tool find"


@pytest.fixture(autouse=True)
def tracing_client() -> Iterator[None]:
    """The clients of this process trace."""
    with telemetry.installed():
        yield


@pytest.fixture
def shop() -> Iterator[Shop]:
    shop = Shop()
    with live(shop.app) as shop.url:
        yield shop
        shop.release()


@asynccontextmanager
async def running(*processes: Clerk) -> AsyncIterator[None]:
    try:
        for process in processes:
            process.start()
        for process in processes:
            await process.ready()
        yield
    finally:
        for process in processes:
            process.kill()


def check_whole(collector: Collector, shop: Shop) -> None:
    """Checks that the tool was called in the trace of the client, and that everything is one tree."""
    collector.check_tree()
    find = collector.only(FIND)
    assert collector.path(find) == [CALLED, ASKED, AT_WORK, FIND]
    assert collector.below(collector.only(AT_WORK)) == [CHAT, FIND, CHAT]
    assert shop.traceparents[-1].startswith(f"00-{find.trace}-{find.id}-")


@pytest.mark.parametrize("protocol", ["jsonrpc", "http+json", "grpc"])
async def test_a_trace_leads_from_a_client_to_the_tool_of_an_agent(
    protocol: str, collector: Collector, shop: Shop
) -> None:
    write_agent(collector.folder, shop.url)
    clerk = Clerk(collector.folder, "clerk")
    async with running(clerk), A2AClient(clerk.url, protocol=protocol) as client:
        assert (await client.send("Where is it?")).text == "It is on its way."
        await collector.has(AT_WORK)
    check_whole(collector, shop)
    called = collector.only(CALLED)
    assert (called.attributes["errands.binding"], called.attributes["server.address"]) == (protocol, "127.0.0.1")


@pytest.mark.parametrize("protocol", ["jsonrpc", "http+json", "grpc"])
async def test_a_stream_belongs_to_one_span_from_its_first_event_to_its_last(
    protocol: str, collector: Collector, shop: Shop
) -> None:
    write_agent(collector.folder, shop.url)
    clerk = Clerk(collector.folder, "clerk")
    async with running(clerk), A2AClient(clerk.url, protocol=protocol) as client:
        events = [event async for event in client.stream("Where is it?")]
        assert events[-1].is_final
        await collector.has("server: SendStreamingMessage", AT_WORK)
    collector.check_tree()
    answered = collector.only("server: SendStreamingMessage")
    assert collector.path(collector.only(FIND)) == [CALLED, answered.label, AT_WORK, FIND]
    assert collector.only(CALLED).start <= answered.start < collector.only(FIND).end <= answered.end


async def test_a_trace_goes_through_the_queue_to_a_process_that_runs_turns(collector: Collector, shop: Shop) -> None:
    write_agent(collector.folder, shop.url)
    api, worker = Clerk(collector.folder, "api", "api"), Clerk(collector.folder, "worker", "worker")
    async with running(api, worker), A2AClient(api.url) as client:
        assert (await client.send("Where is it?")).completed
        await collector.has(AT_WORK)
    check_whole(collector, shop)
    [api_file], [worker_file] = collector.folder.glob("api-*.spans"), collector.folder.glob("worker-*.spans")
    assert (b'"name":"SendMessage"' in api_file.read_bytes(), FIND.encode() in api_file.read_bytes()) == (True, False)
    assert b'"name":"execute_tool find"' in worker_file.read_bytes()
    assert collector.only(AT_WORK).attributes["errands.queue.seconds"] > 0


@pytest.mark.parametrize("protocol", ["jsonrpc", "http+json", "grpc"])
async def test_no_process_records_anything_of_a_trace_that_its_client_has_left_out(
    protocol: str, collector: Collector, shop: Shop
) -> None:
    write_agent(collector.folder, shop.url)
    api, worker = Clerk(collector.folder, "api", "api"), Clerk(collector.folder, "worker", "worker")
    async with running(api, worker), A2AClient(api.url, protocol=protocol) as client:
        assert tracing.tracer is not None
        tracing.tracer.limit(1e-6)
        assert (await client.send("Where is it?")).completed
        await collector.has(AT_WORK)
        recorded = len(collector.spans)
        assert (await client.send("And the other one?")).completed
        events = [event async for event in client.stream("And the third?")]
    assert events[-1].is_final
    assert [int(parent[-2:], 16) & 1 for parent in shop.traceparents] == [1, 0, 0]
    assert len(collector.spans) == recorded
    collector.check_tree()


async def test_a_turn_that_goes_on_in_another_process_is_the_same_span(collector: Collector, shop: Shop) -> None:
    write_agent(collector.folder, shop.url)
    api = Clerk(collector.folder, "api", "api")
    first, second = Clerk(collector.folder, "first", "worker"), Clerk(collector.folder, "second", "worker")
    shop.hold()
    async with running(api, first), A2AClient(api.url) as client:
        sent = asyncio.create_task(client.send("Where is it?"))
        await until(shop.holding.is_set)
        first.kill()
        shop.release()
        async with running(second):
            assert (await sent).text == "It is on its way."
            await collector.has(AT_WORK)
    assert len(shop.traceparents) == 2
    assert len(set(shop.traceparents)) == 1
    check_whole(collector, shop)
    turn, find = collector.only(AT_WORK), collector.only(FIND)
    assert turn.attributes["errands.attempt"] == 2
    # The model was asked in the process that was killed, and its answer is in the log.
    [killed] = collector.folder.glob("first-*.spans")
    assert killed.read_bytes().count(b"\n") == 1
    asked = collector.named(CHAT)[0]
    assert turn.start <= asked.start <= find.start
    assert turn.end >= find.end


FRONT = """
kind: commonagents.info/v1beta2/agent
namespace: shop
name: front
description: Asks the clerk.
prompt: You are at the front.
model: scripted
close_after: 1
capabilities:
  far: {url: URL}
"""

FRONT_SCRIPT = {
    "agents": {
        "front": [
            {"when": {"called": ["far"]}, "say": "The clerk says it is on its way."},
            {"call": [{"function": "far", "arguments": {"message": "Where is it?"}}]},
        ],
    }
}


def write_front(folder: Path, clerk: str) -> None:
    folder.mkdir()
    (folder / "agent.yaml").write_text(FRONT.replace("URL", clerk), "utf-8")
    (folder / "scripted.json").write_bytes(msgspec.json.encode(FRONT_SCRIPT))


async def test_a_trace_that_starts_in_the_client_of_one_agent_ends_in_the_tool_of_another(
    collector: Collector, shop: Shop, tmp_path: Path
) -> None:
    write_agent(collector.folder, shop.url)
    clerk = Clerk(collector.folder, "clerk")
    async with running(clerk):
        front = tmp_path / "front"
        write_front(front, clerk.url)
        server = A2AServer.from_manifest(
            front, model="scripted", storage="memory", otel=True, outbound_allow="127.0.0.1"
        )
        async with connect(server) as client:
            assert (await client.send("Where is my order?")).text == "The clerk says it is on its way."
        await collector.has(AT_WORK, *["server: SubscribeToTask"] * len(collector.named("client: SubscribeToTask")))
    collector.check_tree()
    find = collector.only(FIND)
    assert collector.path(find) == [
        "client: invoke_agent front",
        "server: SendMessage",
        "internal: invoke_agent front",
        "internal: execute_tool far",
        CALLED,
        ASKED,
        AT_WORK,
        FIND,
    ]
    [traceparent] = shop.traceparents
    assert traceparent.startswith(f"00-{find.trace}-{find.id}-")


async def test_what_another_agent_does_stays_in_the_tree_when_the_process_that_asked_it_is_killed(
    collector: Collector, shop: Shop, tmp_path: Path
) -> None:
    behind, before = tmp_path / "clerk", tmp_path / "front"
    behind.mkdir()
    write_agent(behind, shop.url)
    clerk = Clerk(behind, "clerk")
    write_front(before, clerk.url)
    front = Clerk(before, "api", "api")
    first, second = Clerk(before, "first", "worker"), Clerk(before, "second", "worker")
    shop.hold()
    async with running(clerk, front, first), A2AClient(front.url) as client:
        sent = asyncio.create_task(client.send("Where is my order?"))
        await until(shop.holding.is_set)
        # The model of front was asked and the clerk has begun, in spans below one that is still open.
        await collector.has("client: chat scripted", "client: chat scripted", CALLED)
        first.kill()
        shop.release()
        async with running(second):
            assert (await sent).text == "The clerk says it is on its way."
            await collector.has("internal: invoke_agent front", AT_WORK)
            followed = len(collector.named("client: SubscribeToTask"))
            await collector.has(*["server: SubscribeToTask"] * followed)
    # The killed process was waiting for the clerk's answer, in a request that was never recorded.
    ids = {span.id for span in collector.spans}
    waits = [span for span in collector.spans if span.parent and span.parent not in ids]
    assert {span.label for span in waits} <= {"server: SubscribeToTask", "server: GetTask"}
    collector.own, collector.folder = [span for span in collector.spans if span not in waits], before / "none"
    collector.check_tree()
    find = collector.only(FIND)
    assert collector.path(find)[2:5] == ["internal: invoke_agent front", "internal: execute_tool far", CALLED]
    assert collector.only("internal: invoke_agent front").attributes["errands.attempt"] == 2


async def test_a_command_that_talks_to_an_agent_begins_a_trace(collector: Collector, shop: Shop) -> None:
    write_agent(collector.folder, shop.url)
    clerk = Clerk(collector.folder, "clerk")
    async with running(clerk):
        command = ("tests.tracing.command", str(collector.folder), "send", clerk.url, "Where is it?")
        process = popen(*command, env={**os.environ, "ERRANDS_OTEL": "true"}, piped=True)
        stdout, stderr = await asyncio.to_thread(process.communicate)
        assert (stdout.strip(), stderr.partition(",")[0]) == ("It is on its way.", "completed")
        await collector.has(AT_WORK, "server: SendStreamingMessage")
    collector.check_tree()
    assert collector.path(collector.only(FIND)) == [CALLED, "server: SendStreamingMessage", AT_WORK, FIND]
