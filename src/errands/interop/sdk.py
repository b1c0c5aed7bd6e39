"""The port to one generation of the official SDK: our request and queue as its own classes, its errors as ours."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from errands.errors import A2AError, InvalidAgentResponseError
from errands.model.core import Message, Task, TaskStatusUpdateEvent
from errands.model.requests import SendMessageConfiguration, SendMessageRequest
from errands.runtime.executor.queue import Event, EventQueue
from errands.runtime.executor.request import RequestContext
from errands.wire.dialect import MalformedAnswerError
from errands.wire.status import ERRORS

_ERROR_CLASSES = {cls.__name__: cls for cls in ERRORS.values()}


class Sdk(ABC):
    @abstractmethod
    def context(self, context: RequestContext, task: Task | None) -> Any:
        """The SDK's RequestContext, with everything that ours has, and with this task as the current one."""

    @abstractmethod
    def queue(self, queue: EventQueue) -> Any:
        """A queue of the SDK's class; what is put into it comes out of ours."""

    @abstractmethod
    def error(self, raised: Exception) -> A2AError | None:
        """One of the protocol's errors that an executor raised on purpose, as ours; None for any other."""


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
