"""What clients are shown of a task as it goes on: batches of events until the task has settled or ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from typing import Any

import msgspec

from errands.engines.base import Engine
from errands.errors import UnavailableError
from errands.lifecycle import trim
from errands.model.base import UNREADABLE, encode
from errands.model.core import (
    COMPLETED,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)
from errands.model.log import STREAMED_KINDS, Event, Scope, StoredTask
from errands.runtime.call import CallContext, EventStream, StreamItem

_STOPPING = "The server is shutting down; subscribe to the task to see how it goes on"

_decode = msgspec.json.Decoder(StreamResponse).decode


class Streams:
    def __init__(self, engine: Engine, keep_alive: float) -> None:
        self._engine = engine
        self._keep_alive = keep_alive

    def follow(
        self,
        stored: StoredTask,
        call: CallContext,
        after: int,
        first: list[StreamItem],
        until: frozenset[TaskState],
        *,
        caught_up: bool = False,
        waits: bool = False,
        chooses: bool = False,
    ) -> EventStream:
        """`first`, then what happens after version `after`, until the task is in one of the states `until`.

        `waits` says that the state it is in now is not yet the one that is meant, and `chooses` that a task which the
        agent publishes first is to stand for ours.
        """
        reader = _Reader(self._engine, stored.task.id, call.scope, after, caught_up=caught_up)
        reader.has_task, reader.has_begun = after > 0 and not chooses, bool(first)
        task_id, is_over_at_once = stored.task.id, stored.state in until and after >= stored.version and not waits
        # A stream may last for days: it keeps neither the task nor what it has shown of it.
        unshown = [first] if first else []

        async def batches() -> AsyncIterator[list[StreamItem]]:
            try:
                if unshown:
                    yield unshown.pop()
                if is_over_at_once:
                    return
                while not reader.has_left:
                    while (events := await reader.next(self._keep_alive)) is not None:
                        try:
                            items, is_over = reader.shown(events), _settles(events, until)
                        except UNREADABLE:
                            reader.pass_over()
                            break
                        if items or not events:
                            yield items
                        if is_over:
                            return
                    if not reader.has_gap:
                        break
                    current = await self._engine.load(task_id, call.scope)
                    yield reader.shown_after_gap(current)
                    if current.state in until:
                        return
                if not reader.has_left:
                    # Ended like any other, the stream would be taken for a task that has come to its end.
                    raise UnavailableError(_STOPPING)
            finally:
                reader.leave()

        return EventStream(batches(), reader.leave)


class _Reader:
    """Somebody who follows a task, and how far they have come."""

    #: Whether a task was shown in this stream, or in one that this one goes on with.
    has_task = False
    #: Whether anything was shown in this stream.
    has_begun = False
    has_left = False
    _passed_over = False

    def __init__(self, engine: Engine, task_id: str, scope: Scope, position: int, *, caught_up: bool) -> None:
        self._engine = engine
        self._place = task_id, scope
        #: The version up to which everything was shown.
        self._position = position
        self._subscription = engine.subscribe(*self._place, position, caught_up=caught_up)

    def leave(self) -> None:
        self.has_left = True
        self._subscription.close()

    def next(self, timeout: float) -> Coroutine[Any, Any, list[Event] | None]:
        return self._subscription.next(timeout)

    @property
    def has_gap(self) -> bool:
        return self._passed_over or self._subscription.gap

    def pass_over(self) -> None:
        """Treats events that cannot be read like those that are gone."""
        self._subscription.close()
        self._passed_over = True

    def shown(self, events: list[Event]) -> list[StreamItem]:
        """What a stream shows of these events. A task comes first or not at all: clients add updates to it."""
        items = [StreamItem(event.version, event.data) for event in events if event.kind in STREAMED_KINDS]
        if items:
            if "task" in [event.kind for event in events]:
                items = self._with_one_task(events)
            self.has_task = self.has_begun = True
            # A sign of life has no place in the log.
            self._position = events[-1].version or self._position
        return items

    def _with_one_task(self, events: list[Event]) -> list[StreamItem]:
        items: list[StreamItem] = []
        for event in events:
            if event.kind in STREAMED_KINDS:
                is_known = event.kind == "task" and (self.has_task or bool(items))
                items.append(StreamItem(event.version, _as_update(_task_in(event.data)) if is_known else event.data))
        return items

    def shown_after_gap(self, current: StoredTask) -> list[StreamItem]:
        """The task as it stands, in place of events that are gone; what happens from now on is next."""
        items = _as_updates(current, self._position) if self.has_begun else [snapshot(current)]
        self.has_task = self.has_begun = True
        self._position = current.version
        self._passed_over = False
        if not self.has_left:
            self._subscription = self._engine.subscribe(*self._place, current.version)
        return [item._replace(gap=True) for item in items]


def trim_item(item: StreamItem, history_length: int) -> StreamItem:
    """A task in a stream with so many messages at most."""
    response = _decode(item.data)
    if response.task is None:
        return item
    trimmed = StreamResponse(task=trim(response.task, history_length))
    return item._replace(data=encode(trimmed))


def snapshot(stored: StoredTask) -> StreamItem:
    """The task as it stands."""
    return StreamItem(stored.version, encode(StreamResponse(task=stored.task)))


def answer(stored: StoredTask) -> StreamItem:
    """The task as it stands, or the message that is the whole answer."""
    if not stored.head.direct or stored.state is not COMPLETED:
        return snapshot(stored)
    return StreamItem(stored.version, encode(StreamResponse(message=stored.task.status.message)))


def _task_in(data: bytes) -> Task:
    task = _decode(data).task
    if task is None:
        raise ValueError("the event is not a task")
    return task


def _as_update(task: Task) -> bytes:
    """The status of a task that a stream has shown already; its artifacts are events of their own."""
    update = TaskStatusUpdateEvent(
        task_id=task.id, context_id=task.context_id or "", status=task.status, metadata=task.metadata
    )
    return encode(StreamResponse(status_update=update))


def _as_updates(stored: StoredTask, position: int) -> list[StreamItem]:
    """The task as it stands, for a stream that has shown it at `position`: its artifacts whole, then its status.

    Only the last of them moves the reader on: one who is cut off in between has to have all of it again.
    """
    task = stored.task
    artifacts = [
        TaskArtifactUpdateEvent(task_id=task.id, context_id=task.context_id or "", artifact=artifact)
        for artifact in task.artifacts or ()
    ]
    return [
        *(StreamItem(position, encode(StreamResponse(artifact_update=update))) for update in artifacts),
        StreamItem(stored.version, _as_update(task)),
    ]


def _settles(events: list[Event], until: frozenset[TaskState]) -> bool:
    """Whether the last status among these events ends the stream."""
    for event in reversed(events):
        if event.kind in ("status", "task"):
            update = _decode(event.data)
            changed = update.status_update or update.task
            return changed is not None and changed.status.state in until
    return False
