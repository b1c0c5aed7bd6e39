"""The spans of one process: what they are called, what they say, and what they never say."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from errands import TaskContext, Worker, telemetry, tracing
from errands.agents.tools.python import tool
from errands.errors import TaskNotFoundError
from errands.model.core import TERMINAL_STATES
from errands.runtime.json_lines import JsonLine
from errands.testing import connect, http_client, serve
from errands.tracing import TraceContext, read_context
from tests.agents.rig import ADDING, AGENT, TOOL, at_work, call, say
from tests.interaction.wire import rpc
from tests.live import live
from tests.push.receiver import Receiver
from tests.tracing.collector import Collector
from tests.tracing.shop import Shop
from tests.unit.delegation.support import Answers, family
from tests.unit.support import Gate
from tests.waiting import until

pytestmark = pytest.mark.anyio

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
TURN = "internal: invoke_agent Test agent"
OTEL: dict[str, Any] = {"otel": True}


class Echo(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete(f"Echo: {ctx.user_text}")


class Does(Worker):
    """A worker of one function."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def handle(self, ctx: TaskContext) -> None:
        await self._handle(ctx)


def message(text: str = "hi", **fields: Any) -> dict[str, Any]:
    content = {"messageId": f"m-{text}", "role": "ROLE_USER", "parts": [{"text": text}], **fields}
    return rpc("SendMessage", {"message": content})


# Headers


@pytest.mark.parametrize(
    ("parent", "states", "found"),
    [
        (PARENT, [], TraceContext(PARENT)),
        (
            PARENT,
            ["congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"],
            TraceContext(PARENT, "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"),
        ),
        (PARENT, ["congo=1 , ", "tenant@rojo=2"], TraceContext(PARENT, "congo=1,tenant@rojo=2")),
        # A later version may say more, which is not passed on.
        (f"01-{TRACE}-{SPAN}-01-more", [], TraceContext(f"01-{TRACE}-{SPAN}-01")),
        (f"{PARENT}-more", [], None),
        (f"01-{TRACE}-{SPAN}-01more", [], None),
        (f"ff-{TRACE}-{SPAN}-01", [], None),
        (f"00-{'0' * 32}-{SPAN}-01", [], None),
        (f"00-{TRACE}-{'0' * 16}-01", [], None),
        (PARENT.upper(), [], None),
        (f"{PARENT}, {PARENT}", [], None),
        (f"{PARENT}\n", [], None),
        ("", ["congo=1"], None),
        ("x" * 100_000, [], None),
        (PARENT, ["congo=" + "x" * 600], TraceContext(PARENT)),
        (PARENT, [",".join(f"k{number}=1" for number in range(33))], TraceContext(PARENT)),
        (PARENT, ["congo"], TraceContext(PARENT)),
        (PARENT, ["congo=a=b"], TraceContext(PARENT)),
        (PARENT, ["congo=\r\nSet-Cookie: x"], TraceContext(PARENT)),
        (PARENT, ["congo=grüße"], TraceContext(PARENT)),
    ],
)
def test_a_place_in_a_trace_is_read_from_headers_that_anyone_may_have_written(
    parent: str, states: list[str], found: TraceContext | None
) -> None:
    assert read_context(parent, states) == found


async def test_a_trace_of_a_client_goes_on_in_the_server_and_its_turn(collector: Collector) -> None:
    headers = {"traceparent": PARENT, "tracestate": "congo=1"}
    server = serve(Echo(), storage="memory", otel=True)
    async with server, http_client(server) as client:
        await client.post("/", json=message(), headers=headers)
        await collector.has(TURN)
    asked, turn = collector.only("server: SendMessage"), collector.only(TURN)
    assert (asked.trace, asked.parent, turn.trace, turn.parent) == (TRACE, SPAN, TRACE, asked.id)


async def test_a_malformed_trace_is_ignored(collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    server = serve(Echo(), storage="memory", otel=True)
    async with server, http_client(server) as client:
        for headers in ({"traceparent": "00-nothing"}, {"traceparent": PARENT, "tracestate": "no member" * 50}):
            answer = await client.post("/", json=message(str(headers)[-20:]), headers=headers)
            assert answer.json()["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        await collector.has(TURN, TURN)
    first, second = collector.named("server: SendMessage")
    assert (first.parent, second.parent) == ("", SPAN)
    assert "tracestate" not in caplog.text
    assert "no member" not in caplog.text


async def test_a_request_that_a_framework_has_traced_belongs_to_its_span(collector: Collector) -> None:
    framework = NonRecordingSpan(SpanContext(int(TRACE, 16), 0x1234, False, TraceFlags(1)))
    server = serve(Echo(), storage="memory", otel=True)
    async with server, http_client(server) as client:
        with trace.use_span(framework):
            # That span is below the client's, and so of its trace.
            await client.post("/", json=message("one"), headers={"traceparent": PARENT})
            await client.post("/", json=message("two"))
            other = f"00-{'a' * 32}-{SPAN}-01"
            await client.post("/", json=message("three"), headers={"traceparent": other})
    parents = [(span.trace, span.parent) for span in collector.named("server: SendMessage")]
    assert parents == [(TRACE, f"{0x1234:016x}"), (TRACE, f"{0x1234:016x}"), ("a" * 32, SPAN)]


# Off


async def test_without_tracing_nothing_is_sent_stored_or_recorded(collector: Collector) -> None:
    assert tracing.tracer is None
    seen: list[str | None] = []

    class Headers(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            seen.append(str(tracing.current_ids()))
            await ctx.complete("done")

    server = serve(Headers(), storage="memory")
    async with server, http_client(server) as client:
        sent = await client.post("/", json=message(), headers={"traceparent": PARENT})
        task_id = sent.json()["result"]["task"]["id"]
        events = (await server.engine.read(task_id, server.scope(), 0)).events
    assert [event.kind for event in events if event.kind == "request"] == []
    assert seen == ["None"]
    assert collector.spans == []


async def test_tracing_is_off_when_the_last_server_has_stopped() -> None:
    async with serve(Echo(), storage="memory", otel=True):
        async with serve(Echo(), storage="memory", otel=True):
            assert tracing.tracer is not None
        assert tracing.tracer is not None
    assert tracing.tracer is None


WITHOUT = """
import sys

sys.modules["opentelemetry"] = None
from errands import ConfigurationError, agent
from errands.testing import serve

@agent
async def echo(text: str) -> str:
    return text

serve(echo, storage="memory")
try:
    serve(echo, storage="memory", otel=True)
except ConfigurationError as error:
    print(error)
"""


def test_a_server_without_the_package_says_which_extra_it_needs() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert re.fullmatch(r"otel needs an extra \(.*opentelemetry.*\): pip install 'errands\[otel\]'\n", done.stdout), (
        done
    )


NO_SDK = """
import asyncio, logging
from errands import agent
from errands.testing import connect, serve

logging.basicConfig(format="%(message)s")

@agent
async def echo(text: str) -> str:
    return text

async def main() -> None:
    async with connect(serve(echo, storage="memory", otel=True)) as client:
        print((await client.send("hi")).text)

asyncio.run(main())
"""


def test_a_server_without_an_sdk_works_and_says_that_nothing_is_recorded() -> None:
    done = subprocess.run([sys.executable, "-c", NO_SDK], capture_output=True, text=True)
    assert (done.stdout, done.stderr.count("nothing records the spans")) == ("hi\n", 1), done


# Turns


async def test_what_a_handler_does_belongs_to_its_turn(collector: Collector) -> None:
    ids: list[tuple[str, str] | None] = []
    lines: list[str] = []

    def block(ctx: Any) -> None:
        ids.append(tracing.current_ids())
        ctx.complete("done")

    class Blocking(Worker):
        def handle(self, ctx: Any) -> None:  # type: ignore[override]
            block(ctx)

    async def handle(ctx: TaskContext) -> None:
        ids.append(tracing.current_ids())
        lines.append(JsonLine().format(logging.makeLogRecord({"msg": "hello"})))
        await ctx.complete("done")

    for worker in (Blocking(), Does(handle)):
        async with connect(serve(worker, storage="memory", otel=True)) as client:
            await client.send("hi")
    await collector.has(TURN, TURN)
    assert ids == [(turn.trace, turn.id) for turn in collector.named(TURN)]
    assert json.loads(lines[0])["trace"] == collector.named(TURN)[1].trace


async def test_a_turn_that_fails_is_an_error_without_words(collector: Collector) -> None:
    async def handle(ctx: TaskContext) -> None:
        raise ValueError("the number 4711")

    async with connect(serve(Does(handle), storage="memory", otel=True)) as client:
        assert (await client.send("what is 4711?")).failed
        with pytest.raises(TaskNotFoundError):
            await client.get_task("4711-0815")
    await collector.has(TURN, "client: GetTask")
    turn = collector.only(TURN)
    assert (turn.status, turn.attributes["error.type"], turn.events) == ("ERROR", "ValueError", [])
    assert turn.attributes["errands.task.state"] == "failed"
    missed, asked = collector.only("server: GetTask"), collector.only("client: GetTask")
    # The server is all right.
    assert (missed.status, missed.attributes["error.type"]) == ("UNSET", "TASK_NOT_FOUND")
    assert (asked.status, asked.attributes["error.type"]) == ("ERROR", "TASK_NOT_FOUND")
    for span in collector.spans:
        assert "the number" not in str(span) + str(span.attributes)
        assert "what is" not in str(span.attributes)


async def test_a_message_that_waits_for_a_turn_has_its_own_trace(collector: Collector) -> None:
    gate = Gate()

    async def handle(ctx: TaskContext) -> None:
        await gate()
        await ctx.complete(f"done: {ctx.user_text}")

    server = serve(Does(handle), storage="memory", otel=True)
    async with server, http_client(server) as client:
        first = asyncio.create_task(client.post("/", json=message("one"), headers={"traceparent": PARENT}))
        await gate.reached.wait()
        [task] = await server.tasks.list()
        other = f"00-{'b' * 32}-{SPAN}-01"
        second = asyncio.create_task(
            client.post("/", json=message("two", taskId=task.id), headers={"traceparent": other})
        )
        await until(lambda: server.pool.running[task.id].turn is not None)
        while (await server.engine.load(task.id, server.scope())).head.unread < 2:
            await asyncio.sleep(0)
        gate.open()
        await asyncio.gather(first, second)
        await collector.has(TURN, TURN)
    turns = collector.named(TURN)
    assert [turn.trace for turn in turns] == [TRACE, "b" * 32]
    assert [turn.attributes["errands.task.id"] for turn in turns] == [task.id, task.id]
    assert turns[0].id != turns[1].id


async def test_a_turn_of_a_server_that_stops_is_recorded_by_the_one_that_goes_on(
    collector: Collector, tmp_path: Path
) -> None:
    held, begun = asyncio.Event(), asyncio.Event()

    async def handle(ctx: TaskContext) -> None:
        begun.set()
        await held.wait()
        await ctx.complete("done")

    options: dict[str, Any] = {"storage": f"sqlite:///{tmp_path / 'tasks.db'}", "otel": True, "drain_timeout": 0}
    async with connect(serve(Does(handle), **options)) as client:
        task = await client.send("hi", blocking=False)
        await begun.wait()
    assert collector.named(TURN) == []
    held.set()
    server = serve(Does(handle), **options)
    async with server:
        await server.engine.wait_for_state(task.task_id, server.scope(), TERMINAL_STATES, None)
        await collector.has(TURN)
    collector.check_tree()
    assert collector.only(TURN).attributes["errands.attempt"] == 2


# Agents, models and tools


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(telemetry.CAPTURE, "true")


ADD, CHAT = "internal: execute_tool adder", "client: chat model"


async def test_a_question_to_a_model_says_its_model_and_tokens_and_no_words(
    collector: Collector, tmp_path: Path
) -> None:
    replies = (
        call(("adder", {"a": 40, "b": 2}), prompt_tokens=11, completion_tokens=7),
        say("It is forty-two.", prompt_tokens=20, completion_tokens=5),
    )
    async with at_work(tmp_path, ADDING, *replies, server=OTEL) as desk:
        await desk.say("What is forty and two?")
        await collector.has("internal: invoke_agent clerk")
    collector.check_tree()
    asked, answered = collector.named(CHAT)
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "test",
        "gen_ai.request.model": "model",
        "gen_ai.response.model": "model",
        "gen_ai.usage.input_tokens": 11,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.response.finish_reasons": ["tool_call"],
        "gen_ai.agent.name": "clerk",
    }
    assert {name: _plain(asked.attributes.get(name)) for name in expected} == expected
    assert _plain(answered.attributes["gen_ai.response.finish_reasons"]) == ["stop"]
    used = collector.only(ADD)
    assert used.attributes["gen_ai.operation.name"] == "execute_tool"
    assert used.attributes["gen_ai.tool.call.id"]
    assert [asked.attributes["gen_ai.conversation.id"]] == list(
        {span.attributes["gen_ai.conversation.id"] for span in collector.named(CHAT)}
    )
    everything = str([span.attributes for span in collector.spans])
    assert not [word for word in ("forty", "You are a clerk", "sum") if word in everything]


@pytest.mark.usefixtures("captured")
async def test_what_was_said_is_recorded_if_that_is_allowed(collector: Collector, tmp_path: Path) -> None:
    replies = (call(("adder", {"a": 40, "b": 2})), "It is forty-two.")
    async with at_work(tmp_path, ADDING, *replies, server=OTEL) as desk:
        await desk.say("What is forty and two?")
        await collector.has("internal: invoke_agent clerk")
    _, answered = collector.named(CHAT)
    assert json.loads(answered.attributes["gen_ai.system_instructions"]) == [
        {"type": "text", "content": "You are a clerk."}
    ]
    user, assistant, result = json.loads(answered.attributes["gen_ai.input.messages"])
    assert user == {"role": "user", "parts": [{"type": "text", "content": "What is forty and two?"}]}
    [called] = assistant["parts"]
    assert (called["type"], called["name"], called["arguments"]) == ("tool_call", "adder", {"a": 40, "b": 2})
    assert result["parts"] == [{"type": "tool_call_response", "id": called["id"], "response": {"sum": 42}}]
    [output] = json.loads(answered.attributes["gen_ai.output.messages"])
    assert output == {
        "role": "assistant",
        "parts": [{"type": "text", "content": "It is forty-two."}],
        "finish_reason": "stop",
    }
    [definition] = json.loads(answered.attributes["gen_ai.tool.definitions"])
    assert definition["function"]["name"] == "adder"
    used = collector.only(ADD)
    assert json.loads(used.attributes["gen_ai.tool.call.arguments"]) == {"a": 40, "b": 2}
    assert json.loads(used.attributes["gen_ai.tool.call.result"]) == {"sum": 42}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


async def test_a_python_tool_works_in_the_span_of_its_call(collector: Collector, tmp_path: Path) -> None:
    ids: list[tuple[str, str] | None] = []

    @tool
    async def here() -> str:
        "Says nothing."
        ids.append(tracing.current_ids())
        return ""

    @tool
    def there() -> str:
        "Says nothing, in a thread."
        ids.append(tracing.current_ids())
        return ""

    text = AGENT + "capabilities: {here: '*', there: '*'}\n"
    replies = (call(("here", {})), call(("there", {})), "Done.")
    async with at_work(tmp_path, text, *replies, tools=[here, there], server=OTEL) as desk:
        await desk.say("Go")
        await collector.has("internal: invoke_agent clerk")
    collector.check_tree()
    spans = [collector.only(f"internal: execute_tool {name}") for name in ("here", "there")]
    assert ids == [(span.trace, span.id) for span in spans]


@pytest.fixture
def shop() -> Iterator[Shop]:
    shop = Shop()
    with live(shop.app) as shop.url:
        yield shop


async def test_a_tool_over_http_is_sent_the_trace(collector: Collector, tmp_path: Path, shop: Shop) -> None:
    actions = [
        {
            "name": name,
            "description": "Finds.",
            "execute": {"stateless_http": {"method": "GET", "url": shop.url, **more}},
        }
        for name, more in (("plain", {}), ("own", {"headers": {"traceparent": "mine"}}))
    ]
    tool_text = f"{TOOL}name: find\ndescription: Finds.\nactions: {json.dumps(actions)}\n"
    text = f"{AGENT}capabilities: {{find: '*'}}\n{tool_text}"
    replies = (call(("find_plain", {})), call(("find_own", {})), "Done.")
    headers = {"traceparent": PARENT, "tracestate": "congo=1"}
    async with at_work(tmp_path, text, *replies, server=OTEL) as desk:
        async with http_client(desk.server) as client:
            await client.post("/", json=message("Go"), headers=headers)
        await collector.has("internal: invoke_agent clerk")
    find = collector.only("internal: execute_tool find_plain")
    assert (find.trace, shop.traceparents[0][:52], shop.tracestates[0]) == (TRACE, f"00-{TRACE}-{find.id}", "congo=1")
    # What the manifest says is sent.
    assert shop.traceparents[1] == "mine"


async def test_a_tool_of_an_mcp_server_is_sent_the_trace(collector: Collector, tmp_path: Path) -> None:
    mcp = {"transport": "stdio", "command": sys.executable, "args": [str(Path(__file__).with_name("mcp_server.py"))]}
    text = f"{AGENT}capabilities: {{places: '*'}}\n{TOOL}name: places\ndescription: Places.\nmcp: {json.dumps(mcp)}\n"
    async with at_work(tmp_path, text, call(("places_place", {})), "Done.", server=OTEL) as desk:
        await desk.say("Go")
        await collector.has("internal: invoke_agent clerk")
        [result] = desk.model.results()
    used = collector.only("internal: execute_tool places_place")
    # The package for MCP has a span of its own for the request.
    [asked] = [span for span in collector.spans if span.parent == used.id and "tools/call" in span.name]
    assert result["result"] == f"{used.trace} {asked.id}"


async def test_an_error_of_a_tool_is_an_error_of_its_call_alone(collector: Collector, tmp_path: Path) -> None:
    replies = (call(("adder", {"a": 2**63 - 1, "b": 2**63 - 1})), "I cannot add that.")
    async with at_work(tmp_path, ADDING, *replies, server=OTEL) as desk:
        await desk.say("Add")
        await collector.has("internal: invoke_agent clerk")
    used, turn = collector.only(ADD), collector.only("internal: invoke_agent clerk")
    assert (used.status, used.attributes["error.type"], turn.status) == ("ERROR", "ToolError", "UNSET")


async def test_an_agent_of_the_same_server_goes_on_in_the_trace(collector: Collector) -> None:
    async with connect(family(Answers(), storage="memory", otel=True)) as client:
        await client.send("hello")
        await collector.has("internal: invoke_agent Parent")
    collector.check_tree()
    child = collector.only("internal: invoke_agent child")
    assert collector.path(child) == [
        "client: invoke_agent Parent",
        "server: SendMessage",
        "internal: invoke_agent Parent",
        "internal: invoke_agent child",
    ]


# Webhooks


async def test_a_notification_belongs_to_the_trace_of_the_message_that_caused_it(collector: Collector) -> None:
    async def handle(ctx: TaskContext) -> None:
        if ctx.user_text == "one":
            await ctx.request_input("And?")
        else:
            await ctx.complete("done")

    server = serve(Does(handle), storage="memory", otel=True, push_allow="127.0.0.1", poll_interval=0.02)
    async with Receiver().up() as receiver, server, http_client(server) as client:
        body = message("one")
        body["params"]["configuration"] = {"taskPushNotificationConfig": {"url": receiver.url}}
        sent = await client.post("/", json=body, headers={"traceparent": PARENT, "tracestate": "congo=1"})
        task_id = sent.json()["result"]["task"]["id"]
        await until(lambda: "input_required" in receiver.states())
        other = f"00-{'b' * 32}-{SPAN}-01"
        await client.post("/", json=message("two", taskId=task_id), headers={"traceparent": other})
        await until(lambda: "completed" in receiver.states())
        first, *_, last = receiver.received
    assert (first.headers["traceparent"][3:35], first.headers["tracestate"]) == (TRACE, "congo=1")
    assert last.headers["traceparent"][3:35] == "b" * 32
    await collector.has(*["client: push"] * len(receiver.received))
    deliveries = {span.id: span for span in collector.named("client: push")}
    assert {one.headers["traceparent"][36:52] for one in receiver.received} == set(deliveries)
    attributes = deliveries[first.headers["traceparent"][36:52]].attributes
    assert (attributes["server.address"], attributes["errands.task.id"]) == ("127.0.0.1", task_id)
    [asked, _] = collector.named("server: SendMessage")
    assert {span.parent for span in deliveries.values() if span.trace == TRACE} == {asked.id}


async def test_a_notification_that_fails_is_an_error_of_its_delivery(collector: Collector) -> None:
    async with Receiver().up() as receiver:
        receiver.status = 410
        async with connect(
            serve(Echo(), storage="memory", otel=True, push_allow="127.0.0.1", poll_interval=0.02)
        ) as client:
            await client.send("hi", push_url=receiver.url)
            await collector.has("client: push")
    failed = collector.named("client: push")[0]
    assert (failed.status, failed.attributes["error.type"]) == ("ERROR", "DeliveryError")


REVIEWED = (
    AGENT
    + """
capabilities: {adder: "*"}
"""
    + TOOL
    + """
name: adder
description: Adds numbers.
actions:
  - name: add
    description: Adds two numbers.
    execute: {cel: {expression: "review('boss@example.com') ? 42 : 0"}}
"""
)


async def test_a_call_that_waits_for_a_review_is_one_span(collector: Collector, tmp_path: Path) -> None:
    async with at_work(tmp_path, REVIEWED, call(("adder", {})), "Done.", server=OTEL) as desk:
        await desk.say("Add")
        assert await desk.settled() == "boss@example.com"
        assert [span.label for span in collector.spans if span.label == ADD] == []
        assert await desk.answer(True) == "input-required"
        await collector.has(*["internal: invoke_agent clerk"] * 2)
    collector.check_tree()
    used = collector.only(ADD)
    first, second = collector.named("internal: invoke_agent clerk")
    assert (first.id != second.id, used.parent) == (True, second.id)
    assert used.start < second.start < used.end


class Plain:
    """A tracer provider that is not the SDK's: its tracers choose the ids of spans by themselves."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider

    def get_tracer(self, *names: Any, **options: Any) -> Any:
        tracer = self._provider.get_tracer("plain")

        class Tracer:
            start_span = staticmethod(tracer.start_span)

        return Tracer()


async def test_another_implementation_of_the_api_has_a_span_for_each_attempt(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: Plain(provider))
    async with connect(serve(Echo(), storage="memory", otel=True)) as client:
        assert (await client.send("hi")).completed
        await collector.has(TURN)
    collector.check_tree()


class Broken(SpanProcessor):
    """Raises where `place` says."""

    place = ""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self.place == "start":
            raise RuntimeError("no span today")

    def on_end(self, span: Any) -> None:
        if self.place == "end":
            raise RuntimeError("no span today")


async def test_a_part_of_the_sdk_that_fails_fails_no_turn(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Broken()
    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    provider.add_span_processor(broken)
    try:
        for place in ("start", "end"):
            monkeypatch.setattr(telemetry, "_complaints", [])
            caplog.clear()
            broken.place = place
            async with serve(Echo(), otel=True) as server, connect(server) as client:
                for text in ("one", "two"):
                    assert (await client.send(text)).state == "completed"
            assert len([one for one in caplog.records if "spans may be missing" in one.message]) == 1
    finally:
        broken.place = ""
