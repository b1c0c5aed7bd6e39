"""Executors, request context builders and agent cards of the official SDK, adapted to ours.

There are two generations of the SDK. The types of 1.x are generated protobuf messages, those of 0.3 are pydantic
models. `SdkBridge` is the port to one generation; `protobuf_types.py` and `pydantic_types.py` implement it and import
the `a2a` package.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Protocol

import msgspec

from errands.errors import A2AError, ConfigurationError, InvalidAgentResponseError
from errands.model.card import AgentCard, AgentSkill, SecurityRequirement
from errands.model.card_config import AgentCardConfig, CapabilitiesConfig, ProviderConfig, SkillConfig
from errands.model.core import Message, Task, TaskStatusUpdateEvent
from errands.model.requests import SendMessageConfiguration, SendMessageRequest
from errands.runtime import executor as ours
from errands.runtime.worker import Worker
from errands.wire.dialect import MalformedAnswerError
from errands.wire.status import ERRORS
from errands.wire.v0_3_card import from_v0_3

_EXECUTORS = {"a2a.server.agent_execution.agent_executor"}
_BUILDERS = {"a2a.server.agent_execution.request_context_builder"}
_STORES = {"a2a.server.tasks.task_store"}
_ERROR_CLASSES = {cls.__name__: cls for cls in ERRORS.values()}


class ExecutorLike(Protocol):
    """What `A2AServer(executor=...)` takes: our AgentExecutor and the SDK's are written alike."""

    async def execute(self, context: Any, event_queue: Any, /) -> None: ...
    async def cancel(self, context: Any, event_queue: Any, /) -> Any: ...


class BuilderLike(Protocol):
    """What `request_context_builder=` takes: our RequestContextBuilder and the SDK's are called alike."""

    @property
    def build(self) -> Callable[..., Awaitable[Any]]: ...


def is_executor_class(cls: type) -> bool:
    """Return whether the class is an AgentExecutor, ours or the SDK's."""
    return issubclass(cls, ours.AgentExecutor) or _bridge_of(cls) is not None


def adapt(executor: object, builder: object = None) -> tuple[ours.AgentExecutor, ours.RequestContextBuilder]:
    """Return our executor and request context builder for these; those of the SDK are wrapped.

    The wrapped executor calls the SDK's builder with the SDK's own types. Raises `ConfigurationError`.
    """
    has_sdk_builder = descends(type(builder), "RequestContextBuilder", _BUILDERS)
    if isinstance(executor, ours.AgentExecutor):
        if has_sdk_builder:
            raise ConfigurationError(
                f"request_context_builder={_named(builder)} is from the a2a package and {_named(executor)} is not: use "
                "errands.SimpleRequestContextBuilder or a subclass of errands.RequestContextBuilder"
            )
        return executor, _check_builder(builder)
    module = _bridge_of(type(executor))
    if module is None:
        advice = ""
        if isinstance(executor, Worker):
            advice = ", which is a Worker; pass it as worker="
        elif not isinstance(executor, type) and callable(getattr(executor, "execute", None)):
            advice = ", which has an execute method but derives from neither"
        raise ConfigurationError(
            "executor must be an instance of a2a's AgentExecutor or of errands.AgentExecutor, "
            f"not {_named(executor)}{advice}"
        )
    sdk: SdkBridge = import_module(module).SDK
    if has_sdk_builder:
        return SdkExecutor(executor, sdk, builder), sdk.adapt_builder(builder)
    return SdkExecutor(executor, sdk), _check_builder(builder)


def _check_builder(builder: object) -> ours.RequestContextBuilder:
    if builder is None:
        return ours.SimpleRequestContextBuilder()
    if not isinstance(builder, ours.RequestContextBuilder):
        raise ConfigurationError(
            "request_context_builder must be an instance of errands.RequestContextBuilder or, with an executor of the "
            f"a2a package, of a2a's RequestContextBuilder, not {_named(builder)}"
        )
    if isinstance(builder, ours.SimpleRequestContextBuilder) and descends(
        type(builder.task_store), "TaskStore", _STORES
    ):
        raise ConfigurationError(
            f"task_store={_named(builder.task_store)} is from the a2a package and holds its types: omit task_store "
            "to find the caller's tasks on this server, or use a2a's SimpleRequestContextBuilder"
        )
    return builder


def _bridge_of(cls: type) -> str | None:
    """Return our module for the SDK that an executor's class is written for, None for another class."""
    if not descends(cls, "AgentExecutor", _EXECUTORS):
        return None
    # The module of an executor has imported the SDK's types.
    is_protobuf = hasattr(sys.modules["a2a.types"].Message, "DESCRIPTOR")
    return "errands.interop.protobuf_types" if is_protobuf else "errands.interop.pydantic_types"


def descends(cls: type, name: str, modules: set[str]) -> bool:
    """Return whether a class of this name in one of the modules is a base of `cls`. Nothing is imported for it."""
    return any(base.__name__ == name and base.__module__ in modules for base in cls.__mro__)


def _named(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}; pass {value.__name__}()"
    return type(value).__name__


class SdkExecutor(ours.AgentExecutor):
    """Runs an executor of the SDK: gives it the SDK's types, and takes the SDK's events and errors from it."""

    def __init__(self, executor: Any, sdk: SdkBridge, builder: Any = None) -> None:
        """`builder` is a request context builder of the SDK."""
        self._executor = executor
        self._sdk = sdk
        self._builder = builder
        self.on_interrupted = getattr(executor, "on_interrupted", self.on_interrupted)

    async def execute(self, context: ours.RequestContext, event_queue: ours.EventQueue) -> None:
        task, message = context.current_task, context.message
        if task is not None and message is not None and task.history:
            # Executors of the SDK take a current task for the sign that this is not its first message. The task that
            # this message created is therefore hidden, also when the message is delivered again.
            task = None if task.history[0].message_id == message.message_id else task
        with self._own_errors():
            if self._builder is None:
                sdk_context = self._sdk.context(context, task)
            else:
                sdk_context = await self._sdk.build(self._builder, context, task)
            await self._executor.execute(sdk_context, self._sdk.queue(event_queue))

    async def cancel(self, context: ours.RequestContext, event_queue: ours.EventQueue) -> None:
        with self._own_errors():
            sdk_context = self._sdk.context(context, context.current_task)
            await self._executor.cancel(sdk_context, self._sdk.queue(event_queue))

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as raised:
            error = self._sdk.error(raised)
            if error is None:
                raise
            raise error from raised


class SdkBridge(ABC):
    """The port to one generation of the SDK: our request and queue as its classes, its errors as ours."""

    #: The SDK's class for the argument of id generators, and its class of request contexts.
    id_context: Any
    request_context: Any

    def context(self, context: ours.RequestContext, task: Task | None) -> Any:
        """Return the SDK's RequestContext with everything that ours has, and with this task as the current one."""
        related = [self.task(one) for one in context.related_tasks]
        return self.request_context(**self._arguments(context, _request_of(context), task), related_tasks=related)

    async def build(self, builder: Any, context: ours.RequestContext, task: Task | None) -> Any:
        """Return what the SDK's builder makes of the same, plus the related tasks that only our builder found."""
        request = _request_of(context)
        if request is not None and len(request.message.reference_task_ids or ()) > ours.MAX_REFERRED:
            # The SDK's builder loads all of them at once.
            references = list(dict.fromkeys(request.message.reference_task_ids or ()))[: ours.MAX_REFERRED]
            request.message = msgspec.structs.replace(request.message, reference_task_ids=references)
        arguments = self._arguments(context, request, task)
        built = await builder.build(params=arguments.pop("request"), context=arguments.pop("call_context"), **arguments)
        if not isinstance(built, self.request_context):
            raise InvalidAgentResponseError(
                f"{type(builder).__name__}.build must return a RequestContext of the a2a package, "
                f"not {type(built).__name__}"
            )
        found = {one.id for one in built.related_tasks}
        for one in context.related_tasks:
            if one.id not in found:
                built.attach_related_task(self.task(one))
        return built

    def adapt_builder(self, builder: Any) -> ours.RequestContextBuilder:
        """Return a builder of ours with the options of the SDK's `SimpleRequestContextBuilder`.

        The SDK keeps them in private attributes. The server needs them itself: ids are generated when a message is
        accepted, and tasks that a message refers to are looked up on this server, too.
        """
        tasks, contexts = (getattr(builder, f"_{kind}_id_generator", None) for kind in ("task", "context"))
        return ours.SimpleRequestContextBuilder(
            should_populate_referred_tasks=bool(getattr(builder, "_should_populate_referred_tasks", False)),
            task_id_generator=None if tasks is None else SdkIDGenerator(tasks, self.id_context),
            context_id_generator=None if contexts is None else SdkIDGenerator(contexts, self.id_context),
        )

    def _arguments(
        self, context: ours.RequestContext, request: SendMessageRequest | None, task: Task | None
    ) -> dict[str, Any]:
        return {
            "call_context": self.call_context(context.call_context),
            "request": None if request is None else self.request(request),
            "task_id": context.task_id,
            "context_id": context.context_id,
            "task": None if task is None else self.task(task),
        }

    @abstractmethod
    def request(self, request: SendMessageRequest) -> Any:
        """Return a send request in the SDK's types."""

    @abstractmethod
    def task(self, task: Task) -> Any:
        """Return a task in the SDK's types."""

    @abstractmethod
    def call_context(self, call: ours.ServerCallContext) -> Any:
        """Return the SDK's ServerCallContext."""

    @abstractmethod
    def queue(self, queue: ours.EventQueue) -> Any:
        """Return a queue of the SDK's class that passes its events on to ours."""

    @abstractmethod
    def error(self, raised: Exception) -> A2AError | None:
        """Return our error for one of the protocol that an executor raised on purpose, None for any other."""


class SdkIDGenerator(ours.IDGenerator):
    """An id generator of the SDK."""

    def __init__(self, generator: Any, id_context: Any) -> None:
        self._generator = generator
        self._id_context = id_context

    def generate(self, context: ours.IDGeneratorContext) -> str:
        known = self._id_context(task_id=context.task_id, context_id=context.context_id)
        generated: str = self._generator.generate(known)
        return generated


def _request_of(context: ours.RequestContext) -> SendMessageRequest | None:
    """Return the client's request, None for a cancel."""
    if context.message is None:
        return None
    return SendMessageRequest(
        message=context.message,
        tenant=context.tenant or None,
        # The SDK's clients always send a configuration, so executors count on it.
        configuration=context.configuration or SendMessageConfiguration(),
        metadata=context.metadata or None,
    )


# For the implementations


def error_named(name: str, message: str | None) -> A2AError:
    """Return our error of this name. Both have the names of the specification."""
    return _ERROR_CLASSES.get(name, A2AError)(message)


def tolerated(event: ours.Event) -> ours.Event:
    """Return the event without what the SDK accepts and our queue does not.

    An empty status message is dropped, and so are the ids in a message: the queue knows them, and the SDK's helpers
    make it easy to mix them up.
    """
    if isinstance(event, Message):
        event.task_id = event.context_id = None
    elif isinstance(event, Task | TaskStatusUpdateEvent) and (message := event.status.message) is not None:
        message.task_id = message.context_id = None
        event.status.message = message if message.parts else None
    return event


@contextmanager
def converting(event: object) -> Iterator[None]:
    """Raise `InvalidAgentResponseError` if the body cannot convert an event that an executor has enqueued."""
    kind = type(event).__name__
    try:
        yield
    except KeyError:
        raise InvalidAgentResponseError(
            "An executor may enqueue a Message, a Task, a TaskStatusUpdateEvent or a TaskArtifactUpdateEvent, "
            f"not {kind}"
        ) from None
    except (ValueError, MalformedAnswerError) as error:
        raise InvalidAgentResponseError(f"The {kind} that the agent enqueued cannot be used: {error}") from None


# Agent cards

_PROTOBUF_CARD = "lf.a2a.v1.AgentCard"
#: The pydantic cards: those of 0.3 itself, and those that 1.x has for the sake of 0.3.
_PYDANTIC_CARDS = {"a2a.types", "a2a.compat.v0_3.types"}
#: What the SDK's cards often have instead of a media type. The SDK never checks it; we check messages against it.
_MEDIA_TYPES = {
    "text": "text/plain",
    "data": "application/json",
    "json": "application/json",
    "file": "*/*",
    "image": "image/*",
    "audio": "audio/*",
    "video": "video/*",
}
#: The bindings that our card may list first.
_PREFERRED = {"JSONRPC": "jsonrpc", "HTTP+JSON": "http+json"}


class CardLike(Protocol):
    """What `A2AServer(agent_card=...)` takes: our AgentCardConfig and the SDK's AgentCard begin alike."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def version(self) -> str: ...


def adapt_card(card: object) -> AgentCardConfig:
    """Return the checked configuration of a card, ours or the SDK's. Raises `ConfigurationError`.

    The server adds its own addresses to a card. So only the first binding is taken from the interfaces of an SDK's
    card, and a signed card is refused, because its signature covers the addresses.
    """
    if isinstance(card, AgentCardConfig):
        return msgspec.structs.replace(card)  # checks it again, because it may have been changed
    try:
        read = _read(card)
    except (ValueError, MalformedAnswerError) as error:
        raise ConfigurationError(f"agent_card cannot be used: {error}") from None
    if read is None:
        kind = type(card).__name__
        raise ConfigurationError(
            f"agent_card must be an errands.AgentCardConfig or an AgentCard of the a2a package, not {kind}"
        )
    return _config(read)


def _read(card: Any) -> AgentCard | None:
    descriptor = getattr(card, "DESCRIPTOR", None)
    if descriptor is not None and descriptor.full_name == _PROTOBUF_CARD:
        from errands.wire.proto.codec import read_card  # noqa: PLC0415 - the a2a package is an extra

        return read_card(card)
    if descends(type(card), "AgentCard", _PYDANTIC_CARDS):
        return from_v0_3(card.model_dump_json(by_alias=True, exclude_none=True).encode())
    return None


def _config(card: AgentCard) -> AgentCardConfig:
    if card.signatures:
        raise ConfigurationError(
            "agent_card is signed, and the signature covers the addresses on the card, but errands writes its own "
            "addresses. Pass the card without signatures"
        )
    if not card.name:
        raise ConfigurationError("agent_card has no name")
    capabilities, provider = card.capabilities, card.provider
    first = next((one.protocol_binding for one in card.supported_interfaces), "JSONRPC")
    config = AgentCardConfig(
        name=card.name,
        description=card.description,
        skills=[_skill(skill) for skill in card.skills],
        capabilities=CapabilitiesConfig(
            streaming=bool(capabilities.streaming),
            push_notifications=capabilities.push_notifications,
            extended_agent_card=bool(capabilities.extended_agent_card),
            extensions=capabilities.extensions or None,
        ),
        protocol=_PREFERRED.get(first.upper(), "jsonrpc"),
        provider=provider if provider is None else ProviderConfig(organization=provider.organization, url=provider.url),
        security_schemes=card.security_schemes or None,
        security=_security(card.security_requirements),
        icon_url=card.icon_url or None,
        documentation_url=card.documentation_url or None,
    )
    config.version = card.version or config.version
    config.input_modes = _modes(card.default_input_modes) or config.input_modes
    config.output_modes = _modes(card.default_output_modes) or config.output_modes
    return config


def _skill(skill: AgentSkill) -> SkillConfig:
    return SkillConfig(
        id=skill.id,
        name=skill.name,
        description=skill.description,
        tags=skill.tags,
        examples=skill.examples or [],
        input_modes=_modes(skill.input_modes) or None,
        output_modes=_modes(skill.output_modes) or None,
        security=_security(skill.security_requirements),
    )


def _modes(modes: list[str] | None) -> list[str]:
    """Return the media types without duplicates."""
    return list(dict.fromkeys(_MEDIA_TYPES.get(mode.lower(), mode) for mode in modes or ()))


def _security(requirements: list[SecurityRequirement] | None) -> list[dict[str, list[str]]] | None:
    if not requirements:
        return None
    return [{name: scopes.scopes for name, scopes in one.schemes.items()} for one in requirements]
