"""What a request must have before it is taken: the same as over JSON, with the field in the error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from errands.errors import InvalidParamsError
from errands.wire.proto.messages import ROLES

#: The largest number that the fields of the protocol hold.
MAX_INT = 2**31 - 1


def required(value: str, field: str) -> str:
    """The value. Raises `InvalidParamsError` for an empty one."""
    if not value:
        raise InvalidParamsError(f"{field} is required", field=field)
    return value


def within(value: int, field: str, least: int, most: int) -> int:
    """The value. Raises `InvalidParamsError` for one that is out of bounds."""
    if not least <= value <= most:
        raise InvalidParamsError(f"{field} must be from {least} to {most}, not {value}", field=field)
    return value


def check_message(message: Any, parts: Sequence[Any], content: str) -> None:
    """A message that a client sends; `content` is the oneof in which its parts have theirs."""
    required(message.message_id, "message.messageId")
    if not 0 < message.role < len(ROLES):
        raise InvalidParamsError("message.role must be ROLE_USER or ROLE_AGENT", field="message.role")
    if not parts:
        raise InvalidParamsError("message.parts must have at least one part", field="message.parts")
    for number, part in enumerate(parts):
        if part.WhichOneof(content) is None:
            field = f"message.parts[{number}]"
            raise InvalidParamsError(f"{field} has no content", field=field)
