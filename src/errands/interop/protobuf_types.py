"""The types of a2a-sdk 1.x, which are protobuf messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from a2a.server.agent_execution import RequestContext as SdkRequestContext
from a2a.server.context import ServerCallContext as SdkCallContext
from a2a.server.events import EventQueue as SdkEventQueue
from a2a.server.id_generator import IDGeneratorContext
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import A2AError as SdkError

from errands.errors import A2AError, InvalidParamsError
from errands.interop.executors import SdkBridge, converting, error_named, tolerated
from errands.interop.users import caller_of
from errands.model.core import Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from errands.model.requests import SendMessageRequest
from errands.operations import OPERATIONS
from errands.runtime.executor import Event, EventQueue, ServerCallContext
from errands.wire.proto.codec import CODECS
from errands.wire.proto.json_values import MAX_DEPTH, TooDeepError, check_levels

_codec = CODECS["1.0"]
_write_request = _codec.rpc_of(OPERATIONS["SendMessage"]).ask
_write_task = _codec.rpc_of(OPERATIONS["GetTask"]).write
_READERS: dict[type, Callable[[Any], Event]] = {
    kind: _codec.schema.reader(kind.DESCRIPTOR, model)
    for kind, model in (
        (pb.Task, Task),
        (pb.Message, Message),
        (pb.TaskStatusUpdateEvent, TaskStatusUpdateEvent),
        (pb.TaskArtifactUpdateEvent, TaskArtifactUpdateEvent),
    )
}


class ProtobufBridge(SdkBridge):
    """The port to a2a-sdk 1.x."""

    id_context = IDGeneratorContext
    request_context = SdkRequestContext

    def request(self, request: SendMessageRequest) -> Any:
        try:
            check_levels(request)
        except TooDeepError:
            raise InvalidParamsError(f"This agent accepts JSON nested at most {MAX_DEPTH} levels deep") from None
        return _write_request(request)

    def task(self, task: Task) -> Any:
        return _write_task(task)

    def call_context(self, call: ServerCallContext) -> SdkCallContext:
        return SdkCallContext(
            state=call.state,
            user=caller_of(call),
            tenant=call.tenant,
            requested_extensions=call.requested_extensions,
        )

    def queue(self, queue: EventQueue) -> SdkEventQueue:
        return ProtobufQueue(queue)

    def error(self, raised: Exception) -> A2AError | None:
        return error_named(type(raised).__name__, raised.message) if isinstance(raised, SdkError) else None


class ProtobufQueue(SdkEventQueue):
    """Passes on every event as it is at this moment, because protobuf messages may be changed later."""

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue

    async def enqueue_event(self, event: Any) -> None:
        with converting(event):
            read = _READERS[type(event)](event)
        await self._queue.enqueue_event(tolerated(read))

    # Not in the SDK's interface, but in the queue that its own server passes to executors.

    async def close(self, immediate: bool = False) -> None:
        await self._queue.close()

    def is_closed(self) -> bool:
        return self._queue.is_closed()


SDK = ProtobufBridge()
