"""Checks of the arguments that an agent's code passes in, so that everything in the log can be read back.

The constructors of the model check the types of their fields. These functions check the rest where the agent's code
calls us, so that the exception names the argument and nothing has been written.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from errands.model.base import encode
from errands.model.core import Artifact, Message, Part, StreamResponse, Task
from errands.model.requests import SendMessageRequest
from errands.wire.bounds import MAX_DEPTH, is_too_deep

#: Levels of a JSON value of an agent. Requests are read up to `MAX_DEPTH` levels, and a task adds some around it.
MAX_LEVELS = MAX_DEPTH - 20

Passed = TypeVar("Passed", Message, StreamResponse, SendMessageRequest)

_decode = msgspec.json.decode


def json_value(name: str, value: Any) -> Any:
    """Return a copy of `value` as plain JSON, which later changes by the agent do not reach.

    Dates, UUIDs, enums, sets, dataclasses and msgspec structs take their JSON form, bytes become base64, NaN and
    infinities become null. Raise `TypeError` or `ValueError` for what has no JSON form.
    """
    written = json_bytes(name, value)
    try:
        return _decode(written)
    except msgspec.DecodeError as error:  # for example a msgspec.Raw that is not JSON
        raise ValueError(f"{name} cannot be read back as JSON: {error}") from None


def json_bytes(name: str, value: Any, levels: int = MAX_LEVELS) -> bytes:
    """Return `value` as JSON that is not nested too deeply; `json_value` says what is converted."""
    try:
        written = encode(value)
    except RecursionError:
        written = None
    except (TypeError, ValueError, OverflowError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name} cannot be written as JSON: {error}") from None
    if written is None or is_too_deep(written, levels):
        raise ValueError(f"{name} is nested too deeply: JSON values may have {levels} levels")
    return written


def json_object(name: str, value: Any) -> dict[str, Any] | None:
    """Return a copy of an optional mapping as a JSON object. Raise `TypeError` for anything else."""
    if value is None:
        return None
    plain = json_value(name, value)
    if type(plain) is not dict:
        raise TypeError(f"{name} must be a dict, not {type(value).__name__}")
    return plain


def text(name: str, value: Any, instead: str = "") -> str:
    """Return `value` if it is a string that can be written. `instead` says what to do with other values."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}{instead and '; ' + instead}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{name} cannot be written as UTF-8: {error}") from None
    return str.__str__(value)


def optional_text(name: str, value: Any) -> str | None:
    return None if value is None else text(name, value)


def text_list(name: str, value: Any) -> list[str] | None:
    """Return an optional list of strings. A single string is refused: it would become a list of its letters."""
    if value is None:
        return None
    if not isinstance(value, list | tuple | set | frozenset):
        raise TypeError(f"{name} must be a list of str, not {type(value).__name__}")
    return [text(f"{name}[{position}]", item) for position, item in enumerate(value)]


def count(name: str, value: Any) -> int:
    """Return a number of things, which a signed 64-bit column can hold."""
    if type(value) is not int:
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not 0 <= value < 2**63:
        raise ValueError(f"{name} must be from 0 to 2**63 - 1, not {value}")
    return value


def reread(event: Passed, levels: int = MAX_LEVELS) -> Passed:
    """Return what readers of the log will see of an event of an executor, or of a request that middleware changed.

    Structs can be changed after they were made, so all of it is checked. Raise `TypeError` or `ValueError` if it
    could not be read; the text says where.
    """
    name = type(event).__name__
    try:
        return msgspec.json.decode(json_bytes(name, event, levels), type=type(event))
    except msgspec.ValidationError as error:
        raise TypeError(f"{name}: {error}") from None


# Agents are given copies, so that a change to them does not change the task.

#: Copies JSON values. `copy.deepcopy` is up to 70 times as slow, and clients decide how much there is to copy.
_copied = msgspec.to_builtins


def own_message(message: Message) -> Message:
    """Return a copy of a message that shares nothing mutable with it."""
    return msgspec.structs.replace(
        message,
        parts=[own_part(part) for part in message.parts],
        metadata=_copied(message.metadata),
        extensions=message.extensions and list(message.extensions),
        reference_task_ids=message.reference_task_ids and list(message.reference_task_ids),
    )


def own_part(part: Part) -> Part:
    data = UNSET if part.data is UNSET else _copied(part.data)
    return msgspec.structs.replace(part, data=data, metadata=_copied(part.metadata))


def own_artifact(artifact: Artifact) -> Artifact:
    return msgspec.structs.replace(
        artifact,
        parts=[own_part(part) for part in artifact.parts],
        metadata=_copied(artifact.metadata),
        extensions=artifact.extensions and list(artifact.extensions),
    )


def own_task(task: Task) -> Task:
    message = task.status.message
    return msgspec.structs.replace(
        task,
        status=msgspec.structs.replace(task.status, message=message and own_message(message)),
        artifacts=task.artifacts and [own_artifact(artifact) for artifact in task.artifacts],
        history=task.history and [own_message(message) for message in task.history],
        metadata=_copied(task.metadata),
    )
