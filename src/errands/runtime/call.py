"""Who asks for an operation, and with what: made by a binding, read by the task manager."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from errands.engines.base import Engine
from errands.errors import DamagedTaskError
from errands.model.base import UNREADABLE
from errands.model.log import Event, RequestOptions, Scope, StoredTask
from errands.runtime.turn import current_position

#: Tasks whose contexts are kept at most, the newest. What another process took up is never asked for here.
MOST_TASKS = 10_000

_decode_options = msgspec.json.Decoder(RequestOptions).decode


class CallContext(msgspec.Struct):
    """The call behind an operation: whose it is, and what came with it."""

    scope: Scope = Scope()
    #: Extensions the client declared in `A2A-Extensions`.
    extensions: list[str] = []
    #: For the worker; never stored, never logged.
    request_context: dict[str, Any] = {}
    #: The version after which a subscriber wants to go on (`Last-Event-ID`).
    last_event_id: int | None = None
    #: Whether a subscription is over when the task pauses, and not only when it has ended.
    ends_at_pause: bool = False
    #: Called when a message is in the log and nothing is left but to wait for the turn's end.
    on_accepted: Callable[[], object] | None = None
    #: Whether a message with a contextId alone answers the one task of that context which waits for input.
    answers_by_context: bool = False
    #: The caller's e-mail address, if middleware knows it: the other name under which a review may ask for them.
    email: str = ""
    #: See `RequestOptions`; set by delegation and by no binding.
    parent: str = ""
    depth: int = 0


class StreamItem(NamedTuple):
    """One thing to send: `data` is a v1.0 StreamResponse in JSON. `gap` says that events before it are gone.

    `version` is its position in the log; 0: it has none.
    """

    version: int
    data: bytes
    gap: bool = False


class EventStream:
    """What a streaming operation answers: batches of items, empty ones as a sign of life, until it is over."""

    def __init__(self, batches: AsyncIterator[list[StreamItem]], close: Any) -> None:
        self._batches = batches
        #: Ends the stream from outside, such as when the client has gone.
        self.close = close

    def __aiter__(self) -> AsyncIterator[list[StreamItem]]:
        return self._batches


class WaitingContexts:
    def __init__(self) -> None:
        #: By task, then by message.
        self._contexts: dict[str, dict[str, dict[str, Any]]] = {}

    @contextmanager
    def keeping(self, task_id: str, message_id: str, request_context: dict[str, Any]) -> Iterator[None]:
        """For the commit that lets a message wait: kept from before it, since its turn may come at once."""
        # A message that is sent again finds what its first sending left, and must leave it there.
        if not request_context or message_id in self._contexts.get(task_id, ()):
            yield
            return
        self._contexts.setdefault(task_id, {})[message_id] = request_context
        if len(self._contexts) > MOST_TASKS:
            del self._contexts[next(iter(self._contexts))]
        try:
            yield
        except BaseException:
            self.take(task_id, message_id)
            raise

    def take(self, task_id: str, message_id: str) -> dict[str, Any] | None:
        """What was kept for this message, for its turn; from now on it is not kept here."""
        waiting = self._contexts.get(task_id)
        if waiting is None:
            return None
        request_context = waiting.pop(message_id, None)
        if not waiting:
            del self._contexts[task_id]
        return request_context

    def forget(self, task_id: str) -> None:
        """The task has ended, or another process runs it: nothing here will be asked for."""
        self._contexts.pop(task_id, None)


async def stored_options(engine: Engine, stored: StoredTask) -> RequestOptions:
    """What the sender asked for beside the message, from the log: after a queue or a crash."""
    current = current_message_id(stored)
    after = 0
    while True:
        log = await engine.read(stored.task.id, stored.scope, after)
        for event in log.events:
            if event.kind == "request" and (options := _read_options(event)).message_id == current:
                return options
        if not log.events:
            return RequestOptions()
        after = log.events[-1].version


def _read_options(event: Event) -> RequestOptions:
    try:
        return _decode_options(event.data)
    except UNREADABLE as error:
        raise DamagedTaskError(f"event {event.version} of its log cannot be read: {error}") from error


def current_message_id(stored: StoredTask) -> str:
    return (stored.task.history or [])[current_position(stored)].message_id
