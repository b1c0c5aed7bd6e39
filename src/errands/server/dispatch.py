"""From a decoded request to its answer, the same for every binding: version, extensions, capabilities, middleware."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence, Set
from itertools import takewhile
from typing import Any

import msgspec

from errands.errors import (
    A2AError,
    AuthenticationRequiredError,
    ExtendedAgentCardNotConfiguredError,
    ExtendedCardNotOfferedError,
    ExtensionSupportRequiredError,
    InvalidParamsError,
    MethodNotFoundError,
    PushNotificationNotSupportedError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from errands.interop import Card, adapt_card
from errands.model.card import AgentCard
from errands.model.card_config import AgentCardConfig
from errands.model.log import Scope
from errands.model.requests import SendMessageConfiguration, SendMessageRequest, SendMessageResponse
from errands.operations import OPERATIONS, Operation
from errands.runtime import validation
from errands.runtime.call import CallContext, EventStream
from errands.runtime.middleware import A2AMiddleware, RequestEnvelope, is_head_only
from errands.runtime.task_manager import TaskManager
from errands.server.card import CardShelf, extensions_of, offers_extended_card
from errands.server.exchange import Incoming
from errands.server.refusing import refusal
from errands.server.repertoire import Repertoire
from errands.wire.bounds import MAX_DEPTH, check_parts
from errands.wire.extensions import HEADERS

#: What does an operation, as `TaskManager` has it.
Perform = Callable[[Any, CallContext], Awaitable[Any]]
ExtendedCardProvider = Callable[..., Awaitable[Card]]

_EXTENSION_HEADERS = frozenset(name.lower().encode() for name in HEADERS.values())


class Dispatcher:
    def __init__(
        self,
        tasks: TaskManager,
        card: AgentCardConfig,
        middlewares: Sequence[A2AMiddleware],
        repertoire: Repertoire,
        shelf: CardShelf,
        extended_card_provider: ExtendedCardProvider | None = None,
        *,
        max_parts: int,
    ) -> None:
        self.repertoire = repertoire
        self._shelf = shelf
        self._versions = {version.encode() for version in repertoire.versions}
        self._card = card
        self._middlewares = middlewares
        #: Those that are asked before the body of a request is read, and those that are asked when it was decoded.
        self.first_middlewares = list(takewhile(is_head_only, middlewares))
        self._later_middlewares = middlewares[len(self.first_middlewares) :]
        self._shows_answers = any(type(one).after_dispatch is not A2AMiddleware.after_dispatch for one in middlewares)
        self._extended_card_provider = extended_card_provider
        self.max_parts = max_parts
        self._methods: dict[str, Perform] = {
            operation.name: getattr(tasks, operation.method)
            for operation in OPERATIONS.values()
            if hasattr(tasks, operation.method)
        }
        #: Whose tasks they are when nobody says otherwise.
        self._anybody = Scope(agent=card.name)
        extensions = extensions_of(card)
        self._extensions = {extension.uri for extension in extensions}
        self._required = [extension.uri for extension in extensions if extension.required]

    async def check_head(self, exchange: Incoming) -> None:
        """Ask the middleware that needs no body. Raises `A2AError` and nothing else.

        A binding calls this before it reads or decodes a body, if there are `first_middlewares`.
        """
        envelope = RequestEnvelope()
        try:
            for middleware in self.first_middlewares:
                await middleware.before_dispatch(envelope, exchange.request)
        except A2AError:
            raise
        except Exception as error:
            raise refusal(error, "a request") from None
        exchange.envelope = envelope

    async def dispatch(self, operation: Operation, request: Any, exchange: Incoming) -> Any:
        """The operation's answer: a model, or an `EventStream`. Raises `A2AError` and nothing else."""
        try:
            extensions: list[str] = []
            if self._required or not _EXTENSION_HEADERS.isdisjoint(exchange.headers):
                extensions = self._check_extensions(operation, exchange)
            if self._middlewares:
                return await self._through_middleware(operation, request, extensions, exchange)
            scope = Scope(request.tenant, "", self._card.name) if request.tenant else self._anybody
            call = CallContext(scope, extensions)
            return await self._perform(operation, request, call, exchange)
        except A2AError:
            raise
        except Exception as error:
            raise refusal(error, operation.name) from None

    async def _through_middleware(
        self, operation: Operation, request: Any, extensions: list[str], exchange: Incoming
    ) -> Any:
        if exchange.envelope is None:
            await self.check_head(exchange)
        # Taken, so that another operation for the same request is checked anew.
        envelope, exchange.envelope = exchange.envelope, None
        assert envelope is not None
        envelope.tenant = envelope.tenant or request.tenant or ""
        if isinstance(request, SendMessageRequest):
            envelope.params = request
        for middleware in self._later_middlewares:
            await middleware.before_dispatch(envelope, exchange.request)
        tenant, owner, email = (
            validation.text(f"envelope.{name}, which a middleware has set,", getattr(envelope, name))
            for name in ("tenant", "owner", "email")
        )
        if envelope.params is not None and (self._later_middlewares or self._shows_answers):
            # They may have changed it, and may do so later.
            request = validation.reread(envelope.params, MAX_DEPTH)
        call = CallContext(Scope(tenant, owner, self._card.name), extensions, envelope.context, email=email)
        result = await self._perform(operation, request, call, exchange)
        if self._shows_answers:
            result = _own(result)
            for middleware in reversed(self._middlewares):
                await middleware.after_dispatch(envelope, _shown(result))
        return result

    def _perform(self, operation: Operation, request: Any, call: CallContext, exchange: Incoming) -> Awaitable[Any]:
        if operation.capability is not None:
            self._check_capability(operation)
            if operation.name == "GetExtendedAgentCard":
                return self._extended_card(call, exchange)
            if operation.name == "SubscribeToTask":
                call.last_event_id = _last_event_id(exchange)
                call.ends_at_pause = exchange.ends_at_pause
        if type(request) is SendMessageRequest:
            if len(request.message.parts) > self.max_parts:
                check_parts(len(request.message.parts), self.max_parts)
            if request.configuration is not None:
                self._check_push(request.configuration)
        call.on_accepted = exchange.on_accepted
        if exchange.answers_by_context:
            call.answers_by_context = True
        return self._methods[operation.name](request, call)

    def check_version(self, exchange: Incoming) -> None:
        """Raises `VersionNotSupportedError` when the client asks for a version that is not served here.

        Which of those served it is, the method or path has said already. Patch numbers do not count.
        """
        if exchange.headers.get(b"a2a-version") in self._versions:
            return
        asked = exchange.header(b"a2a-version") or (
            exchange.query.get("A2A-Version", "") if exchange.scope["query_string"] else ""
        )
        if asked and ".".join(asked.split(".")[:2]) not in self.repertoire.versions:
            supported = ", ".join(self.repertoire.versions)
            raise VersionNotSupportedError(
                f"A2A version {asked[:20]} is not supported here; supported: {supported}", supported=supported
            )

    def _check_extensions(self, operation: Operation, exchange: Incoming) -> list[str]:
        headers = _EXTENSION_HEADERS & exchange.headers.keys()
        declared = _declared(exchange, headers) if headers else []
        if self._required and operation.name != "GetExtendedAgentCard":
            missing = [uri for uri in self._required if uri not in declared]
            if missing:
                raise ExtensionSupportRequiredError(
                    f"This agent requires the extension {missing[0]}; declare it in {' or '.join(HEADERS.values())}",
                    extensions=", ".join(missing),
                )
        if declared and (active := [uri for uri in declared if uri in self._extensions]):
            value = ", ".join(active).encode("latin-1", "replace")
            exchange.extra_headers.extend((name, value) for name in headers)
        return declared

    def _check_capability(self, operation: Operation) -> None:
        capabilities = self._card.capabilities
        if operation.capability == "streaming" and not capabilities.streaming:
            raise UnsupportedOperationError("This agent does not stream; use SendMessage or GetTask")
        if operation.capability == "push_notifications" and not capabilities.push_notifications:
            raise PushNotificationNotSupportedError
        if operation.capability == "extended_agent_card" and not offers_extended_card(self._card):
            raise ExtendedCardNotOfferedError

    def _check_push(self, configuration: SendMessageConfiguration) -> None:
        if configuration.task_push_notification_config is not None and not self._card.capabilities.push_notifications:
            raise PushNotificationNotSupportedError

    async def _extended_card(self, call: CallContext, exchange: Incoming) -> AgentCard:
        if self._card.security_schemes and not call.scope.owner:
            raise AuthenticationRequiredError("The extended card is for authenticated clients")
        if self._extended_card_provider is None:
            raise ExtendedAgentCardNotConfiguredError
        card = await self._extended_card_provider(exchange.request)
        return self._shelf.build(adapt_card(card), exchange)


class ClosedDispatcher(Dispatcher):
    """For a process that runs turns and takes no requests."""

    async def dispatch(self, operation: Operation, request: Any, exchange: Incoming) -> Any:
        raise MethodNotFoundError(
            "This process runs tasks and takes no requests (role worker); ask one with the role api or all"
        )


def _declared(exchange: Incoming, headers: Set[bytes]) -> list[str]:
    """Every URI in these headers, each of which may come more than once."""
    values = [value.decode("latin-1") for name, value in exchange.scope["headers"] if name in headers]
    return list(dict.fromkeys(uri for value in values for item in value.split(",") if (uri := item.strip())))


def _own(result: Any) -> Any:
    """Return an answer that middleware may change without changing what is stored."""
    if not isinstance(result, SendMessageResponse):
        return result
    return SendMessageResponse(
        task=result.task and validation.own_task(result.task),
        message=result.message and validation.own_message(result.message),
    )


def _shown(result: Any) -> Any:
    if isinstance(result, SendMessageResponse):
        return result.task or result.message
    return None if isinstance(result, EventStream | AgentCard | msgspec.Struct) else result


def _last_event_id(exchange: Incoming) -> int | None:
    text = exchange.header(b"last-event-id")
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise InvalidParamsError("Last-Event-ID must be an id of one of this task's events", field="Last-Event-ID")
    return int(text)
