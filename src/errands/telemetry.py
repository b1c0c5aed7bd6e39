"""Traces and metrics with OpenTelemetry (extra `otel`): the names of spans and figures, and where they are sent.

    from errands import telemetry

    telemetry.install()        # for clients; a server does it itself with the setting `otel`

Spans are sent to the tracer provider of the program, which installs OpenTelemetry's SDK and an exporter. This is the
only module that imports OpenTelemetry. Names and attributes follow its semantic conventions for generative AI.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, Token
from functools import lru_cache
from random import getrandbits
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from opentelemetry import context as current
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags, TraceState
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace import Tracer as OtelTracer

from errands import tracing
from errands.tracing import MAX_STATE, TRACES_PER_SECOND, Kind, TraceContext, Tracer, TraceSpan, Value
from errands.version import __version__

if TYPE_CHECKING:
    from errands.runtime.figures import Figures, Metric, Sample

T = TypeVar("T")
Observe = Callable[[CallbackOptions], Iterable[Observation]]

logger = logging.getLogger(__name__)

#: The environment variable that allows programs with OpenTelemetry to record messages.
CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
#: Characters of a text that is recorded; the rest is cut off.
MAX_TEXT = 128 * 1024


class SpanForm(NamedTuple):
    """How spans of one kind look in OpenTelemetry."""

    #: The name of the span, or the beginning of it.
    name: str
    kind: SpanKind
    #: The attribute that has the name.
    named: str
    #: Attributes of every span of this kind.
    common: dict[str, str] = {}
    #: Whether the name of the operation, agent, model or tool is appended.
    has_name: bool = True


FORMS: dict[Kind, SpanForm] = {
    "request": SpanForm("", SpanKind.SERVER, "errands.operation"),
    "operation": SpanForm("", SpanKind.CLIENT, "errands.operation"),
    "invocation": SpanForm(
        "invoke_agent ",
        SpanKind.CLIENT,
        "gen_ai.agent.name",
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.provider.name": "a2a"},
    ),
    "turn": SpanForm(
        "invoke_agent ",
        SpanKind.INTERNAL,
        "gen_ai.agent.name",
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.provider.name": "errands"},
    ),
    "chat": SpanForm("chat ", SpanKind.CLIENT, "gen_ai.request.model", {"gen_ai.operation.name": "chat"}),
    "tool": SpanForm("execute_tool ", SpanKind.INTERNAL, "gen_ai.tool.name", {"gen_ai.operation.name": "execute_tool"}),
    "delivery": SpanForm("push", SpanKind.CLIENT, "server.address", has_name=False),
}

#: The attributes of OpenTelemetry, by the names under which errands notes values.
ATTRIBUTES = {
    "agent": "gen_ai.agent.name",
    "arguments": "gen_ai.tool.call.arguments",
    "attempt": "errands.attempt",
    "binding": "errands.binding",
    "call": "gen_ai.tool.call.id",
    "conversation": "gen_ai.conversation.id",
    "finish_reasons": "gen_ai.response.finish_reasons",
    "host": "server.address",
    "input_messages": "gen_ai.input.messages",
    "input_tokens": "gen_ai.usage.input_tokens",
    "operation": "errands.operation",
    "output_messages": "gen_ai.output.messages",
    "output_tokens": "gen_ai.usage.output_tokens",
    "port": "server.port",
    "protocol": "errands.protocol",
    "provider": "gen_ai.provider.name",
    "response_model": "gen_ai.response.model",
    "result": "gen_ai.tool.call.result",
    "state": "errands.task.state",
    "system": "gen_ai.system_instructions",
    "task": "errands.task.id",
    "tools": "gen_ai.tool.definitions",
    "tool_kind": "gen_ai.tool.type",
    "version": "errands.task.version",
    "waited": "errands.queue.seconds",
    "webhook": "errands.webhook.id",
    "worker": "errands.worker",
}
ERROR = "error.type"
#: How many times more traces of callers may be recorded than may begin here.
CONTINUED = 10
#: Seconds of unused traces that may begin at once.
AT_ONCE = 0.25
#: The last digits of flags that have the flag of a recorded trace.
_ODD = frozenset("13579bdf")


@contextmanager
def installed(
    figures: Figures | None = None,
    table: Mapping[str, Metric] | None = None,
    agent: str = "",
    traces_per_second: float | None = None,
) -> Iterator[None]:
    """Turn tracing on for the block, as `install` does. It is turned off when the last of these blocks ends.

    Meanwhile, the `figures` of a server of this agent are exported as `table` describes them.
    """
    global _uses
    tracer = install(traces_per_second)
    try:
        if figures is None or table is None:
            yield
        else:
            figures.read_from("errands_traces_left_out_total", lambda: tracer.left_out)
            with exported(figures, table, agent):
                yield
    finally:
        _uses -= 1
        if not _uses:
            tracing.tracer = None


#: The number of times that tracing was turned on; the end of a block lowers it.
_uses = 0


def install(traces_per_second: float | None = None) -> Tracer:
    """Turn tracing on for the clients and servers of this process. Set the tracer provider first.

    The process begins at most `traces_per_second`: of several calls that give a number, the last one counts.
    """
    global _uses
    _uses += 1
    if tracing.tracer is None:
        tracing.tracer = Telemetry()
    if traces_per_second is not None:
        tracing.tracer.limit(traces_per_second)
    return tracing.tracer


class TraceRate:
    """Admits a number of traces per second; after a quiet time, those of `AT_ONCE` seconds at the same moment.

    It is a token bucket, kept as the time at which it will be full again. The traces of a busy process are spread
    evenly over each second.
    """

    def __init__(self, traces_per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._interval = 1 / traces_per_second
        self._most = max(AT_ONCE - self._interval, 0) + 1e-9
        self._full_at = -math.inf
        #: How many traces were not admitted.
        self.left_out = 0

    def admits(self) -> bool:
        """Return whether another trace may be recorded, and count it."""
        now = self._clock()
        if self._full_at - now > self._most:
            self.left_out += 1
            return False
        self._full_at = max(self._full_at, now) + self._interval
        return True

    def give_back(self) -> None:
        """Do not count a trace that was admitted: the sampler of the program does not want it."""
        self._full_at -= self._interval


class Telemetry:
    """Makes spans with the tracer provider of the program."""

    def __init__(self) -> None:
        self._captures_content = os.environ.get(CAPTURE, "").strip().lower() == "true"
        provider = trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider):
            logger.warning(
                "tracing is on, but nothing records the spans: set up OpenTelemetry's SDK before, for example with "
                "opentelemetry-instrument; see docs/telemetry.md"
            )
        self._tracer: OtelTracer = provider.get_tracer("errands", __version__)
        self._chooses_ids = _choose_ids(self._tracer)
        self._unnamed = LeftOut()
        self._unnamed_context = LeftOutContext(trace.set_span_in_context(self._unnamed, Context()))
        self._traces_per_second = 0.0
        self.limit(TRACES_PER_SECOND)

    def limit(self, traces_per_second: float) -> None:
        if traces_per_second != self._traces_per_second:
            self._traces_per_second = traces_per_second
            self._begun = TraceRate(traces_per_second)
            self._continued = TraceRate(traces_per_second * CONTINUED)

    @property
    def left_out(self) -> int:
        return self._begun.left_out + self._continued.left_out

    def accepts(self, parent: TraceContext | None) -> bool:
        if current.get_current() and (ambient := _ambient(parent)) is not None:
            return _is_recorded(ambient) and self._continued.admits()
        if parent is None:
            return self._begun.admits()
        return _names_recorded(parent) and self._continued.admits()

    def leave_out(self, work: Coroutine[Any, Any, T], parent: TraceContext | None = None) -> Coroutine[Any, Any, T]:
        context = current.get_current()
        if context:
            if _has_left_out(context):
                return work
        elif parent is None:
            # Work that has nothing around it shares a context until something asks for its ids.
            if self._unnamed.has_ids:
                self._unnamed = LeftOut()
                self._unnamed_context = LeftOutContext(trace.set_span_in_context(self._unnamed))
            return _within(self._unnamed_context, work)
        return _within(LeftOutContext(trace.set_span_in_context(LeftOut(parent))), work)

    def span(
        self,
        kind: Kind,
        name: str,
        *,
        parent: TraceContext | Literal["current"] | None = "current",
        identity: str = "",
        began: int | None = None,
        **values: Value | None,
    ) -> TraceSpan:
        try:
            if kind != "request" and (left_out := self._left_out(parent)) is not None:
                return left_out
            return self._begin(kind, name, parent, identity, began, values)
        except Exception:
            _complain()
            return _Unrecorded()

    def _left_out(self, parent: TraceContext | Literal["current"] | None) -> TraceSpan | None:
        """Return a span for work that belongs to a trace that is not recorded; None if it is to be recorded."""
        if parent is None:
            return _Unrecorded(LeftOut())
        if parent != "current":
            if _names_recorded(parent):
                return None
            _span_context(parent)  # a damaged one raises ValueError
            return _Unrecorded(LeftOut(parent))
        span = trace.get_current_span()
        if span is trace.INVALID_SPAN:
            return None if self._begun.admits() else _Unrecorded(LeftOut())
        return None if _is_recorded(span) else _Unrecorded()

    def _begin(
        self,
        kind: Kind,
        name: str,
        parent: TraceContext | Literal["current"] | None,
        identity: str,
        began: int | None,
        values: Mapping[str, Value | None],
    ) -> TraceSpan:
        form = FORMS[kind]
        attributes = _attributes(values, {**form.common, form.named: name})
        context = self._context(kind, parent)
        chosen = None
        if identity and self._chooses_ids:
            place = self.inject() if parent == "current" else parent
            if place is not None:
                trace_id = place.parent[3:35]
                key = f"{trace_id}\n{identity}".encode("utf-8", "surrogatepass")
                chosen = _chosen.set(int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) or 1)
        try:
            made = self._tracer.start_span(
                form.name + name if form.has_name else form.name,
                context,
                form.kind,
                attributes,
                start_time=None if began is None else began * 1_000_000,
                record_exception=False,
                set_status_on_exception=False,
            )
        finally:
            if chosen is not None:
                _chosen.reset(chosen)
        if _is_recorded(made):
            return _Recorded(made, self._captures_content)
        # The sampler of the program does not want the trace.
        if parent is None or (parent == "current" and trace.get_current_span() is trace.INVALID_SPAN):
            self._begun.give_back()
        elif kind == "request":
            self._continued.give_back()
        return _Unrecorded(made)

    def _context(self, kind: Kind, parent: TraceContext | Literal["current"] | None) -> Context | None:
        """Return the context of a span's parent; None for the current one."""
        if parent == "current" or (kind == "request" and _ambient(parent) is not None):
            return None
        if parent is None:
            return Context()
        place = trace.get_current_span().get_span_context()
        if place.is_valid and parent.parent[3:52] == f"{place.trace_id:032x}-{place.span_id:016x}":
            return None
        return trace.set_span_in_context(NonRecordingSpan(_span_context(parent)), Context())

    def inject(self) -> TraceContext | None:
        place = trace.get_current_span().get_span_context()
        if not place.is_valid:
            return None
        state = place.trace_state.to_header() if place.trace_state else ""
        parent = f"00-{place.trace_id:032x}-{place.span_id:016x}-{place.trace_flags:02x}"
        return TraceContext(parent, state if len(state) <= MAX_STATE else "")

    def recorded(self) -> TraceContext | None:
        context = current.get_current()
        return None if not context or _has_left_out(context) else self.inject()

    def ids(self) -> tuple[str, str] | None:
        span = trace.get_current_span()
        if isinstance(span, LeftOut) and span.parent is None:
            return None
        place = span.get_span_context()
        return (f"{place.trace_id:032x}", f"{place.span_id:016x}") if place.is_valid else None


class LeftOut(NonRecordingSpan):
    """The current span in work that is not recorded, so that nothing below it is recorded either.

    It has the ids of the caller's span, if the caller has named one. Otherwise its ids are made when they are needed.
    """

    def __init__(self, parent: TraceContext | None = None) -> None:
        super().__init__(trace.INVALID_SPAN_CONTEXT)
        self.parent = parent
        self._place: SpanContext | None = None

    @property
    def has_ids(self) -> bool:
        return self._place is not None

    def get_span_context(self) -> SpanContext:
        if self._place is None:
            if self.parent is None:
                self._place = SpanContext(getrandbits(128) or 1, getrandbits(64) or 1, False)
            else:
                place = _span_context(self.parent)
                flags = TraceFlags(place.trace_flags & ~TraceFlags.SAMPLED)
                self._place = SpanContext(place.trace_id, place.span_id, True, flags, place.trace_state)
        return self._place

    def __repr__(self) -> str:
        return f"LeftOut({self.get_span_context()!r})"


def _ambient(parent: TraceContext | None) -> OtelSpan | None:
    """Return the span of what has traced a request before us, such as an instrumented framework."""
    span = trace.get_current_span()
    if span is trace.INVALID_SPAN:
        return None
    place = span.get_span_context()
    belongs = place.is_valid and (parent is None or parent.parent[3:35] == f"{place.trace_id:032x}")
    return span if belongs else None


def _is_recorded(span: OtelSpan) -> bool:
    """Return whether a span, or the one of another process that it represents, is recorded."""
    if span.is_recording():
        return True
    return not isinstance(span, LeftOut) and bool(span.get_span_context().trace_flags & TraceFlags.SAMPLED)


class LeftOutContext(Context):
    """A context in which nothing is recorded. Its class says so faster than its span."""


def _has_left_out(context: Context) -> bool:
    """Return whether the current span of a context is one that is not recorded."""
    if type(context) is LeftOutContext:
        return True
    span = trace.get_current_span(context)
    return span is not trace.INVALID_SPAN and not _is_recorded(span)


def _names_recorded(place: TraceContext) -> bool:
    """Return whether a place has the flag of a trace that is recorded."""
    return place.parent[-1:] in _ODD


def _attributes(values: Mapping[str, Value | None], found: dict[str, Value]) -> dict[str, Value]:
    """Add noted values to attributes of OpenTelemetry, and return these."""
    for word, value in values.items():
        if value is not None:
            found[ATTRIBUTES[word]] = value[:MAX_TEXT] if isinstance(value, str) else value
    return found


class _Recorded:
    """A span of OpenTelemetry."""

    __slots__ = ("_is_open", "_span", "captures_content")

    is_recorded = True

    def __init__(self, span: OtelSpan, captures_content: bool) -> None:
        self._span = span
        self.captures_content = captures_content
        self._is_open = True

    def active(self) -> _Active:
        return _Active(trace.set_span_in_context(self._span))

    def note(self, **values: Value | None) -> None:
        if self._span.is_recording():
            self._span.set_attributes(_attributes(values, {}))

    def fail(self, kind: str, *, is_fault: bool = True) -> None:
        self._span.set_attribute(ERROR, kind)
        if is_fault:
            # Without a description, which could contain text of a message.
            self._span.set_status(StatusCode.ERROR)

    def end(self) -> None:
        if self._is_open:
            self._is_open = False
            try:
                self._span.end()
            except Exception:
                _complain()


class _Unrecorded:
    """A span that is not recorded. Without a span in its place, the current one stays the same."""

    __slots__ = ("_span",)

    is_recorded = captures_content = False

    def __init__(self, span: OtelSpan | None = None) -> None:
        self._span = span

    def active(self) -> AbstractContextManager[None]:
        return _NOTHING if self._span is None else _Active(trace.set_span_in_context(self._span))

    def note(self, **values: Value | None) -> None:
        pass

    def fail(self, kind: str, *, is_fault: bool = True) -> None:
        pass

    def end(self) -> None:
        pass


_NOTHING = nullcontext()


def _complain() -> None:
    """Log an error of the program's sampler or processor, or a damaged stored trace. The work continues."""
    if not _complaints:
        logger.exception("a span could not be recorded, and others may be missing, too. This is logged only once")
        _complaints.append(True)


_complaints: list[bool] = []


async def _within(context: Context, work: Coroutine[Any, Any, T]) -> T:
    token = current.attach(context)
    try:
        return await work
    finally:
        current.detach(token)


class _Active(AbstractContextManager[None]):
    """A context manager that makes a span the current one."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: Context) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._token: Token[Context] = current.attach(self._context)

    def __exit__(self, *exc: object) -> None:
        current.detach(self._token)


@lru_cache(maxsize=1024)
def _span_context(place: TraceContext) -> SpanContext:
    _, trace_id, span_id, flags = place.parent.split("-")
    state = TraceState.from_header([place.state]) if place.state else None
    return SpanContext(int(trace_id, 16), int(span_id, 16), True, TraceFlags(int(flags, 16)), state)


# Ids of spans that continue in another process


#: The id of the span that is being made, unless it is random.
_chosen: ContextVar[int] = ContextVar("errands_span_id", default=0)


def _choose_ids(tracer: Any) -> bool:
    """Make the tracer of errands use chosen ids of spans. Return whether it can."""
    if isinstance(generator := getattr(tracer, "id_generator", None), _ChosenIds):
        return True
    if not hasattr(generator, "generate_span_id"):
        return False  # not the SDK's: a span that continues in another process has another id there
    tracer.id_generator = _ChosenIds(generator)
    return True


class _ChosenIds:
    """Wraps the id generator of a tracer, and returns the chosen id if there is one."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def generate_span_id(self) -> int:
        chosen: int = _chosen.get() or self._generator.generate_span_id()
        return chosen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)


# Metrics: exporters ask for the values in threads of their own, so counting costs nothing more.


class ServerReading:
    """Reads the figures of one server from other threads. They are read in its event loop, at most once a second."""

    def __init__(self, figures: Figures, agent: str) -> None:
        self.agent = agent
        self._figures = figures
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._read_at = -math.inf
        self._samples: list[Sample] = []

    def samples(self) -> list[Sample]:
        """Return the current samples; none if the event loop does not answer."""
        with self._lock:
            if time.monotonic() - self._read_at >= _FRESH:
                self._samples = self._read()
                self._read_at = time.monotonic()
            return self._samples

    def _read(self) -> list[Sample]:
        if threading.get_ident() == self._thread:
            return self._figures.samples()
        taken: Future[list[Sample]] = Future()
        try:
            self._loop.call_soon_threadsafe(lambda: taken.set_result(self._figures.samples()))
            return taken.result(_PATIENCE)
        except (RuntimeError, TimeoutError):
            return []  # the loop has stopped, or code blocks it


#: Seconds for which samples are used again, and seconds for which an exporter waits for them.
_FRESH, _PATIENCE = 1.0, 5.0
#: The readings of the servers that run in this process.
_readings: list[ServerReading] = []
#: The meter providers that have the instruments: these are made once, because OpenTelemetry cannot remove them.
_instrumented: list[object] = []


@contextmanager
def exported(figures: Figures, table: Mapping[str, Metric], agent: str) -> Iterator[None]:
    """Export the figures of a server of this agent until the end of the block."""
    provider = metrics.get_meter_provider()
    if provider not in _instrumented:
        _instrumented.append(provider)
        meter = provider.get_meter("errands", __version__)
        for metric in table.values():
            if metric.kind == "gauge":
                meter.create_observable_gauge(metric.name, [_values(metric.name)], metric.unit, metric.help)
            elif metric.kind == "counter":
                meter.create_observable_counter(metric.name, [_values(metric.name)], metric.unit, metric.help)
            else:
                # OpenTelemetry cannot observe a histogram: these are the three series that Prometheus makes of one.
                for suffix, observe, unit in (
                    ("_count", _values(metric.name), "1"),
                    ("_sum", _sums(metric.name), metric.unit),
                    ("_bucket", _buckets(metric), "1"),
                ):
                    meter.create_observable_counter(metric.name + suffix, [observe], unit, metric.help)
    reading = ServerReading(figures, agent)
    _readings.append(reading)
    try:
        yield
    finally:
        _readings.remove(reading)


def _found(name: str) -> Iterator[tuple[Sample, dict[str, str]]]:
    """Yield the samples of a metric with their labels, which name the agent if there are several servers."""
    readings = list(_readings)
    for reading in readings:
        more = {"agent": reading.agent} if len(readings) > 1 else {}
        for sample in reading.samples():
            if sample.name == name:
                yield sample, {**more, **sample.labels}


def _values(name: str) -> Observe:
    return lambda _: [Observation(sample.value, labels) for sample, labels in _found(name)]


def _sums(name: str) -> Observe:
    return lambda _: [Observation(sample.sum, labels) for sample, labels in _found(name)]


def _buckets(metric: Metric) -> Observe:
    bounds = [f"{bound:g}" for bound in metric.bounds] + ["+Inf"]

    def observe(_: CallbackOptions) -> list[Observation]:
        return [
            Observation(count, {**labels, "le": bound})
            for sample, labels in _found(metric.name)
            for bound, count in zip(bounds, (*sample.buckets, int(sample.value)), strict=True)
        ]

    return observe
