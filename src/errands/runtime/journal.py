"""Writing to the log: every change that the runtime makes to a task goes through `Journal.commit`."""

from __future__ import annotations

import os
from collections.abc import Coroutine
from typing import Any

from errands.clock import system_clock, to_iso
from errands.engines.base import Engine
from errands.model.base import encode
from errands.model.core import Message, StreamResponse, TaskState, TaskStatus, TaskStatusUpdateEvent
from errands.model.log import Change, Draft, EventKind, Head, Scope
from errands.runtime.blobs import SCHEME, Blobs
from errands.runtime.figures import Figures
from errands.runtime.hooks import HookReader

_BLOB = SCHEME.encode()


class Batch:
    """Events on their way into the log: as they are stored, and as they are folded."""

    __slots__ = ("drafts", "size", "updates")

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self.updates: list[StreamResponse] = []
        #: In bytes.
        self.size = 0

    def add(self, kind: EventKind, update: StreamResponse) -> None:
        """Add an event."""
        try:
            data = encode(update)
        except UnicodeEncodeError as error:
            raise unwritable(error) from None
        self.drafts.append(Draft(kind, data))
        self.updates.append(update)
        self.size += len(data)

    def note(self, record: bytes) -> None:
        """Add a record, which changes nothing about the task itself."""
        self.drafts.append(Draft("record", record))
        self.size += len(record)

    async def stow(self, blobs: Blobs, task_id: str, scope: Scope) -> None:
        """Move large files of the events to the blob store, before the events are written."""
        position = 0
        for index, draft in enumerate(self.drafts):
            if draft.kind == "record":
                continue
            if len(draft.data) > blobs.above or _BLOB in draft.data:
                update = self.updates[position] = await blobs.stow(self.updates[position], task_id, scope)
                self.drafts[index] = Draft(draft.kind, encode(update))
                self.size += len(self.drafts[index].data) - len(draft.data)
            position += 1

    def copy(self) -> Batch:
        twin = Batch()
        twin.drafts, twin.updates, twin.size = list(self.drafts), list(self.updates), self.size
        return twin


def unwritable(error: UnicodeEncodeError) -> ValueError:
    """Return the error for text with lone surrogates."""
    return ValueError(f"text cannot be written as UTF-8: {error}")


class Journal:
    """Commits the changes of the runtime, and shows them to hooks. `blobs` stores large files.

    `figures` counts turns and their calls, if metrics are on.
    """

    def __init__(
        self,
        engine: Engine,
        hooks: HookReader | None = None,
        blobs: Blobs | None = None,
        figures: Figures | None = None,
    ) -> None:
        self.engine = engine
        self.blobs = blobs
        self.figures = figures
        self._hooks = hooks
        #: The time, in milliseconds.
        self.now = engine.clock

    def commit(self, change: Change, previous: TaskState | None = None) -> Coroutine[Any, Any, Head]:
        """Write the change, and return the head after it.

        `previous` is the state before it, if that may be the state of its first status, too.
        """
        written = self.engine.commit(change)
        return written if self._hooks is None else self._show_hooks(self._hooks, written, change, previous)

    async def _show_hooks(
        self, hooks: HookReader, written: Coroutine[Any, Any, Head], change: Change, previous: TaskState | None
    ) -> Head:
        head = await written
        hooks.read(change.task_id, change.events, previous)
        return head


#: Ids are drawn for many at once, because a system call for each costs 3 % of a send.
_DRAWN = 128
_ids: list[str] = []
if hasattr(os, "register_at_fork"):  # not on Windows
    # A child process must not use the same ones.
    os.register_at_fork(after_in_child=_ids.clear)


def new_id() -> str:
    """Return a UUID of version 7: the time at which it was drawn, then 72 random bits.

    Ids that begin with the time lie side by side in the indexes of a database. With random ones, every new task would
    change pages all over the file, which slows down sends on SQLite.
    """
    while True:
        try:
            return _ids.pop()
        except IndexError:  # in a thread, too, which may take the last one between a check and `pop`
            _ids.extend(_draw_ids())


def _draw_ids() -> list[str]:
    """Fill the dots of many UUIDs with random digits, one column of them after the other."""
    time = f"{system_clock():012x}"
    template = f"{time[:8]}-{time[8:]}-7...-a...-............\n".encode()
    text = bytearray(template * _DRAWN)
    columns = [column for column, character in enumerate(template) if character == ord(".")]
    digits = os.urandom(len(columns) * _DRAWN // 2).hex().encode()
    for number, column in enumerate(columns):
        text[column :: len(template)] = digits[number * _DRAWN : (number + 1) * _DRAWN]
    return text.decode().split()


def status_update(
    task_id: str,
    context_id: str,
    state: TaskState,
    at: int,
    message: Message | None = None,
    metadata: dict[str, Any] | None = None,
) -> StreamResponse:
    """Return the event that a task is in this state."""
    status = TaskStatus(state=state, message=message, timestamp=to_iso(at))
    update = TaskStatusUpdateEvent(task_id=task_id, context_id=context_id, status=status, metadata=metadata)
    return StreamResponse(status_update=update)
