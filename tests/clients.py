"""What the clients that load a server have in common, whether it is one process or a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx
import msgspec

from errands.model.core import StreamResponse
from errands.wire.sse import ServerSentEvent, SSEParser

HEADERS = {"A2A-Version": "1.0"}

decode = msgspec.json.Decoder(StreamResponse).decode


def sending(text: str, **configuration: Any) -> dict[str, Any]:
    """The body of a request that sends this as a new message."""
    message = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": text}]}
    return {"message": message, "configuration": configuration}


async def events_of(answer: httpx.Response) -> AsyncIterator[ServerSentEvent]:
    parser = SSEParser()
    async for chunk in answer.aiter_bytes():
        for event in parser.feed(chunk):
            yield event


class Acknowledged:
    """The tasks that the server has told of, and how the messages began that opened them."""

    def __init__(self) -> None:
        self.accepted: dict[str, str] = {}
        self._progress = asyncio.Event()

    def accept(self, task_id: str, text: str) -> None:
        self.accepted.setdefault(task_id, text)
        self._progress.set()

    async def accept_more(self, count: int) -> None:
        """Waits until so many more tasks were accepted."""
        goal = len(self.accepted) + count
        while len(self.accepted) < goal:
            self._progress.clear()
            await self._progress.wait()
