"""Tracing: the port to which the parts of errands report spans, and what continues a trace in another process.

`tracer` is None until `errands.telemetry` sets it. A part checks that once, and does nothing else while it is None:

    if tracing.tracer is not None:
        ...

A trace leaves a process as a `TraceContext`: in the headers of a request, and with a message in the log.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

T = TypeVar("T")

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
#: How many traces a process begins in a second, unless it is set.
TRACES_PER_SECOND = 100.0
#: Bytes of a `tracestate` that is passed on; a longer one is dropped.
MAX_STATE = 512
#: Members of a `tracestate`, as the specification limits them.
_MAX_MEMBERS = 32

_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
#: A member of a `tracestate`: a key, which may name a tenant and a system, and a value.
_MEMBER = re.compile(
    r"(?:[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)

#: What a span is about: a request that a server performs; an operation that a client asks for, or its message to an
#: agent; a turn of an agent; a question to a model; a call of a tool; a notification to a webhook.
Kind = Literal["request", "operation", "invocation", "turn", "chat", "tool", "delivery"]
Value = str | int | float | bool | list[str]


class TraceContext(NamedTuple):
    """A place in a trace, as W3C Trace Context writes it."""

    #: Version, trace id, span id and flags.
    parent: str
    #: The `tracestate`: data that tracing systems pass on for their own use.
    state: str = ""


class TraceSpan(Protocol):
    """An operation that takes time. It is recorded when it ends."""

    @property
    def is_recorded(self) -> bool:
        """Return whether it is recorded, and not left out."""
        ...

    @property
    def captures_content(self) -> bool:
        """Return whether messages, arguments and results are to be noted."""
        ...

    def active(self) -> AbstractContextManager[object]:
        """Return a context manager that makes this the current span."""
        ...

    def note(self, **values: Value | None) -> None:
        """Add the values that are not None."""
        ...

    def fail(self, kind: str, *, is_fault: bool = True) -> None:
        """Note in one word why it failed. `is_fault=False` means that it was refused, not that something is broken."""
        ...

    def end(self) -> None:
        """Record the span. Ending it twice does nothing."""
        ...


class Tracer(Protocol):
    """Makes spans.

    Whether a trace is recorded is decided once, where it begins: by the rate of traces, by the flag of the caller and
    by the sampler of the program. Nothing below a trace that is not recorded makes a span, in any process.
    """

    @property
    def left_out(self) -> int:
        """Return how many traces were not recorded because of the rate."""
        ...

    def limit(self, traces_per_second: float) -> None:
        """Bound the traces that begin here; and those that callers have begun, of which there may be more."""
        ...

    def accepts(self, parent: TraceContext | None) -> bool:
        """Decide whether a request is recorded, before its span is made. `parent` is where the caller was."""
        ...

    def leave_out(self, work: Coroutine[Any, Any, T], parent: TraceContext | None = None) -> Coroutine[Any, Any, T]:
        """Return work in which nothing is recorded."""
        ...

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
        """Begin a span. Its parent is the current span or another place in a trace.

        With None, a request that was accepted begins a trace. Other spans are not recorded then, because what is stored
        without a trace belongs to one that was left out.

        Spans of one trace with the same `identity` have the same id in every process, so work that another process
        continues stays in the same span. `began` is the time at which the work began, in milliseconds.
        """
        ...

    def inject(self) -> TraceContext | None:
        """Return the current place in the trace."""
        ...

    def recorded(self) -> TraceContext | None:
        """Return the current place in the trace if that is recorded."""
        ...

    def ids(self) -> tuple[str, str] | None:
        """Return the ids of the current trace and span, in hexadecimal."""
        ...


#: None: tracing is off.
tracer: Tracer | None = None


def current_ids() -> tuple[str, str] | None:
    """Return the ids of the current trace and span, in hexadecimal; None outside of a trace."""
    return None if tracer is None else tracer.ids()


def headers(context: TraceContext | None) -> dict[str, str]:
    """Return the headers that continue a trace in another process."""
    if context is None:
        return {}
    return {TRACEPARENT: context.parent, **({TRACESTATE: context.state} if context.state else {})}


def read_context(parent: str, states: Iterable[str] = ()) -> TraceContext | None:
    """Return the place in a trace that the headers of a request name; None if they are missing or malformed.

    Anyone may have written them. A `tracestate` that is malformed or too long is left out.
    """
    found = _PARENT.match(parent)
    # Later versions may add something at the end, which is not passed on.
    if found is None or (len(parent) > found.end() and (parent.startswith("00") or parent[found.end()] != "-")):
        return None
    state = ",".join(states)
    if not state:
        return TraceContext(found[0])
    members = [member.strip(" \t") for member in state.split(",", _MAX_MEMBERS)] if len(state) <= MAX_STATE else []
    members = [member for member in members if member]
    if len(members) > _MAX_MEMBERS or not all(map(_MEMBER.fullmatch, members)):
        members = []
    return TraceContext(found[0], ",".join(members))


async def within(begin: Callable[[], TraceSpan], items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """Yield the items of a generator that runs within a span. The span begins with the first item.

    What the reader does between two items does not belong to the span.
    """
    span = begin()
    try:
        while True:
            with span.active():
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
            yield item
    except GeneratorExit:
        raise
    except BaseException as error:
        span.fail(type(error).__name__)
        raise
    finally:
        await items.aclose()
        span.end()
