"""The client of a2a-sdk 1.3.0 in the conversation: `python client_1_3.py URL BINDING`.

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
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import A2AError
from conversation import Answer, Refused, Saying, follow, play
from parts_1_3 import plain_part, sdk_part, text_of


@contextmanager
def refusals() -> Any:
    try:
        yield
    except A2AError as error:
        raise Refused(type(error).__name__) from error


def short(state: int) -> str:
    return TaskState.Name(state).removeprefix("TASK_STATE_").lower().replace("_", "-")


def role(message: Message) -> str:
    return Role.Name(message.role).removeprefix("ROLE_").lower()


def of_task(task: Task) -> Answer:
    parts = [part for artifact in task.artifacts for part in artifact.parts]
    return Answer(
        task.id,
        task.context_id,
        short(task.status.state),
        text_of(parts),
        text_of(task.status.message.parts),
        [(role(message), text_of(message.parts)) for message in task.history],
        [plain_part(part) for part in parts],
    )


def of_event(event: StreamResponse) -> Answer:
    kind = event.WhichOneof("payload")
    if kind == "task":
        return of_task(event.task)
    if kind == "message":
        return Answer(text=text_of(event.message.parts), is_message=True)
    if kind == "status_update":
        update = event.status_update
        return Answer(update.task_id, update.context_id, short(update.status.state))
    update = event.artifact_update
    return Answer(update.task_id, update.context_id, text=text_of(update.artifact.parts))


def plain_card(card: AgentCard) -> dict[str, Any]:
    return {"name": card.name, "skills": len(card.skills), "streaming": card.capabilities.streaming}


def request(saying: Saying, *, wait: bool = True) -> SendMessageRequest:
    message = Message(
        message_id=uuid.uuid4().hex,
        role=Role.ROLE_USER,
        parts=[sdk_part(part) for part in saying.parts],
        task_id=saying.task_id,
        context_id=saying.context_id,
    )
    return SendMessageRequest(message=message, configuration=SendMessageConfiguration(return_immediately=not wait))


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
            return plain_card(await self._plain.get_extended_agent_card(GetExtendedAgentCardRequest()))

    async def send(self, message: Saying, *, wait: bool = True) -> Answer:
        with refusals():
            [event] = [event async for event in self._plain.send_message(request(message, wait=wait))]
        return of_event(event)

    async def stream(self, message: Saying) -> AsyncIterator[Answer]:
        async for event in self._streaming.send_message(request(message)):
            yield of_event(event)

    async def subscribe(self, task_id: str) -> AsyncIterator[Answer]:
        with refusals():
            async for event in self._streaming.subscribe(SubscribeToTaskRequest(id=task_id)):
                yield of_event(event)

    async def get(self, task_id: str, history_length: int | None = None) -> Answer:
        with refusals():
            return of_task(await self._plain.get_task(GetTaskRequest(id=task_id, history_length=history_length)))

    async def list(self, context_id: str) -> list[Answer]:
        page = await self._plain.list_tasks(ListTasksRequest(context_id=context_id))
        return [of_task(task) for task in page.tasks]

    async def cancel(self, task_id: str) -> Answer:
        with refusals():
            return of_task(await self._plain.cancel_task(CancelTaskRequest(id=task_id)))

    async def set_push(self, task_id: str) -> None:
        config = TaskPushNotificationConfig(task_id=task_id, url="https://example.com/hook")
        with refusals():
            await self._plain.create_task_push_notification_config(config)


async def main(url: str, binding: str, task_id: str | None = None) -> None:
    async with httpx.AsyncClient(timeout=None) as http:
        card = await A2ACardResolver(http, url).get_agent_card()

        def client(streaming: bool) -> Any:
            config = ClientConfig(
                streaming=streaming,
                httpx_client=http,
                supported_protocol_bindings=[binding],
                grpc_channel_factory=grpc.aio.insecure_channel,
            )
            return ClientFactory(config).create(card)

        sdk = Sdk(card, client(False), client(True))
        await (play(sdk) if task_id is None else follow(sdk, task_id))


asyncio.run(main(*sys.argv[1:]))
