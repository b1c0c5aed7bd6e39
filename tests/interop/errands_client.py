"""errands' client in the conversation."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from errands import A2AClient, ErrandsError, Message, Part, Task
from errands.client import StreamEvent
from errands.client.results import ClientResult
from errands.model.card import AgentCard
from tests.interop.parts import errands_part, plain_part
from tests.interop.peers.conversation import Answer, Refused, Saying


@contextmanager
def refusals() -> Iterator[None]:
    try:
        yield
    except ErrandsError as error:
        raise Refused(type(error).__name__) from error


def text_of(parts: list[Part]) -> str:
    return "".join(part.text or "" for part in parts)


def of_task(task: Task) -> Answer:
    parts = [part for artifact in task.artifacts or [] for part in artifact.parts]
    return Answer(
        task.id,
        task.context_id or "",
        task.status.state.short,
        text_of(parts),
        text_of(task.status.message.parts) if task.status.message else "",
        [(message.role.removeprefix("ROLE_").lower(), text_of(message.parts)) for message in task.history or []],
        [plain_part(part) for part in parts],
    )


def of_message(message: Message) -> Answer:
    return Answer(text=text_of(message.parts), is_message=True)


def of_result(result: ClientResult) -> Answer:
    if result.raw_message is not None:
        return of_message(result.raw_message)
    assert result.raw_task is not None
    return of_task(result.raw_task)


def of_event(event: StreamEvent) -> Answer:
    state = event.state if event.kind in ("task", "status") else None
    return Answer(event.task_id or "", event.context_id or "", state, event.text or "")


def plain_card(card: AgentCard) -> dict[str, Any]:
    return {"name": card.name, "skills": len(card.skills), "streaming": card.capabilities.streaming}


def said(message: Saying) -> dict[str, Any]:
    return {
        "text": [errands_part(part) for part in message.parts],
        "task_id": message.task_id or None,
        "context_id": message.context_id or None,
    }


class ErrandsCaller:
    def __init__(self, client: A2AClient) -> None:
        self._client = client

    async def card(self) -> dict[str, Any]:
        return plain_card(self._client.agent_card)

    async def extended_card(self) -> dict[str, Any]:
        with refusals():
            return plain_card(await self._client.get_extended_card())

    async def send(self, message: Saying, *, wait: bool = True) -> Answer:
        with refusals():
            return of_result(await self._client.send(**said(message), blocking=wait))

    async def stream(self, message: Saying) -> AsyncIterator[Answer]:
        async for event in self._client.stream(**said(message)):
            yield of_event(event)

    async def subscribe(self, task_id: str) -> AsyncIterator[Answer]:
        with refusals():
            async for event in self._client.subscribe(task_id):
                yield of_event(event)

    async def get(self, task_id: str, history_length: int | None = None) -> Answer:
        with refusals():
            return of_result(await self._client.get_task(task_id, history_length=history_length))

    async def list(self, context_id: str) -> builtins.list[Answer]:
        with refusals():
            return [of_result(task) async for task in self._client.list_tasks(context_id=context_id)]

    async def cancel(self, task_id: str) -> Answer:
        with refusals():
            return of_result(await self._client.cancel(task_id))

    async def set_push(self, task_id: str) -> None:
        with refusals():
            await self._client.set_push_config(task_id, url="https://example.com/hook")
