"""A connection to one agent: its card, one transport, and what every call has in common."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import httpx
import msgspec

from errands.client.errors import (
    AgentCapabilityError,
    AgentTimeoutError,
    AgentUnreachableError,
    AnswerLostError,
)
from errands.client.retry import RetryPolicy
from errands.client.transport import Received, TransientError, Transport
from errands.errors import A2AError, UnsupportedOperationError
from errands.model.base import Model
from errands.model.card import AgentCard
from errands.operations import OPERATIONS, Capability


class Session:
    """Calls operations by their names in the specification."""

    def __init__(
        self,
        card: AgentCard,
        transport: Transport,
        retry: RetryPolicy,
        *,
        version: str,
        lacks: frozenset[str] = frozenset(),
        tenant: str | None,
        timeout: float | None,
    ) -> None:
        self.card = card
        self.transport = transport
        #: The version of the protocol that the transport speaks.
        self.version = version
        self.retry = retry
        self.timeout = timeout
        self._lacks = lacks
        self._tenant = tenant

    def require(self, capability: Capability) -> None:
        """Raises `AgentCapabilityError` unless the card offers it."""
        if not getattr(self.card.capabilities, capability):
            raise AgentCapabilityError(self.card.name, capability)

    def require_operation(self, name: str) -> None:
        """Raises `UnsupportedOperationError` unless there are words for it in what is spoken here."""
        if name in self._lacks:
            raise UnsupportedOperationError(f"{self.transport.protocol} has no {name}; ask for the task instead")

    async def call(self, name: str, request: Model, *, message_id: str | None = None) -> Any:
        """The response; retried where that is safe, within the client's timeout per try."""
        return await self.call_within(self.timeout, name, request, message_id=message_id)

    async def call_within(
        self, timeout: float | None, name: str, request: Model, *, message_id: str | None = None
    ) -> Any:
        """The same within another time per try. Raises `A2AError` and `A2AClientError`."""
        operation = OPERATIONS[name]
        if operation.capability is not None:
            self.require(operation.capability)
        addressed = self._addressed(request)

        async def attempt() -> Any:
            return await self.transport.call(operation, addressed, read_timeout=timeout)

        try:
            return await self.retry.run(attempt, idempotent=operation.idempotent)
        except TransientError as failure:
            raise final_error(failure, message_id) from failure.cause

    def stream(
        self,
        name: str,
        request: Model,
        *,
        last_event_id: str | None = None,
        idle_timeout: float | None = None,
    ) -> AsyncGenerator[Received, None]:
        """The events of one connection, as they come and without retries."""
        return self.transport.stream(
            OPERATIONS[name], self._addressed(request), last_event_id=last_event_id, read_timeout=idle_timeout
        )

    def _addressed(self, request: Model) -> Model:
        return msgspec.structs.replace(request, tenant=self._tenant) if self._tenant else request


def final_error(failure: TransientError, message_id: str | None) -> Exception:
    """What a failure that is not tried again means to the caller."""
    cause = failure.cause
    if message_id is not None and failure.reached:
        kind = AgentTimeoutError if isinstance(cause, httpx.TimeoutException) else AnswerLostError
        return kind(f"the answer did not arrive ({_describe(cause)})", message_id=message_id)
    if isinstance(cause, A2AError):
        return cause
    if not failure.reached:
        return AgentUnreachableError(f"the agent could not be reached ({_describe(cause)})")
    if isinstance(cause, httpx.TimeoutException):
        return AgentTimeoutError(f"the agent did not answer in time ({_describe(cause)})")
    return AnswerLostError(f"the connection broke before the answer came ({_describe(cause)})")


def _describe(cause: Exception) -> str:
    return f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
