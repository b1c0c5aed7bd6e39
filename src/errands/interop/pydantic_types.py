"""The types of a2a-sdk 0.3, which are pydantic models.

They are converted through the JSON of version 0.3, which the models read and write. Type checkers see the installed
generation of the SDK, which is the other one; hence Any.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import msgspec

from errands.errors import A2AError
from errands.interop.executors import SdkBridge, converting, error_named, tolerated
from errands.interop.users import caller_of
from errands.model.core import Task
from errands.model.requests import SendMessageRequest
from errands.runtime.executor import EventQueue, ServerCallContext
from errands.wire.v0_3 import JSONRPC
from errands.wire.v0_3_objects import SCHEMA

types: Any = import_module("a2a.types")
SdkRequestContext: Any = import_module("a2a.server.agent_execution").RequestContext
SdkCallContext: Any = import_module("a2a.server.context").ServerCallContext
SdkEventQueue: Any = import_module("a2a.server.events").EventQueue
SdkError: Any = import_module("a2a.utils.errors").ServerError

_EVENTS = (types.Task, types.Message, types.TaskStatusUpdateEvent, types.TaskArtifactUpdateEvent)


class PydanticBridge(SdkBridge):
    """The port to a2a-sdk 0.3."""

    id_context = import_module("a2a.server.id_generator").IDGeneratorContext
    request_context = SdkRequestContext

    def request(self, request: SendMessageRequest) -> Any:
        return types.MessageSendParams.model_validate(SCHEMA.write_send(request))

    def task(self, task: Task) -> Any:
        return types.Task.model_validate(SCHEMA.write_task(msgspec.to_builtins(task)))

    def call_context(self, call: ServerCallContext) -> Any:
        return SdkCallContext(
            state=call.state,
            user=caller_of(call),
            requested_extensions=call.requested_extensions,
            activated_extensions=call.activated_extensions,
        )

    def queue(self, queue: EventQueue) -> Any:
        return PydanticQueue(queue)

    def error(self, raised: Exception) -> A2AError | None:
        if not isinstance(raised, SdkError):
            return None
        return error_named(type(raised.error).__name__, getattr(raised.error, "message", None))


class PydanticQueue(SdkEventQueue):  # type: ignore[misc]
    """Passes on every event as it is at this moment, because models may be changed later. Child queues get it, too."""

    def __init__(self, queue: EventQueue) -> None:
        super().__init__()
        self._errands_queue = queue

    async def enqueue_event(self, event: Any) -> None:
        with converting(event):
            if not isinstance(event, _EVENTS):
                raise KeyError(type(event))
            response = JSONRPC.read_event(event.model_dump_json(by_alias=True, exclude_none=True).encode())
        read = response.status_update or response.artifact_update or response.task or response.message
        assert read is not None
        await self._errands_queue.enqueue_event(tolerated(read))
        for child in self._children:
            await child.enqueue_event(event)

    async def close(self, *arguments: Any, **options: Any) -> None:
        await self._errands_queue.close()
        await super().close(*arguments, **options)

    def is_closed(self) -> bool:
        return self._errands_queue.is_closed()


SDK = PydanticBridge()
