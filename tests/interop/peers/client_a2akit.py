"""The client of a2akit in the conversation: `python client_a2akit.py URL BINDING`."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import contextmanager
from typing import Any

from a2akit import A2AClient, ClientResult
from a2akit.client import A2AClientError, StreamEvent
from conversation import Answer, Refused, Saying, play
from parts_0_3 import sdk_part
from tasks_0_3 import of_message, of_task


@contextmanager
def refusals() -> Any:
    try:
        yield
    except A2AClientError as error:
        # Its client has names for some errors only; of others it tells the status or the code.
        name = type(error).__name__
        raise Refused(str(error)[:40] if name in ("A2AClientError", "ProtocolError") else name) from error


def of_result(result: ClientResult) -> Answer:
    return of_task(result.raw_task) if result.raw_task else of_message(result.raw_message)


def of_event(event: StreamEvent) -> Answer:
    context_id = getattr(event.raw, "context_id", "")
    return Answer(event.task_id or "", context_id, event.state, "" if event.kind == "status" else event.text or "")


def plain_card(card: Any) -> dict[str, Any]:
    return {"name": card.name, "skills": len(card.skills), "streaming": card.capabilities.streaming}


class A2akit:
    def __init__(self, client: A2AClient) -> None:
        self._client = client

    async def card(self) -> dict[str, Any]:
        return plain_card(self._client.agent_card)

    async def extended_card(self) -> dict[str, Any]:
        with refusals():
            return plain_card(await self._client.get_extended_card())

    async def send(self, message: Saying, *, wait: bool = True) -> Answer:
        parts = [sdk_part(part) for part in message.parts]
        place = {"task_id": message.task_id or None, "context_id": message.context_id or None}
        with refusals():
            return of_result(await self._client.send_parts(parts, blocking=wait, **place))

    async def stream(self, message: Saying) -> AsyncIterator[Answer]:
        async for event in self._client.stream(message.parts[0]["text"], task_id=message.task_id or None):
            yield of_event(event)

    async def subscribe(self, task_id: str) -> AsyncIterator[Answer]:
        with refusals():
            async for event in self._client.subscribe(task_id):
                yield of_event(event)

    async def get(self, task_id: str, history_length: int | None = None) -> Answer:
        with refusals():
            return of_result(await self._client.get_task(task_id, history_length=history_length))

    async def list(self, context_id: str) -> list[Answer]:
        with refusals():
            return [of_result(task) for task in (await self._client.list_tasks(context_id=context_id)).tasks]

    async def cancel(self, task_id: str) -> Answer:
        with refusals():
            return of_result(await self._client.cancel(task_id))

    async def set_push(self, task_id: str) -> None:
        with refusals():
            await self._client.set_push_config(task_id, url="https://example.com/hook")


async def main(url: str, binding: str) -> None:
    async with A2AClient(url, protocol=binding) as client:
        await play(A2akit(client))


asyncio.run(main(*sys.argv[1:]))
