"""Who asks for an operation, and with what: made by a binding, read by the task manager."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import msgspec

from errands.model.log import Scope


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
