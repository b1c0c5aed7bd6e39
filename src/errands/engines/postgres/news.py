"""What processes tell each other over `NOTIFY`: short notes that something is worth a look, never the thing itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

#: PostgreSQL takes less than 8000 bytes per note.
_MOST_BYTES = 7900


class Told(NamedTuple):
    """A task that others watch has new events."""

    task_id: str
    #: The version before the first of them.
    before: int


class News(msgspec.Struct, array_like=True):
    sender: str
    #: A task may be due, or a cancel wanted.
    work: bool = False
    tasks: list[Told] = []
    #: More tasks than could be named have new events.
    more: bool = False


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(News).decode


def payloads(sender: str, work: bool, tasks: Sequence[Told]) -> list[str]:
    """The notes that say it, as few as it takes."""
    if not tasks:
        return [_encode(News(sender, work)).decode()] if work else []
    note = _encode(News(sender, work, list(tasks)))
    if len(note) <= _MOST_BYTES:
        return [note.decode()]
    if len(tasks) == 1:
        return [_encode(News(sender, work, more=True)).decode()]
    half = len(tasks) // 2
    return payloads(sender, work, tasks[:half]) + payloads(sender, False, tasks[half:])


def read_news(payload: str) -> News | None:
    """None for a note that is not one of ours: of a newer release, perhaps."""
    try:
        return _decode(payload)
    except msgspec.MsgspecError:
        return None
