"""What an executor written for a2a-sdk 1.x is given: the SDK's own classes around protobuf messages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from a2a.auth.user import UnauthenticatedUser, User
from a2a.server.agent_execution import RequestContext as SdkRequestContext
from a2a.server.context import ServerCallContext as SdkCallContext
from a2a.server.events import EventQueue as SdkEventQueue
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import A2AError as SdkError

from errands.errors import A2AError, InvalidAgentResponseError
from errands.interop.sdk import Sdk, error_named
from errands.operations import OPERATIONS
from errands.runtime.executor import EventQueue, RequestContext, ServerCallContext
from errands.wire.proto.messages import Reader, Writer
from errands.wire.proto.v1_0 import CODEC

logger = logging.getLogger(__name__)

_writer, _reader = Writer(), Reader()
_write_request = CODEC.rpc_of(OPERATIONS["SendMessage"]).ask
_READERS: dict[type, Callable[[Any], Any]] = {
    pb.Task: _reader.task,
    pb.Message: _reader.message,
    pb.TaskStatusUpdateEvent: _reader.status_update,
    pb.TaskArtifactUpdateEvent: _reader.artifact_update,
}


class V1(Sdk):
    def context(self, context: RequestContext) -> SdkRequestContext:
        task = context.current_task
        return SdkRequestContext(
            _call_context(context.call_context),
            request=context.request and _write_request(context.request),
            task_id=context.task_id,
            context_id=context.context_id,
            task=None if task is None else _writer.task(task),
            related_tasks=[_writer.task(one) for one in context.related_tasks],
        )

    def queue(self, queue: EventQueue) -> SdkEventQueue:
        return Queue(queue)

    def error(self, raised: Exception) -> A2AError | None:
        return error_named(type(raised).__name__, raised.message) if isinstance(raised, SdkError) else None


class Queue(SdkEventQueue):
    """Hands every event on as it is at this moment: protobuf messages may be changed later."""

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue
        self._closed = False

    async def enqueue_event(self, event: Any) -> None:
        if self._closed:
            logger.warning("an event was put into a closed queue and is dropped")
            return
        await self._queue.enqueue_event(_read(event))

    # Not of the interface, but of the queue that the SDK's own server hands out.

    async def close(self, immediate: bool = False) -> None:
        self._closed = True

    def is_closed(self) -> bool:
        return self._closed


class Caller(User):
    """Whom middleware has named as the owner."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self._name


def _call_context(call: ServerCallContext) -> SdkCallContext:
    return SdkCallContext(
        state=call.state,
        user=Caller(call.user.user_name) if call.user.is_authenticated else UnauthenticatedUser(),
        tenant=call.tenant,
        requested_extensions=set(call.requested_extensions),
    )


def _read(event: Any) -> Any:
    read = _READERS.get(type(event))
    if read is None:
        raise InvalidAgentResponseError(
            "an executor may enqueue a Message, a Task, a TaskStatusUpdateEvent or a TaskArtifactUpdateEvent, "
            f"not {type(event).__name__}"
        )
    try:
        return read(event)
    except ValueError as error:
        raise InvalidAgentResponseError(f"the agent's {type(event).__name__} cannot be used: {error}") from None


SDK = V1()
