"""The runtime's one pen: every change of a task goes through `Journal.commit`, and hooks hear of it after."""

from __future__ import annotations

import os
from typing import Any

from errands.clock import to_iso
from errands.engines.base import Engine
from errands.model.base import encode
from errands.model.core import Message, StreamResponse, TaskState, TaskStatus, TaskStatusUpdateEvent
from errands.model.log import Change, Draft, EventKind
from errands.runtime.hooks import HookReader


class Batch:
    """Events on their way into the log: as they are stored, and as they are folded."""

    __slots__ = ("drafts", "size", "updates")

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self.updates: list[StreamResponse] = []
        #: In bytes.
        self.size = 0

    def add(self, kind: EventKind, update: StreamResponse, data: bytes | None = None) -> None:
        """Add an event; `data` is its encoded form, if the caller has it."""
        if data is None:
            try:
                data = encode(update)
            except UnicodeEncodeError as error:
                raise unwritable(error) from None
        self.drafts.append(Draft(kind, data))
        self.updates.append(update)
        self.size += len(data)

    def note(self, record: bytes) -> None:
        """A record: it goes into the log, and there is nothing to fold."""
        self.drafts.append(Draft("record", record))
        self.size += len(record)

    def copy(self) -> Batch:
        twin = Batch()
        twin.drafts, twin.updates, twin.size = list(self.drafts), list(self.updates), self.size
        return twin


def unwritable(error: UnicodeEncodeError) -> ValueError:
    return ValueError(f"text cannot be written as UTF-8: {error}")


class Journal:
    """Commits the changes of the runtime, and has hooks read them."""

    def __init__(self, engine: Engine, hooks: HookReader | None = None) -> None:
        self.engine = engine
        self._hooks = hooks
        #: The time, in milliseconds.
        self.now = engine.clock

    async def commit(self, change: Change, previous: TaskState | None = None) -> int:
        """Write the change, and return the task's new version.

        `previous` is the state before it, if that may be the state of its first status, too.
        """
        version = await self.engine.commit(change)
        if self._hooks is not None:
            self._hooks.read(change.task_id, change.events, previous)
        return version


def new_id() -> str:
    """A random UUID (version 4); `uuid.uuid4` takes many times as long."""
    if not _ids:
        _ids.extend(_draw_ids())
    return _ids.pop()


def _draw_ids() -> list[str]:
    """Many ids, written column by column: the columns are fewer than the ids."""
    digits = os.urandom(_DRAWN * len(_RANDOM) // 2).hex().encode()
    text = bytearray(_UUID * _DRAWN)
    for number, column in enumerate(_RANDOM):
        text[column :: len(_UUID)] = digits[number * _DRAWN : (number + 1) * _DRAWN]
    return text.decode().split("\n")[:-1]


#: The digits that are given say which kind of UUID it is.
_UUID = b"........-....-4...-a...-............\n"
_RANDOM = [column for column, sign in enumerate(_UUID) if sign == ord(".")]
#: Ids made ahead: asking the system for each and writing it costs more than the rest.
_DRAWN = 128
_ids: list[str] = []


# A forked process must not hand out its parent's ids.
os.register_at_fork(after_in_child=_ids.clear)


def status_update(
    task_id: str,
    context_id: str,
    state: TaskState,
    at: int,
    message: Message | None = None,
    metadata: dict[str, Any] | None = None,
) -> StreamResponse:
    status = TaskStatus(state=state, message=message, timestamp=to_iso(at))
    update = TaskStatusUpdateEvent(task_id=task_id, context_id=context_id, status=status, metadata=metadata)
    return StreamResponse(status_update=update)


def status_draft(update: StreamResponse) -> Draft:
    return Draft("status", encode(update))
