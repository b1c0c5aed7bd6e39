"""What is said to an agent: composing messages, and a conversation, turn after turn in one context."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict, Unpack

import msgspec
from msgspec import UNSET, UnsetType

from errands.client.agent_session import Received
from errands.client.credentials import CredentialsLike
from errands.client.results import ClientResult, ResultMemory, StreamEvent, text_pieces
from errands.client.task_stream import SeenTask
from errands.model.core import PAUSED_STATES, Message, Part, Role, TaskState
from errands.model.requests import SendMessageConfiguration, SendMessageRequest, TaskPushNotificationConfig

#: What can be sent: a text, parts, or a whole message.
Content = str | list[Part] | Message


class MessageOptions(TypedDict, total=False):
    """The keyword arguments that every way of sending a message takes."""

    #: Continue this task: it waits for input or authorization.
    task_id: str | None
    #: Continue this conversation; a new task starts in it unless `task_id` is given.
    context_id: str | None
    #: Metadata of the message.
    metadata: dict[str, Any] | None
    #: How many messages of its history the task is returned with; None leaves it to the agent.
    history_length: int | None
    accepted_output_modes: list[str] | None
    #: The message's id; give one to send a message again that may not have arrived.
    message_id: str | None
    #: Where the agent sends updates of the task, and the token it shows there.
    push_url: str | None
    push_token: str | None
    #: The same with all settings.
    push_notification_config: TaskPushNotificationConfig | None


def compose(content: Content, *, blocking: bool = True, **options: Unpack[MessageOptions]) -> SendMessageRequest:
    """Return the request with a message id of its own, so that every retry sends the same message."""
    if unknown := options.keys() - MessageOptions.__annotations__.keys():
        raise TypeError(f"unknown option of a message: {', '.join(unknown)}")
    if isinstance(content, Message):
        message = content
    else:
        parts = [Part(text=content)] if isinstance(content, str) else list(content)
        if not parts:
            raise ValueError("a message needs at least one part")
        message = Message(message_id=str(uuid.uuid4()), role=Role.USER, parts=parts)
    overrides = {name: options.get(name) for name in ("task_id", "context_id", "metadata", "message_id")}
    push = options.get("push_notification_config")
    if push is None and (push_url := options.get("push_url")) is not None:
        push = TaskPushNotificationConfig(url=push_url, token=options.get("push_token"))
    configuration = SendMessageConfiguration(
        accepted_output_modes=options.get("accepted_output_modes"),
        task_push_notification_config=push,
        history_length=options.get("history_length"),
        return_immediately=not blocking,
    )
    return SendMessageRequest(
        message=msgspec.structs.replace(message, **{k: value for k, value in overrides.items() if value is not None}),
        configuration=None if configuration == SendMessageConfiguration() else configuration,
    )


class MessageSender(Protocol):
    """What a conversation needs of a client."""

    @property
    def send(self) -> Callable[..., Awaitable[ClientResult]]: ...
    @property
    def stream(self) -> Callable[..., AsyncGenerator[StreamEvent, None]]: ...


@dataclass(frozen=True, slots=True)
class ConversationTurn:
    """A message and its result."""

    #: What was sent.
    message: Message
    #: What came back.
    result: ClientResult


class Conversation:
    """Carries the context from turn to turn, and the task while it waits for an answer.

    After a task has ended the next message starts a new task in the same context.
    """

    def __init__(
        self,
        client: MessageSender,
        *,
        context_id: str | None = None,
        task_id: str | None = None,
        memory: ResultMemory | None = None,
    ) -> None:
        self._client = client
        self._memory = memory or ResultMemory()
        self.context_id = context_id
        #: The task of the last turn.
        self.task_id = task_id
        #: Where that task stands, such as "input-required"; None before the first turn.
        self.state: str | None = None
        self.history: list[ConversationTurn] = []
        self._continues = task_id is not None

    async def send(
        self,
        text: Content,
        *,
        blocking: bool = True,
        timeout: float | UnsetType | None = UNSET,
        credentials: CredentialsLike | None = None,
        **options: Unpack[MessageOptions],
    ) -> ClientResult:
        """Send the next message; the options are those of `A2AClient.send`."""
        message = self._placed(text, options)
        result = await self._client.send(
            message, blocking=blocking, timeout=timeout, credentials=credentials, **options
        )
        self._conclude(message, result)
        return result

    async def stream(
        self,
        text: Content,
        *,
        timeout: float | None = None,
        credentials: CredentialsLike | None = None,
        **options: Unpack[MessageOptions],
    ) -> AsyncGenerator[StreamEvent, None]:
        """Send the next message and yield what happens; the options are those of `A2AClient.stream`."""
        message = self._placed(text, options)
        seen = SeenTask()
        try:
            async with aclosing(
                self._client.stream(message, timeout=timeout, credentials=credentials, **options)
            ) as events:
                async for event in events:
                    seen.admit(Received(event.response), opening=False)
                    yield event
        finally:
            if seen.message is not None:
                self._conclude(message, ClientResult.from_message(seen.message))
            elif (task := seen.task()) is not None:
                self._conclude(message, self._memory.result(task, is_new=not message.task_id))

    def stream_text(
        self,
        text: Content,
        *,
        timeout: float | None = None,
        credentials: CredentialsLike | None = None,
        **options: Unpack[MessageOptions],
    ) -> AsyncGenerator[str, None]:
        """Send the next message and yield pieces of text."""
        return text_pieces(
            self.stream(text, timeout=timeout, credentials=credentials, **options), continues=self._continues
        )

    def _placed(self, text: Content, options: MessageOptions) -> Message:
        """Return the message as it is sent: in this context and, while it waits, to this task."""
        if self.context_id is not None:
            options.setdefault("context_id", self.context_id)
        if self._continues:
            options.setdefault("task_id", self.task_id)
        return compose(text, **options).message

    def _conclude(self, message: Message, result: ClientResult) -> None:
        self.history.append(ConversationTurn(message, result))
        self.context_id = result.context_id or self.context_id
        self.task_id = result.task_id or None
        self.state = result.state
        self._continues = TaskState.parse(result.state) in PAUSED_STATES
