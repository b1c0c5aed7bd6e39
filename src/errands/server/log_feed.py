"""The log of a task for operators: events of every kind, page by page, or as a stream that can be resumed.

An event is shown as `{"version", "kind", "at", "lease", "data"}`. Very large data is left out; `bytes` is its size.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

import msgspec

from errands.engines.base import Engine
from errands.errors import InvalidParamsError, UnavailableError
from errands.model.base import UNREADABLE, encode
from errands.model.core import TERMINAL_STATES, StreamResponse
from errands.model.log import Event, EventKind, LogSlice, StoredTask
from errands.runtime.blobs import with_addresses
from errands.runtime.streams import EventStream, StreamItem

#: Bytes of the largest event whose data is shown.
MAX_DATA = 512 * 1024
#: Events that are read for one page, whatever its filter.
MOST_READ = 20_000
#: The kinds of events of their own tasks that owners may read. The others show how the agent works inside.
OWNER_KINDS: frozenset[EventKind] = frozenset({"task", "status", "artifact", "message"})

_STOPPING = "The server is shutting down; connect again with Last-Event-ID to continue"
_decode = msgspec.json.Decoder(StreamResponse).decode


def shown_event(event: Event, *, with_worker: bool = True) -> dict[str, Any]:
    """Return an event as it is shown. The name of a worker, which contains that of its machine, is for operators."""
    lease = event.lease
    fields: dict[str, Any] = {
        "version": event.version,
        "kind": event.kind,
        "at": event.at,
        "lease": lease
        and {
            "attempt": lease.attempt,
            "worker": lease.worker if with_worker else "",
            "until": lease.until,
            "cause": lease.cause,
        },
        "data": None,
    }
    if len(event.data) > MAX_DATA:
        return fields | {"bytes": len(event.data), "leftOut": True}
    try:
        # Data that cannot be read must not make the answer unreadable.
        msgspec.json.decode(event.data)
        fields["data"] = msgspec.Raw(event.data)
    except UNREADABLE:
        fields |= {"bytes": len(event.data), "unreadable": True}
    return fields


def kinds_of(query: Mapping[str, str]) -> frozenset[EventKind]:
    """Return the kinds in a query; an empty result means all. Raises `InvalidParamsError`."""
    names = list(filter(None, query.get("kind", "").split(",")))
    try:
        return frozenset(msgspec.convert(names, list[EventKind]))
    except msgspec.ValidationError:
        raise InvalidParamsError(
            "kind must be one or more of task, message, request, status, artifact, cancel, record", field="kind"
        ) from None


class EventPage(NamedTuple):
    """A part of a log. `next` is the version after which the next page begins; None at the end of the log."""

    events: list[dict[str, Any]]
    gap: bool
    next: int | None


class LogFeed:
    """Reads the log of one task for an operator, or for its owner, who sees fewer kinds of events.

    With `kinds`, only these kinds of events are shown. Addresses of files begin with `file_prefix`.
    """

    def __init__(
        self,
        engine: Engine,
        stored: StoredTask,
        *,
        is_operator: bool,
        kinds: frozenset[EventKind] = frozenset(),
        file_prefix: str = "",
    ) -> None:
        self._engine = engine
        self._stored = stored
        self._is_operator = is_operator
        self._kinds = kinds
        self._file_prefix = file_prefix

    def _may_see(self, event: Event) -> bool:
        return (self._is_operator or event.kind in OWNER_KINDS) and (not self._kinds or event.kind in self._kinds)

    def _shown(self, event: Event) -> dict[str, Any]:
        if self._file_prefix:
            event = msgspec.structs.replace(event, data=with_addresses(event.data, self._file_prefix))
        return shown_event(event, with_worker=self._is_operator)

    async def page(self, after: int, before: int | None, limit: int) -> EventPage:
        """Return up to `limit` events between two versions, fewer if they are large."""
        shown: list[dict[str, Any]] = []
        gap, read, size, end = False, 0, 0, after
        while True:
            part = await self._engine.read(self._stored.task.id, self._stored.scope, end, 1000)
            gap = gap or part.gap
            for event in part.events:
                if before is not None and event.version >= before:
                    return EventPage(shown, gap, None)
                end, read = event.version, read + 1
                if self._may_see(event):
                    shown.append(self._shown(event))
                    size += min(len(event.data), MAX_DATA)
                if len(shown) >= limit or size >= MAX_DATA or read >= MOST_READ:
                    return EventPage(shown, gap, end)
            if not part.events:
                return EventPage(shown, gap, None)
            await asyncio.sleep(0)  # an engine in memory does not wait

    # Streams

    def stream(self, after: int, keep_alive: float) -> EventStream:
        """Return a stream of the events after a version until the task has ended, each exactly once."""
        stored = self._stored
        follower = _Follower(self._engine, stored, after)

        async def batches() -> AsyncIterator[list[StreamItem]]:
            is_over = stored.state in TERMINAL_STATES and after >= stored.version
            try:
                while not is_over:
                    events, gap = await follower.next(keep_alive)
                    items = [
                        StreamItem(event.version, encode(self._shown(event)))
                        for event in events
                        if self._may_see(event)
                    ]
                    if gap is not None:
                        first = {"version": gap, "after": after, "before": gap + 1}
                        items.insert(0, StreamItem(gap, encode(first), gap=True))
                    yield items
                    is_over = follower.has_ended or _ends(events)
                    # A damaged task has failed even if its log does not say so.
                    is_over = is_over or (stored.state in TERMINAL_STATES and follower.position >= stored.version)
            finally:
                follower.close()

        return EventStream(batches(), follower.close)


class _Follower:
    """Follows a log, past events that are no longer kept."""

    def __init__(self, engine: Engine, stored: StoredTask, after: int) -> None:
        self._engine = engine
        self._stored = stored
        self.position = after
        self._is_closed = False
        #: Whether nothing more will come.
        self.has_ended = False
        self._subscription = engine.subscribe(stored.task.id, stored.scope, after)

    def close(self) -> None:
        self._is_closed = True
        self._subscription.close()

    async def next(self, timeout: float) -> tuple[list[Event], int | None]:
        """Return the next events, if any, and the version of the last event that is no longer kept, if any."""
        events = await self._subscription.next(timeout)
        if events is not None:
            self.position = max([self.position, *(event.version for event in events)])
            return events, None
        if self._is_closed:
            self.has_ended = True
            return [], None
        if not self._subscription.gap:
            # Without an error, clients would mistake the end of the stream for the end of the task.
            raise UnavailableError(_STOPPING)
        part = await self._read()
        gap = None
        if part.gap:
            gap = part.events[0].version - 1 if part.events else self._stored.version
        end = part.events[-1].version if part.events else gap
        self.position = max(self.position, end or 0)
        if not self._is_closed:
            self._subscription = self._engine.subscribe(self._stored.task.id, self._stored.scope, self.position)
        return part.events, gap

    async def _read(self) -> LogSlice:
        part = await self._engine.read(self._stored.task.id, self._stored.scope, self.position)
        if not part.events:
            self._stored = await self._engine.load_head(self._stored.task.id, self._stored.scope)
        return part


def _ends(events: list[Event]) -> bool:
    """Return whether the task ended with one of these events."""
    for event in reversed(events):
        if event.kind in ("status", "task") and event.version:
            try:
                update = _decode(event.data)
            except UNREADABLE:
                continue
            changed = update.status_update or update.task
            return changed is not None and changed.status.state in TERMINAL_STATES
    return False
