"""Which traces are recorded: decided once, where a trace begins, and followed by everything below it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler, SamplingResult
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from errands import TaskContext, Worker, telemetry, tracing
from errands.model.core import TERMINAL_STATES
from errands.telemetry import TraceRate
from errands.testing import connect, http_client, serve
from errands.tracing import TraceContext
from tests.agents.rig import ADDING, at_work, call
from tests.push.receiver import Receiver
from tests.tracing.collector import Collector
from tests.tracing.test_spans import OTEL, PARENT, SPAN, TRACE, TURN, Does, Echo, message
from tests.unit.delegation.support import Answers, family
from tests.unit.support import Gate
from tests.waiting import until

pytestmark = pytest.mark.anyio

NOT_SAMPLED = f"00-{TRACE}-{SPAN}-00"
ASKED = "server: SendMessage"
#: One trace, and then none for as long as a test takes; ten times as many of callers are one, too.
ONE: dict[str, Any] = {"otel": True, "otel_traces_per_second": 1e-6}


# The rate


class Now:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def admitted(rate: TraceRate, times: int) -> int:
    return sum(rate.admits() for _ in range(times))


def test_a_quarter_of_the_traces_of_a_second_may_begin_at_once_and_later_ones_are_spread_over_time() -> None:
    now = Now()
    rate = TraceRate(40, now)
    assert admitted(rate, 25) == 10
    assert rate.left_out == 15
    found = []
    for _ in range(200):
        now.time += 0.0025
        found.append(rate.admits())
    assert sum(found) == 20
    assert [number for number, is_admitted in enumerate(found, 1) if is_admitted][:3] == [10, 20, 30]
    now.time += 3600
    assert admitted(rate, 25) == 10


def test_less_than_one_trace_a_second_is_possible_and_so_are_all_of_them() -> None:
    now = Now()
    rare = TraceRate(0.5, now)
    assert admitted(rare, 3) == 1
    now.time += 1.9
    assert admitted(rare, 3) == 0
    now.time += 0.1
    assert admitted(rare, 3) == 1
    assert admitted(TraceRate(math.inf, now), 10_000) == 10_000


def test_a_trace_that_the_sampler_of_the_program_does_not_want_is_not_counted() -> None:
    rate = TraceRate(1, Now())
    for _ in range(5):
        assert rate.admits()
        rate.give_back()
    assert admitted(rate, 3) == 1


# What begins here


@asynccontextmanager
async def used_up(worker: Worker, **options: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A server that has begun the one trace that it may begin, and a client of HTTP."""
    server = serve(worker, **{"storage": "memory", **ONE, **options})
    async with server, http_client(server) as client:
        while tracing.tracer is not None and tracing.tracer.accepts(None):
            pass
        yield server, client


async def test_beyond_the_rate_nothing_is_recorded_and_nothing_else_changes(collector: Collector) -> None:
    seen: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(tracing.current_ids())
        with trace.get_tracer("program").start_as_current_span("work"):
            pass
        await ctx.complete(f"done: {ctx.user_text}")

    server = serve(Does(handle), storage="memory", **ONE)
    async with server, http_client(server) as client:
        answers = [(await client.post("/", json=message(text))).json()["result"]["task"] for text in ("one", "two")]
        await collector.has(TURN)
        kinds = [
            [event.kind for event in (await server.engine.read(answer["id"], server.scope(), 0)).events]
            for answer in answers
        ]
        figures = {sample.name: sample.value for sample in server.figures.samples()} if server.figures else {}
    assert [answer["status"]["state"] for answer in answers] == ["TASK_STATE_COMPLETED"] * 2
    assert [answer["artifacts"][0]["parts"][0]["text"] for answer in answers] == ["done: one", "done: two"]
    # A message whose trace is not recorded is stored as without tracing.
    assert [kind for kind in kinds[0] if kind != "request"] == kinds[1]
    assert len({span.trace for span in collector.spans}) == 1
    assert {span.label for span in collector.spans} == {ASKED, TURN, "internal: work"}
    assert (seen[0] is not None, seen[1]) == (True, None)
    assert figures["errands_traces_left_out_total"] == 1


async def test_a_stream_beyond_the_rate_is_not_recorded(collector: Collector) -> None:
    async with connect(serve(Echo(), storage="memory", **ONE)) as client:
        assert tracing.tracer is not None
        while tracing.tracer.accepts(None):
            pass
        events = [event async for event in client.stream("hi")]
    assert events[-1].is_final
    assert collector.spans == []


async def test_without_a_bound_every_trace_is_recorded(collector: Collector) -> None:
    server = serve(Echo(), storage="memory", otel=True, otel_traces_per_second=math.inf)
    async with server, http_client(server) as client:
        for number in range(300):
            await client.post("/", json=message(str(number)))
        await collector.has(*[TURN] * 300)


async def test_models_and_tools_of_a_trace_that_is_left_out_are_not_recorded(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(telemetry.CAPTURE, "true")
    replies = (call(("adder", {"a": 40, "b": 2})), "It is forty-two.")
    async with at_work(tmp_path, ADDING, *replies, server=OTEL) as desk, http_client(desk.server) as client:
        answer = await client.post("/", json=message("Add"), headers={"traceparent": NOT_SAMPLED})
    assert "forty-two" in answer.text
    assert collector.spans == []


async def test_an_agent_of_the_same_server_follows_the_decision(collector: Collector) -> None:
    server = family(Answers(), storage="memory", **ONE)
    async with server, http_client(server) as client:
        answer = await client.post("/", json=message(), headers={"traceparent": NOT_SAMPLED})
        assert answer.json()["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        assert collector.spans == []
        await client.post("/", json=message("again"), headers={"traceparent": PARENT})
        await collector.has("internal: invoke_agent child", "internal: invoke_agent Parent")
    assert {span.trace for span in collector.spans} == {TRACE}


async def test_a_webhook_is_told_that_the_trace_is_not_recorded(collector: Collector) -> None:
    async with Receiver().up() as receiver:
        async with used_up(Echo(), push_allow="127.0.0.1", poll_interval=0.02) as (_, client):
            body = message()
            body["params"]["configuration"] = {"taskPushNotificationConfig": {"url": receiver.url}}
            await client.post("/", json=body)
            await until(lambda: "completed" in receiver.states())
        parents = [one.headers["traceparent"] for one in receiver.received]
    assert {parent[-3:] for parent in parents} == {"-00"}
    assert collector.spans == []


async def test_a_turn_that_goes_on_in_another_process_follows_the_decision(
    collector: Collector, tmp_path: Path
) -> None:
    held, begun = asyncio.Event(), asyncio.Event()

    async def handle(ctx: TaskContext) -> None:
        begun.set()
        await held.wait()
        await ctx.complete("done")

    options: dict[str, Any] = {"storage": f"sqlite:///{tmp_path / 'tasks.db'}", "drain_timeout": 0}
    async with used_up(Does(handle), **options) as (_, client):
        body = message()
        body["params"]["configuration"] = {"returnImmediately": True}
        task_id = (await client.post("/", json=body)).json()["result"]["task"]["id"]
        await begun.wait()
    held.set()
    # The process that goes on would record everything that begins in it.
    server = serve(Does(handle), otel=True, **options)
    async with server:
        await server.engine.wait_for_state(task_id, server.scope(), TERMINAL_STATES, None)
    assert collector.spans == []


@pytest.mark.parametrize("recorded", [0, 1])
async def test_of_two_messages_of_a_task_each_follows_its_own_trace(recorded: int, collector: Collector) -> None:
    gate = Gate()

    async def handle(ctx: TaskContext) -> None:
        await gate()
        await ctx.complete(f"done: {ctx.user_text}")

    parents = [NOT_SAMPLED, NOT_SAMPLED]
    parents[recorded] = f"00-{'b' * 32}-{SPAN}-01"
    server = serve(Does(handle), storage="memory", otel=True)
    async with server, http_client(server) as client:
        first = asyncio.create_task(client.post("/", json=message("one"), headers={"traceparent": parents[0]}))
        await gate.reached.wait()
        [task] = await server.tasks.list()
        second = asyncio.create_task(
            client.post("/", json=message("two", taskId=task.id), headers={"traceparent": parents[1]})
        )
        await until(lambda: server.pool.running[task.id].turn is not None)
        while (await server.engine.load(task.id, server.scope())).head.unread < 2:
            await asyncio.sleep(0)
        gate.open()
        await asyncio.gather(first, second)
        await collector.has(ASKED, TURN)
    assert sorted(span.label for span in collector.spans) == sorted([ASKED, TURN])
    assert {span.trace for span in collector.spans} == {"b" * 32}


# What callers have begun


async def test_the_flag_of_the_caller_decides_whether_its_trace_is_recorded(collector: Collector) -> None:
    seen: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        assert tracing.tracer is not None
        seen.append((tracing.current_ids(), tracing.tracer.inject()))
        await ctx.complete("done")

    async with used_up(Does(handle)) as (_, client):
        headers = {"traceparent": NOT_SAMPLED, "tracestate": "congo=1"}
        await client.post("/", json=message("one"), headers=headers)
        assert collector.spans == []
        # It would be the second trace, if it had begun here.
        await client.post("/", json=message("two"), headers={"traceparent": PARENT})
        await collector.has(TURN)
    assert {span.trace for span in collector.spans} == {TRACE}
    assert seen[0] == ((TRACE, SPAN), TraceContext(NOT_SAMPLED, "congo=1"))


async def test_strangers_cannot_have_more_traces_recorded_than_the_bound_allows(collector: Collector) -> None:
    seen: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        assert tracing.tracer is not None
        seen.append(tracing.tracer.inject())
        await ctx.complete("done")

    server = serve(Does(handle), storage="memory", **ONE)
    async with server, http_client(server) as client:
        for number in range(5):
            await client.post("/", json=message(str(number)), headers={"traceparent": PARENT})
        await collector.has(TURN)
        assert len(collector.named(ASKED)) == 1
        # What strangers have sent takes nothing from the traces that begin here.
        await client.post("/", json=message("ours"))
        await collector.has(TURN, TURN)
    # The trace goes on, and what is below knows that it is not recorded.
    assert seen[1] == TraceContext(NOT_SAMPLED)


async def test_a_request_follows_the_span_of_a_framework_that_is_not_recorded(collector: Collector) -> None:
    framework = NonRecordingSpan(SpanContext(int(TRACE, 16), 0x1234, False, TraceFlags(0)))
    server = serve(Echo(), storage="memory", otel=True)
    async with server, http_client(server) as client:
        with trace.use_span(framework):
            await client.post("/", json=message("one"))
    assert collector.spans == []


# The sampler of the program


class Asked(Sampler):
    """Counts how often it is asked about what."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self.names: list[str] = []
        self.attributes: list[Any] = []

    def should_sample(self, parent_context: Any, trace_id: int, name: str, *rest: Any, **more: Any) -> SamplingResult:
        self.names.append(name)
        self.attributes.append(rest[1])
        return self._sampler.should_sample(parent_context, trace_id, name, *rest, **more)

    def get_description(self) -> str:
        return "Asked"


@pytest.fixture
def sampled_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sampler], Asked]:
    """Make the tracer provider of the program sample otherwise."""

    def use(sampler: Sampler) -> Asked:
        asked = Asked(sampler)
        provider = TracerProvider(sampler=asked)
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
        return asked

    return use


async def test_the_sampler_of_the_program_is_asked_once_about_a_trace_that_it_does_not_want(
    sampled_by: Callable[[Sampler], Asked],
) -> None:
    asked = sampled_by(ALWAYS_OFF)
    server = serve(Echo(), storage="memory", **ONE)
    async with server, http_client(server) as client:
        for text in ("one", "two", "three"):
            await client.post("/", json=message(text))
        assert tracing.tracer is not None
        assert tracing.tracer.left_out == 0
    # Those that it does not want take nothing from the rate.
    assert asked.names == ["SendMessage"] * 3
    assert asked.attributes[0]["errands.operation"] == "SendMessage"


async def test_a_sampler_that_follows_no_parent_decides_about_traces_of_callers_too(
    sampled_by: Callable[[Sampler], Asked],
) -> None:
    asked = sampled_by(ALWAYS_OFF)
    seen: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        assert tracing.tracer is not None
        seen.append(tracing.tracer.inject())
        await ctx.complete("done")

    server = serve(Does(handle), storage="memory", otel=True)
    async with server, http_client(server) as client:
        await client.post("/", json=message(), headers={"traceparent": PARENT})
    assert (asked.names, seen) == (["SendMessage"], [TraceContext(NOT_SAMPLED)])


async def test_a_trace_that_the_sampler_wants_is_recorded_to_its_end(
    sampled_by: Callable[[Sampler], Asked],
) -> None:
    asked = sampled_by(ParentBased(ALWAYS_ON))
    server = serve(Echo(), storage="memory", otel=True)
    async with server, http_client(server) as client:
        await client.post("/", json=message())
    assert asked.names == ["SendMessage", "invoke_agent Test agent"]


# Clients


async def test_a_client_beyond_the_rate_tells_the_agent_that_the_trace_is_not_recorded(collector: Collector) -> None:
    with telemetry.installed(traces_per_second=1e-6):
        server = serve(Echo(), storage="memory", otel=True, otel_traces_per_second=1e-6)
        async with connect(server) as client:
            await client.send("one")
            await collector.has("client: invoke_agent Test agent", ASKED, TURN)
            await client.send("two")
            [_ async for _ in client.stream("three")]
    collector.check_tree()
    assert len(collector.spans) == 3


async def test_the_ids_of_traces_that_are_left_out_differ() -> None:
    found: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        assert tracing.tracer is not None
        found.append((tracing.tracer.inject(), tracing.tracer.inject()))
        await ctx.complete("done")

    async with used_up(Does(handle)) as (_, client):
        for text in ("one", "two"):
            await client.post("/", json=message(text))
    (first, again), (second, _) = found
    assert first == again
    assert first != second
    assert (tracing.read_context(first.parent), first.parent[-3:]) == (first, "-00")
