"""Subscriptions of this process to the logs of tasks, and waits for their states: shared by every engine.

A publisher never waits. Each subscription has a bounded buffer; one that overflows is emptied, and its reader returns
to the log. Versions without gaps make this safe: an event is handed out only when it is the next one, so whatever was
missed, reordered or published twice is simply read from the log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from itertools import islice
from typing import Any, Self

import msgspec

from errands.errors import StorageError
from errands.model.base import UNREADABLE
from errands.model.core import StreamResponse, TaskState
from errands.model.log import STREAMED_KINDS, Event, LogSlice, Scope, StoredTask

#: Events a subscriber may lag behind before it reads the log again.
BUFFER_SIZE = 1000
#: Bytes of events that wait for a subscriber before it reads the log again.
BUFFER_BYTES = 1024 * 1024
#: Events read from the log at a time.
READ_SIZE = 1000
#: Bytes of events after which such a read takes no further event. A reader whose client does not read holds as many.
READ_BYTES = 256 * 1024
#: Subscriptions of crowded tasks that are woken in one turn of the event loop, and what a crowd is for one task.
#: Writing to a thousand streams at once would keep all other requests waiting.
CROWD = 32

_decode = msgspec.json.Decoder(StreamResponse).decode

Read = Callable[[int], Awaitable[LogSlice]]
Load = Callable[[str, Scope], Awaitable[StoredTask]]


class Subscription:
    """A reader's position in one task's log. Iterate over it for batches of events; close it when done.

    It is fed from memory after each commit, and from the log when that is not enough.
    """

    #: True when the next events are no longer kept, or cannot be read. The reader must start from a snapshot.
    gap = False

    def __init__(self, subscribers: Subscribers, task_id: str, after: int, read: Read, caught_up: bool) -> None:
        self._subscribers = subscribers
        self._task_id = task_id
        self._cursor = after
        self._read = read
        self._buffer: deque[Event] = deque()
        self._buffered_bytes = 0
        #: Whether the log may hold events that were not published here.
        self._behind = not caught_up
        self._closed = False
        self._ending = False
        self._waiter: asyncio.Future[bool] | None = None
        #: An event that is shown without being in the log.
        self._told: Event | None = None

    def feed(self, events: Sequence[Event]) -> None:
        """Take events that are durable. `wake` shows them to the reader."""
        buffer = self._buffer
        if not self._behind:
            # Another process may have written in between: what it wrote is only in the log.
            follows = True
            if not buffer:
                self._buffered_bytes = 0
            else:
                follows = events[0].version == buffer[-1].version + 1 and self._buffered_bytes < BUFFER_BYTES
            if not follows or len(buffer) + len(events) > BUFFER_SIZE:
                buffer.clear()
                self._behind = True
            else:
                buffer.extend(events)
                self._buffered_bytes += sum([len(event.data) for event in events])

    def tell(self, event: Event) -> None:
        """Show an event that is not in the log; of several that the reader has not seen, the last."""
        self._told = event
        self.wake()

    def nudge(self) -> None:
        """Note that another process may have written: the reader looks into the log when it is woken."""
        self._behind = True

    def end(self) -> None:
        """Close the subscription once its reader has what was published."""
        self._ending = True
        self.wake()

    def close(self) -> None:
        """End the subscription; a pending `next` returns None."""
        if not self._closed:
            self._closed = True
            self._subscribers.remove(self._task_id, self)
            self.wake()

    async def __aiter__(self) -> AsyncIterator[list[Event]]:
        while (events := await self.next()) is not None:
            if events:
                yield events

    async def next(self, timeout: float | None = None) -> list[Event] | None:
        """Return the next events in order, each exactly once; an empty list when `timeout` seconds passed without any;
        None after `close`.
        """
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while not self._closed:
            events = self._from_buffer()
            if not events and self._behind:
                events = await self._from_log()
            if events:
                self._cursor = events[-1].version
            if self._told is not None:
                # First, because the events after it may end the stream.
                events, self._told = [self._told, *events], None
            if events:
                return events
            if self._ending:
                self.close()
            elif not self._behind and not self._buffer and not await self._wait(deadline):
                break
        return None if self._closed else []

    def _from_buffer(self) -> list[Event]:
        buffer = self._buffer
        while buffer and buffer[0].version <= self._cursor:
            buffer.popleft()
        if not buffer:
            return []
        if buffer[0].version != self._cursor + 1:
            buffer.clear()
            self._behind = True
            return []
        events = list(buffer)
        buffer.clear()
        return events

    async def _from_log(self) -> list[Event]:
        # Cleared before reading, so that what is published in between goes to the buffer and is not lost.
        self._behind = False
        try:
            log = await self._read(self._cursor)
        except BaseException as error:
            self._behind = True
            if self._ending and isinstance(error, StorageError):
                # The store was closed before its readers could look.
                return []
            raise
        self.gap = log.gap
        try:
            # A damaged event would end every stream that reaches it.
            for event in log.events:
                if event.kind in STREAMED_KINDS:
                    _decode(event.data)
        except UNREADABLE:
            self.gap = True
        if self.gap:
            self.close()
            return []
        self._behind = self._behind or may_go_on(log.events)
        return log.events

    def wake(self, has_news: bool = True) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(has_news)

    async def _wait(self, deadline: float | None) -> bool:
        if self._closed or self._ending:
            # It was closed while the log was read, when no waiter could be woken.
            return not self._closed
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if deadline is None else loop.call_at(deadline, self.wake, False)
        try:
            return await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()


def may_go_on(events: Sequence[Event]) -> bool:
    """Return whether a read of the log that gave these events may have stopped before its end."""
    return len(events) >= READ_SIZE or sum([len(event.data) for event in events]) >= READ_BYTES


class Expectation:
    """A wait for a task to reach one of some states, registered before the change that leads there.

    A context manager; leaving it removes the wait. The writer of that change passes the task along when it has it.
    """

    __slots__ = ("_abandoned", "_future", "_load", "_scope", "_subscribers", "_task_id", "states")

    def __init__(
        self, subscribers: Subscribers, task_id: str, scope: Scope, states: frozenset[TaskState], load: Load
    ) -> None:
        self._subscribers = subscribers
        self._task_id = task_id
        self._scope = scope
        self._load = load
        self.states = states
        self._abandoned = False
        self._future: asyncio.Future[StoredTask | None] = asyncio.get_running_loop().create_future()

    def settle(self, stored: StoredTask | None) -> None:
        if self._future.done():
            # No wait has seen the last change: the newest one counts.
            self._future = asyncio.get_running_loop().create_future()
        self._future.set_result(stored)

    def abandon(self) -> None:
        self._abandoned = True
        self.settle(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._subscribers.dismiss(self._task_id, self)

    def wait(self, after: int, timeout: float | None) -> Coroutine[Any, Any, StoredTask | None]:
        """Return the task once it is in one of the states at a version above `after`; None when `timeout` passed or
        `EventBus.disconnect` was called.
        """
        return self._wait(after) if timeout is None else self._wait_for(timeout, after)

    async def _wait_for(self, timeout: float, after: int) -> StoredTask | None:
        try:
            async with asyncio.timeout(timeout):
                return await self._wait(after)
        except TimeoutError:
            return None

    async def _wait(self, after: int) -> StoredTask | None:
        while True:
            if self._future.cancelled():
                self._future = asyncio.get_running_loop().create_future()
            future = self._future
            stored = await future
            if self._abandoned:
                return None
            if stored is None:
                # Renewed before looking, so that no change falls between the look and the next wait.
                self._renew(future)
                stored = await self._load(self._task_id, self._scope)
            if stored.head.version > after and stored.head.state in self.states:
                return stored
            self._renew(future)

    def _renew(self, seen: asyncio.Future[StoredTask | None]) -> None:
        if self._future is seen:
            self._future = asyncio.get_running_loop().create_future()


class Subscribers:
    """The subscriptions and waits of this process, by task."""

    def __init__(self) -> None:
        self._subscriptions: dict[str, set[Subscription]] = {}
        self._waiters: dict[str, list[Expectation]] = {}
        #: Subscriptions of crowded tasks that have news and were not woken yet, in order.
        self._asleep: dict[Subscription, None] = {}

    def subscribe(self, task_id: str, after: int, read: Read, caught_up: bool) -> Subscription:
        subscription = Subscription(self, task_id, after, read, caught_up)
        self._subscriptions.setdefault(task_id, set()).add(subscription)
        return subscription

    def remove(self, task_id: str, subscription: Subscription) -> None:
        subscriptions = self._subscriptions[task_id]
        subscriptions.remove(subscription)
        if not subscriptions:
            del self._subscriptions[task_id]

    def expect(self, task_id: str, scope: Scope, states: frozenset[TaskState], load: Load) -> Expectation:
        expectation = Expectation(self, task_id, scope, states, load)
        waiters = self._waiters.get(task_id)
        if waiters is None:
            self._waiters[task_id] = [expectation]
        else:
            waiters.append(expectation)
        return expectation

    def dismiss(self, task_id: str, expectation: Expectation) -> None:
        waiters = self._waiters.get(task_id)
        if waiters is not None and expectation in waiters:
            waiters.remove(expectation)
            if not waiters:
                del self._waiters[task_id]

    def publish(self, task_id: str, events: Sequence[Event], state: TaskState, stored: StoredTask | None) -> None:
        """Publish a durable change in this process. `stored` is the whole task, if the writer knows it."""
        subscriptions = self._subscriptions.get(task_id)
        if subscriptions and events:
            for subscription in subscriptions:
                subscription.feed(events)
            self._wake(subscriptions)
        waiters = self._waiters.get(task_id)
        if waiters:
            for waiter in waiters:
                if state in waiter.states:
                    waiter.settle(stored)

    def _wake(self, subscriptions: set[Subscription]) -> None:
        """Wake the readers of a task, those of a crowd a few at a time."""
        if len(subscriptions) <= CROWD:
            for subscription in subscriptions:
                subscription.wake()
            return
        if not self._asleep:
            asyncio.get_running_loop().call_soon(self._wake_some)
        self._asleep.update(dict.fromkeys(subscriptions))

    def _wake_some(self) -> None:
        for subscription in list(islice(self._asleep, CROWD)):
            del self._asleep[subscription]
            subscription.wake()
        if self._asleep:
            asyncio.get_running_loop().call_soon(self._wake_some)

    def tell(self, task_id: str, event: Event) -> None:
        """Show the subscribers of a task an event that is not in its log."""
        for subscription in self._subscriptions.get(task_id, ()):
            subscription.tell(event)

    def watches(self, task_id: str) -> bool:
        """Return whether a task has subscribers or waits in this process."""
        return task_id in self._waiters or task_id in self._subscriptions

    def awaits(self, task_id: str, state: TaskState) -> bool:
        """Return whether a wait in this process is for a task to be in this state."""
        return any(state in waiter.states for waiter in self._waiters.get(task_id, ()))

    def watched(self) -> list[str]:
        """Return the tasks that have subscribers or waits in this process."""
        return list({*self._subscriptions, *self._waiters})

    def count(self) -> int:
        """Return how many subscriptions are open."""
        return sum(map(len, self._subscriptions.values()))

    def nudge(self, task_ids: Iterable[str]) -> None:
        """Have the readers of these tasks look into the log: another process may have written."""
        for task_id in task_ids:
            if subscriptions := self._subscriptions.get(task_id):
                for subscription in subscriptions:
                    subscription.nudge()
                self._wake(subscriptions)
            for waiter in self._waiters.get(task_id, ()):
                waiter.settle(None)

    def close(self) -> None:
        for subscriptions in list(self._subscriptions.values()):
            for subscription in subscriptions:
                subscription.end()
        self._asleep.clear()  # all are awake, and an engine may be opened again in another event loop
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.abandon()
