"""What a client of PraisonAI asks for, read as leniently as PraisonAI's own server does."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import msgspec

from errands.errors import InvalidParamsError, MethodNotFoundError, ParseError
from errands.model.base import Metadata, Model
from errands.model.core import Message, Part, Role
from errands.model.requests import (
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    SendMessageConfiguration,
    SendMessageRequest,
    TaskPushNotificationConfig,
)
from errands.operations import OPERATIONS, Operation
from errands.wire.bounds import check_parts
from errands.wire.praisonai.incoming import AnyMessage
from errands.wire.praisonai.names import METHODS

#: A listing is one array without pages, so it needs a bound: the newest so many tasks, if they have room on one page.
MOST_LISTED = 1000

_USER_ROLES = frozenset({"user", Role.USER.value})


class _Configuration(msgspec.Struct, rename="camel"):
    return_immediately: bool = False
    snake_return_immediately: bool = msgspec.field(default=False, name="return_immediately")
    accepted_output_modes: list[str] | None = None
    accept_content_types: list[str] | None = None
    push_notification_config: TaskPushNotificationConfig | None = None


class _SendParams(msgspec.Struct):
    message: AnyMessage | None = None
    configuration: _Configuration | None = None
    metadata: Metadata | None = None


class _IdParams(msgspec.Struct):
    id: str | None = None


class _ListParams(msgspec.Struct, rename="camel"):
    context_id: str | None = None
    snake_context_id: str | None = msgspec.field(default=None, name="context_id")


def read_request(method: str, params: bytes, max_parts: int) -> tuple[Operation, Model]:
    """The operation behind a method and its request.

    Raises `MethodNotFoundError`, `InvalidParamsError`, `ParseError` and, for more than `max_parts` parts,
    `PayloadTooLargeError`.
    """
    name = METHODS.get(method)
    if name is None:
        if method.startswith("tasks/pushNotificationConfig/"):
            raise MethodNotFoundError(f"Push notifications not supported: {method[:100]}")
        raise MethodNotFoundError(f"Method not found: {method[:100]}")
    try:
        return OPERATIONS[name], _READERS[name](params, max_parts)
    except msgspec.ValidationError as error:
        raise InvalidParamsError(f"Invalid params: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParseError(f"Invalid JSON payload: {error}") from None
    except RecursionError:
        raise InvalidParamsError("Invalid params: nested too deeply") from None


def _read_send(params: bytes, max_parts: int) -> SendMessageRequest:
    request = msgspec.json.decode(params, type=_SendParams)
    if request.message is None:
        raise InvalidParamsError("Invalid params: 'message' required", field="message")
    # Before they are converted, which takes many times as long as decoding them.
    check_parts(len(request.message.parts), max_parts)
    wishes = request.configuration or _Configuration()
    return SendMessageRequest(
        message=_read_message(request.message),
        configuration=SendMessageConfiguration(
            return_immediately=wishes.return_immediately or wishes.snake_return_immediately,
            accepted_output_modes=wishes.accepted_output_modes or wishes.accept_content_types,
            task_push_notification_config=wishes.push_notification_config,
        ),
        metadata=request.metadata,
    )


def _read_message(message: AnyMessage) -> Message:
    if message.role not in _USER_ROLES:
        raise InvalidParamsError(f"Invalid params: role must be 'user', not {message.role[:40]!r}", field="role")
    parts: list[Part] = []
    for index, part in enumerate(message.parts):
        contents = list(part.parts())
        if not contents:
            raise InvalidParamsError(
                f"Invalid params: part {index} has no content; give it text, url, fileWithUri, fileWithBytes or data",
                field=f"message.parts[{index}]",
            )
        parts += contents
    if not parts:
        raise InvalidParamsError("Invalid params: Message must contain at least one part", field="message.parts")
    return Message(
        # Not PraisonAI's constant: two messages with the same id and text would be one message sent twice.
        message_id=message.message_id or uuid.uuid4().hex,
        role=Role.USER,
        parts=parts,
        context_id=message.context_id or None,
        task_id=message.task_id or None,
        metadata=message.metadata,
        extensions=list(message.extensions) if message.extensions else None,
        reference_task_ids=message.reference_task_ids,
    )


def _read_id(params: bytes) -> str:
    request = msgspec.json.decode(params, type=_IdParams)
    if not request.id:
        raise InvalidParamsError("Invalid params: 'id' required", field="id")
    return request.id


def _read_get(params: bytes, _: int) -> GetTaskRequest:
    return GetTaskRequest(id=_read_id(params))


def _read_cancel(params: bytes, _: int) -> CancelTaskRequest:
    return CancelTaskRequest(id=_read_id(params))


def _read_list(params: bytes, _: int) -> ListTasksRequest:
    request = msgspec.json.decode(params, type=_ListParams)
    context_id = request.context_id or request.snake_context_id or None
    return ListTasksRequest(context_id=context_id, page_size=MOST_LISTED, include_artifacts=True)


def _read_extended_card(params: bytes, _: int) -> GetExtendedAgentCardRequest:
    return GetExtendedAgentCardRequest()


_READERS: dict[str, Callable[[bytes, int], Model]] = {
    "SendMessage": _read_send,
    "SendStreamingMessage": _read_send,
    "GetTask": _read_get,
    "ListTasks": _read_list,
    "CancelTask": _read_cancel,
    "GetExtendedAgentCard": _read_extended_card,
}
