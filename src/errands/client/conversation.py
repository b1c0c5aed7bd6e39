"""A conversation with an agent: turn after turn in one context."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, Unpack

from msgspec import UNSET, UnsetType

from errands.client.compose import Content, MessageOptions, compose
from errands.client.ledger import Ledger
from errands.client.result import ClientResult, Memory, StreamEvent
from errands.client.text import text_pieces
from errands.client.transport import Received
from errands.model.core import (
    PAUSED_STATES,
    Message,
    TaskState,
)


class Talker(Protocol):
    """What a conversation needs of a client."""

    async def send(
        self,
        text: Content,
        *,
        blocking: bool = True,
        timeout: float | UnsetType | None = UNSET,
        **options: Unpack[MessageOptions],
    ) -> ClientResult: ...

    def stream(
        self, text: Content, *, timeout: float | None = None, **options: Unpack[MessageOptions]
    ) -> AsyncGenerator[StreamEvent, None]: ...


@dataclass(frozen=True, slots=True)
class Turn:
    """What was said and what came of it."""

    message: Message
    result: ClientResult


class Conversation:
    """Carries the context from turn to turn, and the task while it waits for an answer.

    After a task has ended the next message starts a new task in the same context.
    """

    def __init__(
        self,
        client: Talker,
        *,
        context_id: str | None = None,
        task_id: str | None = None,
        memory: Memory | None = None,
    ) -> None:
        self._client = client
        self._memory = memory or Memory()
        self.context_id = context_id
        #: The task of the last turn.
        self.task_id = task_id
        #: Where that task stands, such as "input-required"; None before the first turn.
        self.state: str | None = None
        self.history: list[Turn] = []
        self._continues = task_id is not None

    async def send(
        self,
        text: Content,
        *,
        blocking: bool = True,
        timeout: float | UnsetType | None = UNSET,
        **options: Unpack[MessageOptions],
    ) -> ClientResult:
        """One turn; the options are those of `A2AClient.send`."""
        message = self._placed(text, options)
        result = await self._client.send(message, blocking=blocking, timeout=timeout, **options)
        self._conclude(message, result)
        return result

    async def stream(
        self, text: Content, *, timeout: float | None = None, **options: Unpack[MessageOptions]
    ) -> AsyncGenerator[StreamEvent, None]:
        """One turn as it happens; the options are those of `A2AClient.stream`."""
        message = self._placed(text, options)
        ledger = Ledger()
        try:
            async with aclosing(self._client.stream(message, timeout=timeout, **options)) as events:
                async for event in events:
                    ledger.admit(Received(event.response), opening=False)
                    yield event
        finally:
            if ledger.message is not None:
                self._conclude(message, ClientResult.from_message(ledger.message))
            elif (task := ledger.task()) is not None:
                self._conclude(message, self._memory.result(task, is_new=not message.task_id))

    def stream_text(
        self, text: Content, *, timeout: float | None = None, **options: Unpack[MessageOptions]
    ) -> AsyncGenerator[str, None]:
        """One turn as pieces of text."""
        return text_pieces(self.stream(text, timeout=timeout, **options), continues=self._continues)

    def _placed(self, text: Content, options: MessageOptions) -> Message:
        """The message as it is sent: in this context and, while it waits, to this task."""
        if self.context_id is not None:
            options.setdefault("context_id", self.context_id)
        if self._continues:
            options.setdefault("task_id", self.task_id)
        return compose(text, **options).message

    def _conclude(self, message: Message, result: ClientResult) -> None:
        self.history.append(Turn(message, result))
        self.context_id = result.context_id or self.context_id
        self.task_id = result.task_id or None
        self.state = result.state
        self._continues = TaskState.parse(result.state) in PAUSED_STATES
