"""From a call's arguments to the request that is sent."""

from __future__ import annotations

import uuid
from typing import Any, TypedDict

import msgspec

from errands.model.core import Message, Part, Role
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
    #: The same with every setting.
    push_notification_config: TaskPushNotificationConfig | None


def compose(
    content: Content,
    *,
    task_id: str | None = None,
    context_id: str | None = None,
    blocking: bool = True,
    metadata: dict[str, Any] | None = None,
    history_length: int | None = None,
    accepted_output_modes: list[str] | None = None,
    message_id: str | None = None,
    push_url: str | None = None,
    push_token: str | None = None,
    push_notification_config: TaskPushNotificationConfig | None = None,
) -> SendMessageRequest:
    """The request with a message id of its own, so that every retry sends the very same message."""
    if push_url is not None and push_notification_config is None:
        push_notification_config = TaskPushNotificationConfig(url=push_url, token=push_token)
    configuration = SendMessageConfiguration(
        accepted_output_modes=accepted_output_modes,
        task_push_notification_config=push_notification_config,
        history_length=history_length,
        return_immediately=not blocking,
    )
    overrides = {
        "task_id": task_id,
        "context_id": context_id,
        "metadata": metadata,
        "message_id": message_id,
    }
    message = msgspec.structs.replace(
        _message(content), **{name: value for name, value in overrides.items() if value is not None}
    )
    return SendMessageRequest(
        message=message,
        configuration=None if configuration == SendMessageConfiguration() else configuration,
    )


def _message(content: Content) -> Message:
    if isinstance(content, Message):
        return content
    parts = [Part(text=content)] if isinstance(content, str) else list(content)
    if not parts:
        raise ValueError("a message needs at least one part")
    return Message(message_id=str(uuid.uuid4()), role=Role.USER, parts=parts)
