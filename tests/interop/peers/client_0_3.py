"""The client of a2a-sdk 0.3.26 in the conversation: `python client_0_3.py URL BINDING`.

With a task's id after that it follows this task and does nothing else.
"""

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import contextmanager
from typing import Any

import grpc
import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientHTTPError, A2AClientJSONRPCError
from a2a.types import (
    AgentCard,
    Message,
    MessageSendConfiguration,
    PushNotificationConfig,
    Role,
    TaskArtifactUpdateEvent,
    TaskIdParams,
    TaskPushNotificationConfig,
    TaskQueryParams,
)
from conversation import Answer, Refused, Saying, follow, play
from parts_0_3 import sdk_part, text_of
from tasks_0_3 import of_message, of_task

#: What the SDK does not name itself: an error on JSON-RPC is its code, and over HTTP+JSON and gRPC only a status.
ERRORS = {
    -32001: "TaskNotFoundError",
    -32002: "TaskNotCancelableError",
    -32003: "PushNotificationNotSupportedError",
    -32004: "UnsupportedOperationError",
    -32602: "InvalidParamsError",
}


@contextmanager
def refusals() -> Any:
    try:
        yield
    except A2AClientJSONRPCError as error:
        raise Refused(ERRORS.get(error.error.code, str(error.error.code))) from error
    except A2AClientHTTPError as error:
        raise Refused(str(error.status_code)) from error
    except grpc.aio.AioRpcError as error:
        raise Refused(error.code().name) from error


def of_event(event: Any) -> Answer:
    if isinstance(event, Message):
        return of_message(event)
    task, update = event
    if update is None:
        return of_task(task)
    if isinstance(update, TaskArtifactUpdateEvent):
        return Answer(update.task_id, update.context_id, text=text_of(update.artifact.parts))
    return Answer(update.task_id, update.context_id, update.status.state.value)


def plain_card(card: AgentCard) -> dict[str, Any]:
    return {"name": card.name, "skills": len(card.skills), "streaming": card.capabilities.streaming}


def sdk_message(saying: Saying) -> Message:
    return Message(
        message_id=uuid.uuid4().hex,
        role=Role.user,
        parts=[sdk_part(part) for part in saying.parts],
        task_id=saying.task_id or None,
        context_id=saying.context_id or None,
    )


class Sdk:
    """Two clients: the SDK decides by its configuration whether a message is sent as a stream."""

    def __init__(self, card: AgentCard, plain: Any, streaming: Any) -> None:
        self._card = card
        self._plain = plain
        self._streaming = streaming

    async def card(self) -> dict[str, Any]:
        return plain_card(self._card)

    async def extended_card(self) -> dict[str, Any]:
        with refusals():
            return plain_card(await self._plain.get_card())

    async def send(self, message: Saying, *, wait: bool = True) -> Answer:
        options = MessageSendConfiguration(blocking=wait)
        with refusals():
            [event] = [e async for e in self._plain.send_message(sdk_message(message), configuration=options)]
        return of_event(event)

    async def stream(self, message: Saying) -> AsyncIterator[Answer]:
        async for event in self._streaming.send_message(sdk_message(message)):
            yield of_event(event)

    async def subscribe(self, task_id: str) -> AsyncIterator[Answer]:
        with refusals():
            async for event in self._streaming.resubscribe(TaskIdParams(id=task_id)):
                yield of_event(event)

    async def get(self, task_id: str, history_length: int | None = None) -> Answer:
        with refusals():
            return of_task(await self._plain.get_task(TaskQueryParams(id=task_id, history_length=history_length)))

    async def list(self, _context_id: str) -> list[Answer]:
        raise Refused("the client cannot list")

    async def cancel(self, task_id: str) -> Answer:
        with refusals():
            return of_task(await self._plain.cancel_task(TaskIdParams(id=task_id)))

    async def set_push(self, task_id: str) -> None:
        config = PushNotificationConfig(id="hook", url="https://example.com/hook")
        with refusals():
            await self._plain.set_task_callback(
                TaskPushNotificationConfig(task_id=task_id, push_notification_config=config)
            )


async def main(url: str, binding: str, task_id: str | None = None) -> None:
    async with httpx.AsyncClient(timeout=None) as http:
        card = await A2ACardResolver(http, url).get_agent_card()

        def client(streaming: bool) -> Any:
            config = ClientConfig(
                streaming=streaming,
                httpx_client=http,
                supported_transports=[binding],
                grpc_channel_factory=grpc.aio.insecure_channel,
            )
            return ClientFactory(config).create(card.model_copy())

        sdk = Sdk(card, client(False), client(True))
        await (play(sdk) if task_id is None else follow(sdk, task_id))


asyncio.run(main(*sys.argv[1:]))
