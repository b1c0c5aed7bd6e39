"""From a decoded request to its result, for every binding: version, extensions, capabilities, middleware, operation.

Authentication is the first middleware; authorization comes after the last one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence, Set
from itertools import takewhile
from time import monotonic
from typing import Any

from errands import errors, tracing
from errands.interop import CardLike, adapt_card
from errands.model.card import AgentCard
from errands.model.card_config import AgentCardConfig
from errands.model.log import Scope
from errands.model.requests import SendMessageRequest, SendMessageResponse
from errands.operations import OPERATIONS, Operation
from errands.runtime import validation
from errands.runtime.call import CallContext
from errands.runtime.figures import UNKNOWN, Figures
from errands.runtime.middleware import A2AMiddleware, Caller, RequestEnvelope, is_head_only
from errands.runtime.quotas import CallerKey, OpenStreams, RequestRate
from errands.runtime.settings import Settings
from errands.runtime.streams import EventStream
from errands.runtime.task_manager import TaskManager
from errands.server.access_audit import AccessAudit
from errands.server.asgi import IncomingRequest
from errands.server.auth import MAX_NAME
from errands.server.authorization import OWNER_HEADER, Authorization, task_of
from errands.server.blobs import BlobAddresses
from errands.server.cards import CardPublisher, extensions_of, offers_extended_card
from errands.server.errors import client_error
from errands.server.request_guard import client_address, client_network
from errands.server.routing import Routes
from errands.wire.bounds import MAX_DEPTH, check_outline, check_parts
from errands.wire.dialect import EXTENSION_HEADERS
from errands.wire.status import STATUS

#: A method of `TaskManager`.
Perform = Callable[[Any, CallContext], Awaitable[Any]]
ExtendedCardProvider = Callable[..., Awaitable[CardLike]]

_OWNER_HEADER = OWNER_HEADER.lower().encode()
_TRACEPARENT, _TRACESTATE = tracing.TRACEPARENT.encode(), tracing.TRACESTATE.encode()
_EXTENSION_HEADERS = frozenset(name.lower().encode() for name in EXTENSION_HEADERS.values())


class Dispatcher:
    """Runs the operation of a request."""

    def __init__(
        self,
        tasks: TaskManager,
        card: AgentCardConfig,
        middlewares: Sequence[A2AMiddleware],
        routes: Routes,
        cards: CardPublisher,
        extended_card_provider: ExtendedCardProvider | None = None,
        *,
        settings: Settings,
        authorization: Authorization | None = None,
        blobs: BlobAddresses | None = None,
        audit: AccessAudit | None = None,
        figures: Figures | None = None,
    ) -> None:
        self._figures = figures
        self.routes = routes
        self._blobs = blobs
        self._audit = audit
        self._authorization = authorization
        self._scope_of = tasks.scope_of
        if authorization is not None:
            middlewares = [authorization.authentication, *middlewares]
        self._cards = cards
        self._versions = {version.encode() for version in routes.versions}
        self._card = card
        self._middlewares = middlewares
        #: Middleware that runs before the body of a request is read; the rest runs when it has been decoded.
        self.head_middlewares = list(takewhile(is_head_only, middlewares))
        self._body_middlewares = middlewares[len(self.head_middlewares) :]
        self._shows_results = any(type(one).after_dispatch is not A2AMiddleware.after_dispatch for one in middlewares)
        self._extended_card_provider = extended_card_provider
        self.max_parts = settings.max_message_parts
        #: See `Engine`.
        self.commits_at_once = tasks.commits_at_once
        self._settings = settings
        rate, most_streams = settings.caller_rate, settings.caller_max_streams
        self._rate = None if rate is None else RequestRate(rate, settings.caller_burst)
        self._streams = None if most_streams is None else OpenStreams(most_streams)
        #: Whether bindings call `check_head` before they read or decode a body.
        self.checks_head = bool(self.head_middlewares) or self._rate is not None
        self._methods: dict[str, Perform] = {
            operation.name: getattr(tasks, operation.method)
            for operation in OPERATIONS.values()
            if hasattr(tasks, operation.method)
        }
        #: The scope of callers without a tenant and an owner.
        self._default_scope = Scope(agent=card.name)
        extensions = extensions_of(card)
        self._extensions = {extension.uri for extension in extensions}
        self._required = [extension.uri for extension in extensions if extension.required]

    async def check_head(self, exchange: IncomingRequest) -> None:
        """Run the middleware that needs no body, and count the request. Raises only `A2AError`.

        A binding calls this before it reads or decodes a body, if `checks_head` says so.
        """
        try:
            await self._check_head(exchange)
        except errors.A2AError as error:
            if self._audit is not None:
                await self._audit.deny("", None, exchange, error)
            raise

    async def _check_head(self, exchange: IncomingRequest) -> None:
        envelope = RequestEnvelope()
        if self._rate is not None and exchange.caller_key is None:
            # Requests without a name or with wrong credentials count for their address, and are not looked at
            # when there are too many.
            self._rate.check(client_network(exchange, self._settings))
        try:
            for middleware in self.head_middlewares:
                await middleware.before_dispatch(envelope, exchange.request)
        except errors.AuthenticationRequiredError:
            self._count(exchange)
            raise
        except errors.A2AError:
            raise
        except Exception as error:
            raise client_error(error, "a request") from None
        exchange.envelope = envelope
        if envelope.owner or not self._body_middlewares:
            self._count(exchange, envelope.tenant, envelope.owner)

    def _count(self, exchange: IncomingRequest, tenant: str = "", owner: str = "") -> None:
        """Note whose request it is, and count it once. Raises `TooManyRequestsError`."""
        if exchange.caller_key is not None or (self._rate is None and not owner):
            return
        exchange.caller_key = (tenant, owner) if owner else client_network(exchange, self._settings)
        if self._rate is not None:
            self._rate.take(exchange.caller_key, exchange.weight)

    def check_outline(self, operation: Operation, params: bytes) -> None:
        """Raise `PayloadTooLargeError` for too many parts. Bindings call it if decoding would take long."""
        if operation.request is SendMessageRequest:
            check_outline(params, self.max_parts)

    def dispatch(self, operation: Operation, request: Any, exchange: IncomingRequest) -> Coroutine[Any, Any, Any]:
        """Return the operation's result: a model, or an `EventStream`. Raises only `A2AError`."""
        tracer = tracing.tracer
        if tracer is None:
            return self._dispatch(operation, request, exchange)
        parent = trace_context(exchange)
        dispatched = self._dispatch(operation, request, exchange)
        if tracer.accepts(parent):
            span = tracer.span(
                "request",
                operation.name,
                parent=parent,
                agent=self._card.name,
                binding=exchange.binding,
                protocol=exchange.protocol,
                task=task_of(request) or None,
            )
            if span.is_recorded:
                return _traced(span, dispatched)
        return tracer.leave_out(dispatched, parent)

    async def _dispatch(self, operation: Operation, request: Any, exchange: IncomingRequest) -> Any:
        began = 0.0 if self._figures is None else monotonic()
        try:
            extensions: list[str] = []
            if self._required or not _EXTENSION_HEADERS.isdisjoint(exchange.headers):
                extensions = self._check_extensions(operation, exchange)
            if self._middlewares:
                result = await self._through_middleware(operation, request, extensions, exchange)
            else:
                call = CallContext(self._default_scope, extensions)
                if request.tenant:
                    _check_tenant(request.tenant)
                    call.scope, call.names_tenant = Scope(request.tenant, "", self._card.name), True
                if self._audit is not None:
                    await self._audit.admit(operation, request, call, exchange)
                if self._blobs is None:
                    result = await self.perform(operation, request, call, exchange)
                else:
                    result = await self._perform_with_blobs(self._blobs, operation, request, call, exchange)
        except errors.A2AError as error:
            if self._audit is not None:
                await self._audit.deny(operation.name, request, exchange, error)
            raise
        except Exception as error:
            raise client_error(error, operation.name) from None
        if self._figures is not None:
            self._figures.answered[operation.name, exchange.binding].observe(monotonic() - began)
        return result

    def refused(self, operation: Operation | None, exchange: IncomingRequest, error: errors.A2AError) -> None:
        """Count a request that a binding answers with an error; without an operation if it was not known yet."""
        if self._figures is not None:
            self._figures.refused(UNKNOWN if operation is None else operation.name, exchange.binding, error)

    async def _through_middleware(
        self, operation: Operation, request: Any, extensions: list[str], exchange: IncomingRequest
    ) -> Any:
        envelope, request, call = await self._identify(operation, request, exchange)
        call.extensions = extensions
        if self._audit is not None:
            await self._audit.admit(operation, request, call, exchange)
        if self._blobs is None:
            result = await self.perform(operation, request, call, exchange)
        else:
            result = await self._perform_with_blobs(self._blobs, operation, request, call, exchange)
        if isinstance(result, EventStream):
            result = self._watched(result, exchange, envelope.caller)
        if self._shows_results:
            shown = None
            if isinstance(result, SendMessageResponse):
                # A copy: middleware may change the response without changing what is stored.
                result = SendMessageResponse(
                    task=result.task and validation.own_task(result.task),
                    message=result.message and validation.own_message(result.message),
                )
                shown = result.task or result.message
            try:
                for middleware in reversed(self._middlewares):
                    await middleware.after_dispatch(envelope, shown)
            except BaseException:
                if isinstance(result, EventStream):
                    result.close()
                raise
        return result

    async def identify(
        self,
        operation: Operation,
        request: Any,
        exchange: IncomingRequest,
        *,
        widest: bool = False,
        inner: Collection[str] = (),
    ) -> CallContext:
        """Return the call of a request that is judged like an operation but is not one, such as a download.

        `widest` and `inner` are those of `Authorization.decide`. Raises only `A2AError`.
        """
        try:
            return (await self._identify(operation, request, exchange, widest=widest, inner=inner))[2]
        except errors.A2AError:
            raise
        except Exception as error:
            raise client_error(error, "a request") from None

    async def _identify(
        self,
        operation: Operation,
        request: Any,
        exchange: IncomingRequest,
        *,
        widest: bool = False,
        inner: Collection[str] = (),
    ) -> tuple[RequestEnvelope, Any, CallContext]:
        """Run the middleware, then authorization; return the request as they have left it, and its call."""
        if exchange.envelope is None:
            await self._check_head(exchange)
        # Reset, so that another operation for the same request is checked again.
        envelope, exchange.envelope = exchange.envelope, None
        assert envelope is not None
        given, named = envelope.tenant, request.tenant or ""
        _check_tenant(named)
        envelope.tenant = given or named
        if isinstance(request, SendMessageRequest):
            envelope.params = request
        for middleware in self._body_middlewares:
            await middleware.before_dispatch(envelope, exchange.request)
        names_tenant = not given and named != "" and envelope.tenant == named
        if exchange.caller_key is None:
            self._count(exchange, "" if names_tenant else envelope.tenant, envelope.owner)
        tenant, owner, email = (
            validation.text(f"envelope.{name}, which a middleware has set,", getattr(envelope, name))
            for name in ("tenant", "owner", "email")
        )
        if envelope.params is not None and (self._body_middlewares or self._shows_results):
            # Middleware may have changed it and may do so later.
            request = validation.reread(envelope.params, MAX_DEPTH)
        call = CallContext(Scope(tenant, owner, self._card.name), request_context=envelope.context, email=email)
        if self._authorization is not None and envelope.caller is not None:
            wanted_owner = exchange.header(_OWNER_HEADER)
            access = await self._authorization.decide(
                operation,
                request,
                envelope.caller,
                call.scope,
                wanted_owner,
                self._scope_of,
                widest=widest,
                inner=inner,
            )
            call.scope, call.acting, call.reach, call.is_operator = access
        call.names_tenant = names_tenant and call.acting is None
        return envelope, request, call

    async def _perform_with_blobs(
        self, blobs: BlobAddresses, operation: Operation, request: Any, call: CallContext, exchange: IncomingRequest
    ) -> Any:
        """Perform an operation whose request and result may name blobs by their addresses."""
        if isinstance(request, SendMessageRequest):
            request = await blobs.localized(request, call.scope, exchange)
        return blobs.addressed(await self.perform(operation, request, call, exchange), call.scope, exchange)

    def perform(
        self, operation: Operation, request: Any, call: CallContext, exchange: IncomingRequest
    ) -> Awaitable[Any]:
        """Perform an operation for a caller who was identified."""
        if operation.capability is not None:
            self._check_capability(operation)
            if operation.name == "GetExtendedAgentCard":
                return self._extended_card(call, exchange)
            if operation.name == "SubscribeToTask":
                call.last_event_id = last_event_id(exchange)
                call.ends_at_pause = exchange.ends_at_pause
        if type(request) is SendMessageRequest:
            if len(request.message.parts) > self.max_parts:
                check_parts(len(request.message.parts), self.max_parts)
            configuration = request.configuration
            if (
                configuration is not None
                and configuration.task_push_notification_config is not None
                and not self._card.capabilities.push_notifications
            ):
                raise errors.PushNotificationNotSupportedError
        if exchange.protocol != call.protocol:
            call.protocol = exchange.protocol
        call.on_accepted, call.large_reads = exchange.on_accepted, exchange
        if self._settings.audit:
            call.address = client_address(exchange, self._settings) or "unknown"
        if exchange.answers_by_context:
            call.answers_by_context = True
        if operation.streams and self._streams is not None:
            return self._open_stream(self._streams, self._methods[operation.name], request, call, exchange)
        return self._methods[operation.name](request, call)

    async def _open_stream(
        self, streams: OpenStreams, perform: Perform, request: Any, call: CallContext, exchange: IncomingRequest
    ) -> EventStream:
        """Perform an operation that streams, if its caller may have another stream open."""
        closed = streams.open(self._streamer(exchange))
        try:
            stream: EventStream = await perform(request, call)
        except BaseException:
            closed()
            raise
        stream.on_close(closed)
        return stream

    def _watched(self, stream: EventStream, exchange: IncomingRequest, caller: Caller | None) -> EventStream:
        if self._authorization is None or caller is None:
            return stream
        return self._authorization.authentication.watched(stream, exchange.request, caller)

    def count_stream(self, stream: EventStream, exchange: IncomingRequest, call: CallContext) -> EventStream:
        """Count a stream that no operation has opened. If there are too many, close it: `TooManyStreamsError`."""
        if self._streams is not None:
            try:
                stream.on_close(self._streams.open(self._streamer(exchange)))
            except errors.TooManyStreamsError:
                stream.close()
                raise
        return self._watched(stream, exchange, call.request_context.get("caller"))

    def _streamer(self, exchange: IncomingRequest) -> CallerKey:
        caller = exchange.caller_key
        return client_network(exchange, self._settings) if caller is None else caller

    def check_version(self, exchange: IncomingRequest) -> None:
        """Raise `VersionNotSupportedError` if the client asks for a version that is not served here.

        The method or path decides between the versions that are served. Patch numbers are ignored.
        """
        named = exchange.headers.get(b"a2a-version")
        if named in self._versions or (named is None and not exchange.scope["query_string"]):
            return
        asked = exchange.header(b"a2a-version") or exchange.query.get("A2A-Version", "")
        if asked and ".".join(asked.split(".")[:2]) not in self.routes.versions:
            supported = ", ".join(self.routes.versions)
            raise errors.VersionNotSupportedError(
                f"A2A version {asked[:20]} is not supported here; supported: {supported}", supported=supported
            )

    def _check_extensions(self, operation: Operation, exchange: IncomingRequest) -> list[str]:
        headers = _EXTENSION_HEADERS & exchange.headers.keys()
        declared = _declared(exchange, headers) if headers else []
        if self._required and operation.name != "GetExtendedAgentCard":
            missing = [uri for uri in self._required if uri not in declared]
            if missing:
                names = " or ".join(EXTENSION_HEADERS.values())
                raise errors.ExtensionSupportRequiredError(
                    f"This agent requires the extension {missing[0]}; declare it in {names}",
                    extensions=", ".join(missing),
                )
        if declared and (active := [uri for uri in declared if uri in self._extensions]):
            value = ", ".join(active).encode("latin-1", "replace")
            exchange.extra_headers.extend((name, value) for name in headers)
        return declared

    def _check_capability(self, operation: Operation) -> None:
        capabilities = self._card.capabilities
        if operation.capability == "streaming" and not capabilities.streaming:
            raise errors.UnsupportedOperationError("This agent does not stream; use SendMessage or GetTask")
        if operation.capability == "push_notifications" and not capabilities.push_notifications:
            raise errors.PushNotificationNotSupportedError
        if operation.capability == "extended_agent_card" and not offers_extended_card(self._card):
            raise errors.ExtendedCardNotOfferedError

    async def _extended_card(self, call: CallContext, exchange: IncomingRequest) -> AgentCard:
        if self._card.security_schemes and not call.scope.owner:
            raise errors.AuthenticationRequiredError("The extended card is for authenticated clients")
        if self._extended_card_provider is None:
            raise errors.ExtendedAgentCardNotConfiguredError
        card = adapt_card(await self._extended_card_provider(exchange.request))
        if self._authorization is not None:
            card = self._authorization.authentication.published(card)
        return self._cards.build(card, exchange)


class ClosedDispatcher(Dispatcher):
    """Refuses every request: for a process that only runs turns."""

    async def dispatch(self, operation: Operation, request: Any, exchange: IncomingRequest) -> Any:
        raise errors.MethodNotFoundError(
            "This process only runs tasks (role worker); send requests to one with the role api or all"
        )


def _check_tenant(name: str) -> None:
    """Raise `InvalidParamsError` for a name that would fill the store: no limit counts the names of tenants."""
    if len(name) > MAX_NAME:
        raise errors.InvalidParamsError(f"The name of a tenant has at most {MAX_NAME} characters", field="tenant")


def _declared(exchange: IncomingRequest, headers: Set[bytes]) -> list[str]:
    """Return every URI in these headers, each of which may occur more than once."""
    values = [value.decode("latin-1") for name, value in exchange.scope["headers"] if name in headers]
    return list(dict.fromkeys(uri for value in values for item in value.split(",") if (uri := item.strip())))


async def _traced(span: tracing.TraceSpan, dispatched: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a request in its span, whose parent is the client's. The span of a stream ends with it."""
    try:
        with span.active():
            result = await dispatched
    except errors.A2AError as error:
        status = STATUS.get(error.reason)
        span.fail(error.reason, is_fault=status is None or status.http >= 500)
        span.end()
        raise
    except BaseException:
        span.fail("abandoned", is_fault=False)  # the client has disconnected
        span.end()
        raise
    if isinstance(result, EventStream):
        result.on_close(span.end)
        return result
    if isinstance(result, SendMessageResponse) and result.task is not None:
        span.note(task=result.task.id, conversation=result.task.context_id)
    span.end()
    return result


def trace_context(exchange: IncomingRequest) -> tracing.TraceContext | None:
    """Return the place in a trace from which the request was made, if it names one."""
    parent = exchange.headers.get(_TRACEPARENT)
    if parent is None:
        return None
    states = [value.decode("latin-1") for name, value in exchange.scope["headers"] if name == _TRACESTATE]
    return tracing.read_context(parent.decode("latin-1"), states)


def last_event_id(exchange: IncomingRequest) -> int | None:
    """Return the version after which a client wants to go on; None if it does not say. Raises `InvalidParamsError`."""
    text = exchange.header(b"last-event-id")
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise errors.InvalidParamsError(
            "Last-Event-ID must be an id of one of this task's events", field="Last-Event-ID"
        )
    return int(text)
