"""The transport port: how an operation reaches an agent. Envelopes and codecs stay below it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, NamedTuple, Protocol

from errands.model.base import Model
from errands.model.core import StreamResponse
from errands.operations import Operation


class Received(NamedTuple):
    """One event of a stream as it arrived."""

    response: StreamResponse
    event_id: str | None = None
    #: It stands for events that the agent no longer keeps.
    gap: bool = False


class TransientError(Exception):
    """A failure that may pass by itself. It never leaves the client: callers get the `cause` or its meaning.

    `reached` says whether the agent may have received and accepted the request.
    """

    def __init__(self, cause: Exception, *, reached: bool, retry_after: float | None = None) -> None:
        super().__init__(str(cause) or type(cause).__name__)
        self.cause = cause
        self.reached = reached
        #: Seconds the agent asked to wait.
        self.retry_after = retry_after


class Transport(Protocol):
    """One interface of an agent.

    Both methods raise `TransientError`, the agent's own errors as `errands.errors.A2AError`, and
    `ProtocolError` for answers that are not A2A.
    """

    #: The name of the binding, such as "jsonrpc".
    protocol: str

    async def call(self, operation: Operation, request: Model, *, read_timeout: float | None) -> Any:
        """The operation's response; `read_timeout` None waits as long as it takes."""
        ...

    def stream(
        self,
        operation: Operation,
        request: Model,
        *,
        last_event_id: str | None,
        read_timeout: float | None,
    ) -> AsyncGenerator[Received, None]:
        """The operation's events until the agent closes the stream; `read_timeout` bounds the silence."""
        ...

    async def close(self) -> None:
        """Lets go of what belongs to this interface alone."""
        ...
