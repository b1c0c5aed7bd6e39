"""Tracing with OpenTelemetry (extra `otel`): what the spans of errands are called, and where they go.

    from errands import telemetry

    telemetry.install()        # for clients; a server does it itself with the setting `otel`

Spans go to the tracer provider of the program, which brings OpenTelemetry's SDK and an exporter. This is the only
module that imports OpenTelemetry. Names and attributes follow its semantic conventions for generative AI.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from opentelemetry import context as current
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags, TraceState
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace import Tracer as OtelTracer

from errands import tracing
from errands.tracing import MAX_STATE, Kind, Span, TraceContext, Value
from errands.version import __version__

logger = logging.getLogger(__name__)

#: The variable with which programs that use OpenTelemetry allow that messages are recorded.
CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
#: Characters of a text that is recorded; the rest is cut off.
MAX_TEXT = 128 * 1024


class SpanForm(NamedTuple):
    """How spans of one kind look in OpenTelemetry."""

    #: What the span is called; `{}` is the name of what it is about.
    name: str
    kind: SpanKind
    #: The attribute with the name.
    named: str
    #: Attributes that all of them have.
    common: dict[str, str] = {}


FORMS: dict[Kind, SpanForm] = {
    "request": SpanForm("{}", SpanKind.SERVER, "errands.operation"),
    "operation": SpanForm("{}", SpanKind.CLIENT, "errands.operation"),
    "invocation": SpanForm(
        "invoke_agent {}",
        SpanKind.CLIENT,
        "gen_ai.agent.name",
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.provider.name": "a2a"},
    ),
    "turn": SpanForm(
        "invoke_agent {}",
        SpanKind.INTERNAL,
        "gen_ai.agent.name",
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.provider.name": "errands"},
    ),
    "chat": SpanForm("chat {}", SpanKind.CLIENT, "gen_ai.request.model", {"gen_ai.operation.name": "chat"}),
    "tool": SpanForm(
        "execute_tool {}", SpanKind.INTERNAL, "gen_ai.tool.name", {"gen_ai.operation.name": "execute_tool"}
    ),
    "delivery": SpanForm("push", SpanKind.CLIENT, "server.address"),
}

#: The attributes of what a span notes, by the words of errands.
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

#: Providers that OpenTelemetry calls otherwise than any-llm.
_PROVIDERS = {
    "azure": "azure.ai.inference",
    "azureopenai": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "vertexai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}


@contextmanager
def installed() -> Iterator[None]:
    """Have errands trace until the end of the block, and of all other blocks like it."""
    global _uses
    install()
    try:
        yield
    finally:
        _uses -= 1
        if not _uses:
            tracing.tracer = None


#: How many callers want tracing; only blocks end.
_uses = 0


def install() -> None:
    """Have the clients and servers of this process trace. Set the tracer provider first."""
    global _uses
    _uses += 1
    if tracing.tracer is None:
        tracing.tracer = Telemetry()


class Telemetry:
    """Makes spans with the tracer provider of the program."""

    def __init__(self) -> None:
        self.captures_content = os.environ.get(CAPTURE, "").strip().lower() == "true"
        provider = trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider):
            logger.warning(
                "tracing is on, but nothing records the spans: set up OpenTelemetry's SDK before, for example with "
                "opentelemetry-instrument; see docs/telemetry.md"
            )
        self._tracer: OtelTracer = provider.get_tracer("errands", __version__)
        self._chooses_ids = _choose_ids(self._tracer)

    def span(
        self,
        kind: Kind,
        name: str,
        *,
        parent: TraceContext | Literal["current"] | None = "current",
        identity: str = "",
        began: int | None = None,
        **values: Value | None,
    ) -> Span:
        form = FORMS[kind]
        attributes: dict[str, Any] = {**form.common, form.named: name}
        for word, value in values.items():
            if value is not None:
                attributes[ATTRIBUTES[word]] = value
        if "gen_ai.provider.name" in attributes:
            provider = attributes["gen_ai.provider.name"]
            attributes["gen_ai.provider.name"] = _PROVIDERS.get(provider, provider)
        context = self._context(kind, parent)
        chosen = None
        if identity and self._chooses_ids:
            place = self.inject() if parent == "current" else parent
            if place is not None:
                chosen = _chosen.set(_span_id(place.parent[3:35], identity))
        try:
            made = self._tracer.start_span(
                form.name.format(name),
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
        return _Recorded(made)

    def _context(self, kind: Kind, parent: TraceContext | Literal["current"] | None) -> Context | None:
        """Return the context of a span's parent; None for the current one."""
        if parent == "current":
            return None
        if kind == "request":
            # What has traced the request before us, such as an instrumented framework, has a span for it.
            ambient = trace.get_current_span().get_span_context()
            if ambient.is_valid and (parent is None or parent.parent[3:35] == f"{ambient.trace_id:032x}"):
                return None
        if parent is None:
            return Context()
        return trace.set_span_in_context(NonRecordingSpan(_span_context(parent)), Context())

    def inject(self) -> TraceContext | None:
        place = trace.get_current_span().get_span_context()
        if not place.is_valid:
            return None
        state = place.trace_state.to_header() if place.trace_state else ""
        parent = f"00-{place.trace_id:032x}-{place.span_id:016x}-{place.trace_flags:02x}"
        return TraceContext(parent, state if len(state) <= MAX_STATE else "")

    def ids(self) -> tuple[str, str] | None:
        place = trace.get_current_span().get_span_context()
        return (f"{place.trace_id:032x}", f"{place.span_id:016x}") if place.is_valid else None


class _Recorded:
    """A span of OpenTelemetry."""

    __slots__ = ("_context", "_is_open", "_span")

    def __init__(self, span: OtelSpan) -> None:
        self._span = span
        self._context: Context | None = None
        self._is_open = True

    def active(self) -> _Active:
        return _Active(trace.set_span_in_context(self._span))

    def note(self, **values: Value | None) -> None:
        for word, value in values.items():
            if value is not None:
                cut = value[:MAX_TEXT] if isinstance(value, str) else value
                self._span.set_attribute(ATTRIBUTES[word], cut)

    def fail(self, kind: str, *, is_fault: bool = True) -> None:
        self._span.set_attribute(ERROR, kind)
        if is_fault:
            # Without a description, which would be somebody's words.
            self._span.set_status(StatusCode.ERROR)

    def end(self) -> None:
        if self._is_open:
            self._is_open = False
            self._span.end()


class _Active:
    """A block whose current span is another one."""

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


# Ids of spans that go on in another process


#: The id of the span that is being made, if it is not a random one.
_chosen: ContextVar[int] = ContextVar("errands_span_id", default=0)


def _span_id(trace_id: str, identity: str) -> int:
    digest = hashlib.blake2b(f"{trace_id}\n{identity}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) or 1


def _choose_ids(tracer: Any) -> bool:
    """Have the tracer of errands use the ids that are chosen for spans; return whether it can."""
    if isinstance(generator := getattr(tracer, "id_generator", None), _ChosenIds):
        return True
    if not hasattr(generator, "generate_span_id"):
        return False  # not the SDK's: spans that go on in another process have an id in each
    tracer.id_generator = _ChosenIds(generator)
    return True


class _ChosenIds:
    """The id generator of a tracer, apart from spans whose id is chosen."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def generate_span_id(self) -> int:
        chosen: int = _chosen.get() or self._generator.generate_span_id()
        return chosen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)
