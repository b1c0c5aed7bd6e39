"""The streams that show clients a running task: batches of events until the task has settled or ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from errands.engines.base import Engine
from errands.errors import UnavailableError
from errands.lifecycle import trim
from errands.model import core
from errands.model.base import UNREADABLE, encode
from errands.model.log import STREAMED_KINDS, Event, StoredTask

if TYPE_CHECKING:
    from errands.runtime.submission import Submission

_STOPPING = "The server is shutting down; subscribe to the task to see how it goes on"

_decode = msgspec.json.Decoder(core.StreamResponse).decode


class StreamItem(NamedTuple):
    """One thing to send: `data` is a v1.0 StreamResponse in JSON. `gap` says that events before it are gone.

    `version` is its position in the log, or 0 if it is not in the log.
    """

    version: int
    data: bytes
    gap: bool = False


class EventStream:
    """What a streaming operation returns: batches of items until it is over. An empty batch shows that it is alive."""

    def __init__(self, batches: AsyncIterator[list[StreamItem]], close: Callable[[], None]) -> None:
        self._batches = batches
        #: Ends the stream from outside, for example when the client has disconnected.
        self.close = close

    def on_close(self, call: Callable[[], None]) -> None:
        """Have `call` called when the stream is closed. The reader of a stream closes it."""
        close = self.close

        def close_and_call() -> None:
            close()
            call()

        self.close = close_and_call

    def __aiter__(self) -> AsyncIterator[list[StreamItem]]:
        return self._batches


class Streams:
    """Makes the event streams of one agent."""

    def __init__(self, engine: Engine, keep_alive: float) -> None:
        self._engine = engine
        self._keep_alive = keep_alive

    def follow(
        self, stored: StoredTask, until: frozenset[core.TaskState], first: list[StreamItem], after: int | None = None
    ) -> EventStream:
        """Show `first`, then what happens after version `after`, until the task is in one of the states `until`.

        Without `after` it begins where `stored` is.
        """
        after = stored.version if after is None else after
        reader = _Reader(self._engine, stored, after)
        reader.has_begun = bool(first)
        return self._stream(reader, until, first, is_over=stored.state in until and after >= stored.version)

    def follow_submission(self, submission: Submission, history_length: int | None) -> EventStream:
        """Show the task of a message that was just submitted, and what happens until it has settled."""
        # The events of a new task, or the task that the message went to.
        first = [
            StreamItem(version, draft.data)
            for version, draft in enumerate(submission.drafts, 1)
            if draft.kind in STREAMED_KINDS
        ]
        if not submission.drafts:
            first = [_answer(submission.stored)]
        if history_length is not None:
            first = [_trim_item(item, history_length) for item in first]
        reader = _Reader(self._engine, submission.stored, submission.stored.version, caught_up=True)
        if submission.is_undecided:
            # A task that the agent publishes takes the place of ours.
            reader.has_task = False
            return self._follow_choice(reader, submission.stored, first, history_length)
        reader.has_begun = True
        return self._stream(reader, core.SETTLED_STATES, first, is_over=submission.settled)

    async def first_published(self, stored: StoredTask, timeout: float | None) -> StoredTask:
        """Return the task once the agent has published something about it, or after `timeout` seconds of silence."""
        reader = _Reader(self._engine, stored, stored.version, caught_up=True)
        try:
            while (events := await reader.next(timeout)) and not any(e.kind in STREAMED_KINDS for e in events):
                pass
        finally:
            reader.leave()
        return await self._engine.load(stored.task.id, stored.scope)

    def _stream(
        self, reader: _Reader, until: frozenset[core.TaskState], first: list[StreamItem], *, is_over: bool = False
    ) -> EventStream:
        # A stream may last for days, so it keeps neither the task nor what it has shown of it.
        unshown = [first] if first else []

        async def batches() -> AsyncIterator[list[StreamItem]]:
            try:
                if unshown:
                    yield unshown.pop()
                while not is_over and not reader.has_left:
                    while (events := await reader.next(self._keep_alive)) is not None:
                        try:
                            items, settles = reader.shown(events), _settles(events, until)
                        except UNREADABLE:
                            reader.pass_over()
                            break
                        if items or not events:
                            yield items
                        if settles:
                            return
                    if not reader.has_gap:
                        break
                    current = await reader.load()
                    yield reader.shown_after_gap(current)
                    if current.state in until:
                        return
                if not is_over and not reader.has_left:
                    # Without an error, clients would take the end of the stream for the end of the task.
                    raise UnavailableError(_STOPPING)
            finally:
                reader.leave()

        return EventStream(batches(), reader.leave)

    def _follow_choice(
        self, reader: _Reader, stored: StoredTask, first: list[StreamItem], history_length: int | None
    ) -> EventStream:
        """Hold our task back until the agent has published something, which may be the whole answer."""
        stream = self._stream(reader, core.SETTLED_STATES, [])
        task_id, scope = stored.task.id, stored.scope

        async def chosen(batch: list[StreamItem]) -> list[StreamItem]:
            response = _decode(batch[0].data)
            if response.task is not None:
                return batch
            if response.status_update is not None and response.status_update.status.state is core.COMPLETED:
                current = await self._engine.load(task_id, scope)
                if current.head.direct:
                    return [_answer(current)]
            return [*first, *batch]

        async def batches() -> AsyncIterator[list[StreamItem]]:
            is_held = True
            try:
                async for batch in stream:
                    if history_length is not None:
                        batch = [_trim_item(item, history_length) for item in batch]
                    if is_held and batch:
                        batch, is_held = await chosen(batch), False
                        first.clear()
                    yield batch
            except UnavailableError:
                # The server stops before the agent has published anything.
                if is_held:
                    yield first
                raise
            finally:
                stream.close()

        return EventStream(batches(), stream.close)


class _Reader:
    """A reader of one task's log, and how far it has come."""

    def __init__(self, engine: Engine, stored: StoredTask, position: int, *, caught_up: bool = False) -> None:
        self._engine = engine
        self._task_id, self._scope = stored.task.id, stored.scope
        #: The version up to which everything was shown.
        self._position = position
        #: Whether a task was shown in this stream, or in one that this one goes on with.
        self.has_task = position > 0
        #: Whether anything was shown in this stream.
        self.has_begun = False
        self.has_left = False
        self._passed_over = False
        self._subscription = engine.subscribe(self._task_id, self._scope, position, caught_up=caught_up)

    def leave(self) -> None:
        self.has_left = True
        self._subscription.close()

    def next(self, timeout: float | None) -> Coroutine[Any, Any, list[Event] | None]:
        return self._subscription.next(timeout)

    def load(self) -> Coroutine[Any, Any, StoredTask]:
        return self._engine.load(self._task_id, self._scope)

    @property
    def has_gap(self) -> bool:
        return self._passed_over or self._subscription.gap

    def pass_over(self) -> None:
        """Treat events that cannot be read like those that are gone."""
        self._subscription.close()
        self._passed_over = True

    def shown(self, events: list[Event]) -> list[StreamItem]:
        """Return what a stream shows of these events. A task comes first or not at all: clients add updates to it."""
        items = [StreamItem(event.version, event.data) for event in events if event.kind in STREAMED_KINDS]
        if items:
            if "task" in [event.kind for event in events]:
                streamed = (event for event in events if event.kind in STREAMED_KINDS)
                for number, event in enumerate(streamed):
                    if event.kind == "task" and (self.has_task or number):
                        task = _decode(event.data).task
                        if task is None:
                            raise ValueError("the event is not a task")
                        items[number] = StreamItem(event.version, _as_update(task))
            self.has_task = self.has_begun = True
            # An event that is not stored has no version.
            self._position = events[-1].version or self._position
        return items

    def shown_after_gap(self, current: StoredTask) -> list[StreamItem]:
        """Return the task as it is now, in place of events that are gone, and go on from there."""
        items = [snapshot(current)]
        if self.has_begun:
            # The complete artifacts, then the status. Only the last item has the new version: a client that is cut off
            # in between has to get all of it again.
            task_id, context_id = current.task.id, current.task.context_id or ""
            items = [
                StreamItem(self._position, encode(core.StreamResponse(artifact_update=update)))
                for artifact in current.task.artifacts or ()
                for update in [core.TaskArtifactUpdateEvent(task_id, context_id, artifact)]
            ]
            items.append(StreamItem(current.version, _as_update(current.task)))
        self.has_task = self.has_begun = True
        self._position = current.version
        self._passed_over = False
        if not self.has_left:
            self._subscription = self._engine.subscribe(self._task_id, self._scope, current.version)
        return [item._replace(gap=True) for item in items]


def snapshot(stored: StoredTask) -> StreamItem:
    """Return the task as it is now."""
    return StreamItem(stored.version, encode(core.StreamResponse(task=stored.task)))


def _answer(stored: StoredTask) -> StreamItem:
    """Return the task as it is now, or the message that is the whole answer."""
    if not stored.head.direct or stored.state is not core.COMPLETED:
        return snapshot(stored)
    return StreamItem(stored.version, encode(core.StreamResponse(message=stored.task.status.message)))


def _trim_item(item: StreamItem, history_length: int) -> StreamItem:
    response = _decode(item.data)
    if response.task is None:
        return item
    return item._replace(data=encode(core.StreamResponse(task=trim(response.task, history_length))))


def _as_update(task: core.Task) -> bytes:
    """Return the status of a task that a stream has shown already; its artifacts are separate events."""
    update = core.TaskStatusUpdateEvent(
        task_id=task.id, context_id=task.context_id or "", status=task.status, metadata=task.metadata
    )
    return encode(core.StreamResponse(status_update=update))


def _settles(events: list[Event], until: frozenset[core.TaskState]) -> bool:
    """Return whether the last status among these events ends the stream."""
    for event in reversed(events):
        if event.kind in ("status", "task"):
            update = _decode(event.data)
            changed = update.status_update or update.task
            return changed is not None and changed.status.state in until
    return False
