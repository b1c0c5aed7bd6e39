"""The port to one generation of the official SDK: our request and queue as its own classes, its errors as ours."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from errands.errors import A2AError, InvalidAgentResponseError
from errands.model.core import Message, Task, TaskStatusUpdateEvent
from errands.model.requests import SendMessageConfiguration, SendMessageRequest
from errands.runtime.executor.call import ServerCallContext
from errands.runtime.executor.ids import IDGenerator, IDGeneratorContext
from errands.runtime.executor.queue import Event, EventQueue
from errands.runtime.executor.request import (
    MOST_REFERRED,
    RequestContext,
    RequestContextBuilder,
    SimpleRequestContextBuilder,
)
from errands.wire.dialect import MalformedAnswerError
from errands.wire.status import ERRORS

_ERROR_CLASSES = {cls.__name__: cls for cls in ERRORS.values()}


class Sdk(ABC):
    #: The SDK's class for what an id generator is told, and its class of request contexts.
    id_context: Any
    request_context: Any

    def context(self, context: RequestContext, task: Task | None) -> Any:
        """Return the SDK's RequestContext, with everything that ours has, and with this task as the current one."""
        related = [self.task(one) for one in context.related_tasks]
        return self.request_context(**self._pieces(context, request_of(context), task), related_tasks=related)

    async def built(self, builder: Any, context: RequestContext, task: Task | None) -> Any:
        """Return what the SDK's builder makes of the same, with the related tasks that ours found and it did not."""
        pieces = self._pieces(context, _with_fewer_references(request_of(context)), task)
        built = await builder.build(params=pieces.pop("request"), context=pieces.pop("call_context"), **pieces)
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

    def around(self, builder: Any) -> RequestContextBuilder:
        """Return a builder of ours for what the server itself has to know of the SDK's builder.

        That are the options of `SimpleRequestContextBuilder`, which the SDK keeps in private attributes: identifiers
        are made when a message is accepted, and tasks that a message refers to are looked for on this server, too.
        """
        tasks, contexts = (getattr(builder, f"_{kind}_id_generator", None) for kind in ("task", "context"))
        return SimpleRequestContextBuilder(
            should_populate_referred_tasks=bool(getattr(builder, "_should_populate_referred_tasks", False)),
            task_id_generator=None if tasks is None else _SdkIds(tasks, self.id_context),
            context_id_generator=None if contexts is None else _SdkIds(contexts, self.id_context),
        )

    def _pieces(self, context: RequestContext, request: SendMessageRequest | None, task: Task | None) -> dict[str, Any]:
        return {
            "call_context": self.call_context(context.call_context),
            "request": None if request is None else self.request(request),
            "task_id": context.task_id,
            "context_id": context.context_id,
            "task": None if task is None else self.task(task),
        }

    @abstractmethod
    def request(self, request: SendMessageRequest) -> Any:
        """Return the SDK's form of a send."""

    @abstractmethod
    def task(self, task: Task) -> Any:
        """Return the SDK's form of a task."""

    @abstractmethod
    def call_context(self, call: ServerCallContext) -> Any:
        """Return the SDK's ServerCallContext."""

    @abstractmethod
    def queue(self, queue: EventQueue) -> Any:
        """A queue of the SDK's class; what is put into it comes out of ours."""

    @abstractmethod
    def error(self, raised: Exception) -> A2AError | None:
        """One of the protocol's errors that an executor raised on purpose, as ours; None for any other."""


class _SdkIds(IDGenerator):
    """An id generator of the SDK as one of ours."""

    def __init__(self, generator: Any, id_context: Any) -> None:
        self._generator = generator
        self._id_context = id_context

    def generate(self, context: IDGeneratorContext) -> str:
        known = self._id_context(task_id=context.task_id, context_id=context.context_id)
        generated: str = self._generator.generate(known)
        return generated


def request_of(context: RequestContext) -> SendMessageRequest | None:
    """What the client sent, put together again; a cancel has none."""
    if context.message is None:
        return None
    return SendMessageRequest(
        message=context.message,
        tenant=context.tenant or None,
        # The SDK's clients always send one, so executors count on it.
        configuration=context.configuration or SendMessageConfiguration(),
        metadata=context.metadata or None,
    )


def _with_fewer_references(request: SendMessageRequest | None) -> SendMessageRequest | None:
    """Return the request with `MOST_REFERRED` references at most: the SDK's builder loads all of them at once."""
    if request is None or len(request.message.reference_task_ids or ()) <= MOST_REFERRED:
        return request
    references = list(dict.fromkeys(request.message.reference_task_ids or ()))[:MOST_REFERRED]
    message = msgspec.structs.replace(request.message, reference_task_ids=references)
    return msgspec.structs.replace(request, message=message)


def error_named(name: str, message: str | None) -> A2AError:
    """Our error of the same name: both have the names of the specification."""
    return _ERROR_CLASSES.get(name, A2AError)(message)


def forgiven(event: Event) -> Event:
    """The event without what the SDK lets pass and our queue does not.

    A status message that says nothing is dropped, and so are the identifiers in a message: the queue has them, and
    with the SDK's helpers they are easily mixed up.
    """
    if isinstance(event, Message):
        event.task_id = event.context_id = None
    elif isinstance(event, Task | TaskStatusUpdateEvent) and (message := event.status.message) is not None:
        message.task_id = message.context_id = None
        event.status.message = message if message.parts else None
    return event


@contextmanager
def reading(event: object) -> Iterator[None]:
    """Around the conversion of what an executor has enqueued: whatever cannot be read is the agent's mistake."""
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
