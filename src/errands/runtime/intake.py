"""Which messages an agent takes: checked before anything is written."""

from __future__ import annotations

import hashlib

from msgspec import UNSET

from errands.errors import ContentTypeNotSupportedError, InvalidParamsError
from errands.model.base import encode
from errands.model.core import USER, Message, Part
from errands.model.marks import REVIEW, is_review

#: Bytes of the name that a client gives a conversation. Databases find tasks by it, and not all take any length.
MAX_CONTEXT_ID = 1000


def check_message(message: Message, input_modes: list[str]) -> None:
    """Raises `InvalidParamsError` or `ContentTypeNotSupportedError`."""
    if message.role is not USER:
        raise InvalidParamsError("message.role must be ROLE_USER", field="message.role")
    if message.metadata and is_review(message):
        raise InvalidParamsError(
            f"message.metadata must not have the key {REVIEW}: it is the server's own", field="message.metadata"
        )
    if message.context_id and len(message.context_id.encode("utf-8", "replace")) > MAX_CONTEXT_ID:
        raise InvalidParamsError(f"message.contextId has more than {MAX_CONTEXT_ID} bytes", field="message.contextId")
    for index, part in enumerate(message.parts):
        if part.text is not None and part.media_type is None and "text/plain" in input_modes:
            continue  # what nearly every message is made of
        media_type = media_type_of(part)
        if media_type is not None and media_type not in input_modes and not _matches(media_type, input_modes):
            raise ContentTypeNotSupportedError(
                f"This agent does not take {media_type}; it takes {', '.join(input_modes)}",
                mediaType=media_type,
                part=index,
            )


def media_type_of(part: Part) -> str | None:
    """The part's type: what it says, or what follows from its content. None: not known, so not refused."""
    if part.media_type:
        return part.media_type.partition(";")[0].strip().lower()
    if part.text is not None:
        return "text/plain"
    if part.data is not UNSET:
        return "application/json"
    return None


def _matches(media_type: str, modes: list[str]) -> bool:
    if not modes:
        return True
    family = media_type.partition("/")[0] + "/*"
    return any(mode.lower() in (media_type, family, "*/*", "*") for mode in modes)


def receipt_of(message: Message) -> bytes:
    """The digest by which the same message, sent again to the same place, is recognised.

    An engine keeps receipts apart by scope, so another caller's message is another message.
    """
    return hashlib.blake2b(encode(message), digest_size=16).digest()
