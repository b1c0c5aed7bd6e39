"""A connection to one agent: the transport port, retries of what is safe to retry, and what all calls share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from errands import tracing
from errands.client.credentials import ChosenCredentials
from errands.client.errors import AgentCapabilityError, AgentTimeoutError, AgentUnreachableError, AnswerLostError
from errands.client.http_requests import RequestSecrets
from errands.errors import A2AError, AuthenticationRequiredError, UnsupportedOperationError
from errands.model.base import A2AObject
from errands.model.card import AgentCard
from errands.model.core import StreamResponse
from errands.operations import OPERATIONS, Capability, Operation

T = TypeVar("T")

#: Connections that could not be made or broke. A timeout of the answer is not among them: it has cost enough time.
RETRY_ON: tuple[type[Exception], ...] = (
    httpx.NetworkError,
    httpx.ProxyError,
    httpx.RemoteProtocolError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
)
#: How many times more failures in a row a stream survives than a call: with the defaults, half a minute of them.
STREAM_PATIENCE = 3
#: No single wait is longer; if an agent asks for more, its error is passed on to the caller.
LONGEST_WAIT = 60.0


class Received(NamedTuple):
    """One event of a stream as it arrived."""

    response: StreamResponse
    event_id: str | None = None
    #: It replaces events that the agent no longer keeps.
    gap: bool = False


class TransientError(Exception):
    """A failure that may pass by itself. It never leaves the client: callers get the `cause` or its meaning.

    `reached` says whether the agent may have received and accepted the request.
    """

    def __init__(self, cause: Exception, *, reached: bool, retry_after: float | None = None) -> None:
        super().__init__(str(cause) or type(cause).__name__)
        self.cause = cause
        self.reached = reached
        #: Seconds that the agent asked to wait.
        self.retry_after = retry_after


class Transport(Protocol):
    """One interface of an agent. Envelopes and codecs stay below it.

    Both methods raise `TransientError`, the agent's own errors as `errands.errors.A2AError`, and
    `ProtocolError` for answers that are not A2A.
    """

    #: The name of the binding, such as "jsonrpc".
    protocol: str

    async def call(
        self, operation: Operation, request: A2AObject, *, read_timeout: float | None, secrets: RequestSecrets = ...
    ) -> Any:
        """Return the operation's response; a `read_timeout` of None waits as long as it takes."""
        ...

    def stream(
        self,
        operation: Operation,
        request: A2AObject,
        *,
        last_event_id: str | None,
        read_timeout: float | None,
        secrets: RequestSecrets = ...,
    ) -> AsyncGenerator[Received, None]:
        """Yield the operation's events until the agent closes the stream; `read_timeout` bounds the silence."""
        ...

    async def close(self) -> None:
        """Release what belongs to this interface alone."""
        ...


@dataclass
class RetryPolicy:
    """Exponential backoff with full jitter, so that clients cut off together do not come back together."""

    max_retries: int = 3
    delay: float = 0.2
    #: The broken connections that are worth another try.
    retry_on: tuple[type[Exception], ...] = RETRY_ON
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    uniform: Callable[[float, float], float] = random.uniform

    async def run(self, attempt: Callable[[], Awaitable[T]], *, idempotent: bool) -> T:
        """Return the result of `attempt`, retried as often as is allowed and safe, or raise its last error.

        What may have reached the agent is tried again only if it is `idempotent`.
        """
        failures = 0
        while True:
            try:
                return await attempt()
            except TransientError as failure:
                failures += 1
                is_safe = idempotent or not failure.reached
                if not (is_safe and isinstance(failure.cause, (A2AError, *self.retry_on))):
                    raise
                if self.is_spent(failures, failure):
                    raise
                await self.pause(failures, failure)

    def is_spent(self, failures: int, failure: TransientError | None, *, streaming: bool = False) -> bool:
        """Return whether that was one failure too many, or the agent asks for too long a wait.

        A stream has more patience than a call: it would lose its place, and a redeploy takes a while.
        """
        asked = failure.retry_after if failure is not None else None
        most = self.max_retries * STREAM_PATIENCE if streaming else self.max_retries
        return failures > most or (asked is not None and asked > LONGEST_WAIT)

    async def pause(self, failures: int, failure: TransientError | None) -> None:
        """Wait before the next try; `failures` counts those in a row."""
        wait = self.uniform(0, min(LONGEST_WAIT, self.delay * 2 ** min(failures - 1, 30)))
        if failure is not None and failure.retry_after is not None:
            wait += failure.retry_after
        await self.sleep(wait)


@dataclass
class AgentSession:
    """Calls the operations of one agent by their names in the specification."""

    card: AgentCard
    transport: Transport
    retry: RetryPolicy
    #: The version of the protocol that the transport speaks.
    version: str
    tenant: str | None
    timeout: float | None
    #: The operations that the dialect does not have.
    lacks: frozenset[str] = frozenset()
    authorization: ChosenCredentials = field(default_factory=ChosenCredentials)
    #: The address of the interface.
    url: str = ""
    #: The origin of the interface, if credentials that are given for a single call must not go there.
    foreign_origin: str | None = None

    def require(self, capability: Capability) -> None:
        """Raise `AgentCapabilityError` unless the card offers the capability."""
        if not getattr(self.card.capabilities, capability):
            raise AgentCapabilityError(self.card.name, capability)

    def require_operation(self, name: str) -> None:
        """Raise `UnsupportedOperationError` unless the dialect has the operation."""
        if name in self.lacks:
            raise UnsupportedOperationError(f"{self.transport.protocol} has no {name}; ask for the task instead")

    async def call(self, name: str, request: A2AObject, *, message_id: str | None = None) -> Any:
        """Return the response; retried where that is safe, within the client's timeout per try."""
        return await self.call_within(self.timeout, name, request, message_id=message_id)

    def call_within(
        self, timeout: float | None, name: str, request: A2AObject, *, message_id: str | None = None
    ) -> Coroutine[Any, Any, Any]:
        """Do the same within another time per try. Raises `A2AError` and `A2AClientError`."""
        called = self._call(timeout, name, request, message_id)
        # A message has a span of its own, which lasts until it is answered.
        return called if tracing.tracer is None or name == "SendMessage" else traced(self.span(name), called)

    def span(self, name: str) -> tracing.TraceSpan:
        """Begin the span of an operation, or of a message to the agent. Only while tracing is on."""
        assert tracing.tracer is not None
        sends = name in ("SendMessage", "SendStreamingMessage")
        host, port = _address(self.url)
        kind: tracing.Kind = "invocation" if sends else "operation"
        return tracing.tracer.span(
            kind,
            self.card.name if sends else name,
            operation=name,
            agent=self.card.name,
            binding=self.transport.protocol,
            protocol=self.version,
            host=host or None,
            port=port,
        )

    async def _call(self, timeout: float | None, name: str, request: A2AObject, message_id: str | None) -> Any:
        operation = OPERATIONS[name]
        if operation.capability is not None:
            self.require(operation.capability)
        addressed = self._addressed(request)

        def attempt(secrets: RequestSecrets) -> Awaitable[Any]:
            return self.transport.call(operation, addressed, read_timeout=timeout, secrets=secrets)

        try:
            return await self.retry.run(lambda: self.authorized(attempt), idempotent=operation.idempotent)
        except TransientError as failure:
            raise final_error(failure, message_id) from failure.cause

    async def authorized(self, attempt: Callable[[RequestSecrets], Awaitable[T]]) -> T:
        """Return the result of an attempt with the secrets, which is made once more with new ones if they are refused.

        Raises `AuthenticationRequiredError` that says what the card asks for.
        """
        secrets = await self.authorization.secrets()
        try:
            return await attempt(secrets)
        except AuthenticationRequiredError as refusal:
            secrets = await self._renewed(secrets, refusal)
        try:
            return await attempt(secrets)
        except AuthenticationRequiredError as refusal:
            raise self.authorization.explain(refusal) from None

    async def _renewed(self, secrets: RequestSecrets, refusal: AuthenticationRequiredError) -> RequestSecrets:
        """Return other secrets than those that the agent has refused, or raise the explained refusal."""
        fresh = await self.authorization.secrets(refused=secrets)
        if fresh == secrets:
            raise self.authorization.explain(refusal) from None
        return fresh

    async def stream(
        self, name: str, request: A2AObject, *, last_event_id: str | None = None, idle_timeout: float | None = None
    ) -> AsyncGenerator[Received, None]:
        """Yield the events of one connection as they come, without retries.

        If the secrets are refused when the stream has begun, raises `TransientError` if there are new ones.
        """
        addressed, secrets = self._addressed(request), await self.authorization.secrets()
        for is_last in (False, True):
            has_begun = False
            events = self.transport.stream(
                OPERATIONS[name], addressed, last_event_id=last_event_id, read_timeout=idle_timeout, secrets=secrets
            )
            try:
                async with aclosing(events):
                    async for received in events:
                        has_begun = True
                        yield received
                return
            except AuthenticationRequiredError as refusal:
                if is_last and not has_begun:
                    raise self.authorization.explain(refusal) from None
                secrets = await self._renewed(secrets, refusal)
                if has_begun:
                    raise TransientError(refusal, reached=True) from refusal

    def _addressed(self, request: A2AObject) -> A2AObject:
        return msgspec.structs.replace(request, tenant=self.tenant) if self.tenant else request


async def traced(span: tracing.TraceSpan, called: Coroutine[Any, Any, T]) -> T:
    """Return the result of a call that is made within a span; the span ends with it."""
    try:
        with span.active():
            return await called
    except A2AError as error:
        span.fail(error.reason)
        raise
    except BaseException as error:
        span.fail(type(error).__name__)
        raise
    finally:
        span.end()


@lru_cache(maxsize=1024)
def _address(url: str) -> tuple[str, int | None]:
    """Return host and port of an interface, whose address may have no scheme."""
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        return parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return "", None


def final_error(failure: TransientError, message_id: str | None) -> Exception:
    """Return what a failure that is not tried again means to the caller."""
    cause = failure.cause
    reason = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
    if message_id is not None and failure.reached:
        kind = AgentTimeoutError if isinstance(cause, httpx.TimeoutException) else AnswerLostError
        return kind(f"the answer did not arrive ({reason})", message_id=message_id)
    if isinstance(cause, A2AError):
        return cause
    if not failure.reached:
        return AgentUnreachableError(f"the agent could not be reached ({reason})")
    if isinstance(cause, httpx.TimeoutException):
        return AgentTimeoutError(f"the agent did not answer in time ({reason})")
    return AnswerLostError(f"the connection broke before the answer came ({reason})")
