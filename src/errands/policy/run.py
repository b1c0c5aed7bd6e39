"""A run: what a task has come to beside its messages, as records in its log, and the context they amount to.

Every kind of agent has one. It is opened when it is first needed, so an agent without policy that records nothing
pays nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import UNSET

from errands.clock import to_iso
from errands.engines.base import Engine
from errands.errors import DamagedTaskError
from errands.model.base import UNREADABLE
from errands.model.core import Message, Part, Role
from errands.model.log import Scope, StoredTask
from errands.model.marks import is_review
from errands.policy import records
from errands.policy.cel.values import SeenContext
from errands.policy.context import Context, CurrentContext, start
from errands.policy.records import AnyRecord, InputArrived, Started
from errands.runtime.journal import Journal
from errands.runtime.turn import Turn


def inputs(history: Iterable[Message] | None) -> Iterator[tuple[str, Message]]:
    """What was said to the agent, each with the key by which records know it.

    The key is the message's id, with a number for one that repeats the id of another: clients choose ids.
    """
    used: set[str] = set()
    seen: Counter[str] = Counter()
    for message in history or ():
        if message.role is Role.AGENT or is_review(message):
            continue
        key = name = message.message_id
        while key in used:
            seen[name] += 1
            key = f"{name}#{seen[name] + 1}"
        used.add(key)
        yield key, message


async def stored_records(engine: Engine, task_id: str, scope: Scope) -> list[AnyRecord]:
    """The records of a task. Raises `TaskNotFoundError`, and `DamagedTaskError` when one cannot be read."""
    found = await engine.records(task_id, scope)
    try:
        return [records.decode(event.data) for event in found]
    except UNREADABLE as error:
        raise DamagedTaskError(f"the records of task {task_id} cannot be read: {error}") from error


class Run:
    """The records of a task while one turn writes to them. Everything goes into the log; nothing is kept beside it."""

    def __init__(self, turn: Turn, journal: Journal, known: Iterable[AnyRecord]) -> None:
        self.task_id = turn.task_id
        self._turn = turn
        self._journal = journal
        self.records: list[AnyRecord] = []
        self._current: CurrentContext | None = None
        self._take(*known)

    @classmethod
    async def open(cls, turn: Turn, journal: Journal, stored: StoredTask) -> Run:
        # The first turn of a task that nobody had before finds none.
        is_new = stored.head.attempt <= 1 and len(stored.task.history or ()) <= 1
        known = [] if is_new else await stored_records(journal.engine, stored.task.id, stored.scope)
        return cls(turn, journal, known)

    @property
    def started(self) -> bool:
        return self._current is not None

    @property
    def context(self) -> Context:
        """As of the newest record. There must be a `Started`."""
        return self.current.context

    @property
    def current(self) -> CurrentContext:
        assert self._current is not None, "a run begins with `Started`"
        return self._current

    def plain(self) -> SeenContext:
        """The context as expressions see it."""
        return self.current.plain()

    def now(self) -> str:
        """The time for a record."""
        return to_iso(self._journal.now())

    def now_ms(self) -> int:
        return self._journal.now()

    @property
    def arrived(self) -> dict[str, Any] | None:
        """The newest input as it came: in the context, very large values are cut."""
        return next((record.values for record in reversed(self.records) if isinstance(record, InputArrived)), None)

    def has_input(self, key: str) -> bool:
        """Whether the message has been taken in."""
        return any(isinstance(record, InputArrived) and record.message_id == key for record in self.records)

    def note(self, *new: AnyRecord) -> None:
        """Adds records; they become durable with whatever the turn writes next."""
        for record in new:
            self._turn.note(records.encode(record))
            self._take(record)

    async def append(self, *new: AnyRecord) -> None:
        """Adds records; when this returns they are durable."""
        self.note(*new)
        await self.settle()

    async def settle(self) -> None:
        """Waits until everything noted is durable."""
        await self._turn.catch_up()

    def _take(self, *new: AnyRecord) -> None:
        self.records += new
        if new and isinstance(new[0], Started):
            self._current = CurrentContext(start(new[0]))
            new = new[1:]
        if new:
            self.current.fold(*new)


def content_part(part: Part) -> dict[str, Any]:
    """A part of a message as the context has it: `mimeType`, and `text`, `data` or `file`."""
    shown: dict[str, Any] = {}
    if part.text is not None:
        shown |= {"mimeType": part.media_type or "text/plain", "text": part.text}
    elif part.data is not UNSET:
        shown |= {"mimeType": part.media_type or "application/json", "data": part.data}
    else:
        shown["mimeType"] = part.media_type or "application/octet-stream"
        # The bytes of a file stay in the message.
        shown["file"] = part.url or part.filename or ""
        if part.raw is not None:
            shown["sizeBytes"] = len(part.raw)
    if part.filename is not None:
        shown["filename"] = part.filename
    return shown


def whole_part(part: Part) -> dict[str, Any]:
    """The same with its metadata, for agents that can read it."""
    return {**content_part(part), "metadata": part.metadata} if part.metadata else content_part(part)
