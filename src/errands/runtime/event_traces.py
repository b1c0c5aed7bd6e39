"""The traces that the events of tasks belong to: each to that of the message that its turn is about."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from errands.engines.base import Engine
from errands.model.base import UNREADABLE
from errands.model.log import Event, RequestOptions, Scope
from errands.tracing import TraceContext

#: Tasks whose traces are remembered.
MAX_TASKS = 10_000

_decode = msgspec.json.Decoder(RequestOptions).decode


class EventTraces:
    """Finds the traces of events in the log, and remembers how far it has read."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: By task: the version up to which its log was read, and the trace there.
        self._known: OrderedDict[str, tuple[int, TraceContext | None]] = OrderedDict()

    async def traces_of(self, task_id: str, scope: Scope, events: Sequence[Event]) -> dict[int, TraceContext]:
        """Return the traces of events that were read from the log, by version. Raise `TaskNotFoundError`."""
        if not events:
            return {}
        version, trace = self._known.get(task_id, (0, None))
        if version >= events[0].version:
            version, trace = 0, None  # another webhook of the task is further
        while version < events[0].version - 1:
            before = (await self._engine.read(task_id, scope, version)).events
            before = [event for event in before if event.version < events[0].version]
            if not before:
                break
            version, trace = before[-1].version, _last_trace(before) or trace
        # The message that creates a task comes right after the event that shows the task.
        first = trace or next(filter(None, map(_trace_in, events)), None)
        found: dict[int, TraceContext] = {}
        for event in events:
            trace = _trace_in(event) or trace
            if (belongs := trace or first) is not None:
                found[event.version] = belongs
        self._known[task_id] = events[-1].version, trace
        self._known.move_to_end(task_id)
        if len(self._known) > MAX_TASKS:
            self._known.popitem(last=False)
        return found


def _last_trace(events: Sequence[Event]) -> TraceContext | None:
    return next(filter(None, map(_trace_in, reversed(events))), None)


def _trace_in(event: Event) -> TraceContext | None:
    if event.kind != "request":
        return None
    try:
        return _decode(event.data).trace
    except UNREADABLE:
        return None
