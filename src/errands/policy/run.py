"""A run: the records of one task while a turn adds to them, and the context they amount to.

Every kind of agent has one. It is opened when it is first needed, so an agent without a policy that records nothing
pays nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
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
from errands.policy.cel import Call, Session
from errands.policy.context_object import Context
from errands.policy.records import Answered, AnyRecord, Ended, InputArrived, Started, Waiting
from errands.runtime.figures import Figures
from errands.runtime.turn import Turn


def inputs(history: Iterable[Message] | None) -> Iterator[tuple[str, Message]]:
    """Yield the messages to the agent, each with the key by which records know it.

    The key is the message's id, with a number when another message has the same id: clients choose ids.
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
    """Return the records of a task. Raises `TaskNotFoundError`, and `DamagedTaskError` when one cannot be read."""
    found = await engine.records(task_id, scope)
    try:
        return [records.decode(event.data) for event in found]
    except UNREADABLE as error:
        raise DamagedTaskError(f"the records of task {task_id} cannot be read: {error}") from error


class Run:
    """The records of a task while one turn adds to them. All of them are in the log; nothing is kept beside it."""

    def __init__(self, turn: Turn, known: Iterable[AnyRecord]) -> None:
        self.task_id = turn.task_id
        self._turn = turn
        #: Returns the time in milliseconds.
        self.now_ms = turn.journal.now
        self.records: list[AnyRecord] = []
        #: How a policy or a failure ended the task, whether or not its status says so yet.
        self.over: Ended | None = None
        self._context: Context | None = None
        self._waiting: dict[str, Waiting] = {}
        self._answered: dict[str, list[Answered]] = {}
        self._followers: list[Callable[[AnyRecord], None]] = []
        self._take(*known)

    @classmethod
    async def open(cls, turn: Turn, stored: StoredTask) -> Run:
        """Read the records of the task of a turn."""
        # The first turn of a new task finds none.
        is_new = stored.head.attempt <= 1 and len(stored.task.history or ()) <= 1
        known = [] if is_new else await stored_records(turn.journal.engine, stored.task.id, stored.scope)
        return cls(turn, known)

    def follow(self, take: Callable[[AnyRecord], None]) -> None:
        """Call `take` with every record, beginning with those that exist."""
        for record in self.records:
            take(record)
        self._followers.append(take)

    # What the records say

    @property
    def started(self) -> Started | None:
        """The first record, if there is any."""
        first = self.records[0] if self.records else None
        return first if isinstance(first, Started) else None

    @property
    def context(self) -> Context:
        """The context as of the newest record. There must be a `Started`."""
        assert self._context is not None, "a run begins with `Started`"
        return self._context

    @property
    def arrived(self) -> dict[str, Any] | None:
        """The newest input as it came: in the context, very large values are cut."""
        return next((record.values for record in reversed(self.records) if isinstance(record, InputArrived)), None)

    def has_input(self, key: str) -> bool:
        """Return whether the message with this key has been taken in."""
        return any(isinstance(record, InputArrived) and record.message_id == key for record in self.records)

    def session(self, key: str, now: str) -> Session:
        """Return the session of that name with everything that was answered; a new one sees the time `now`."""
        waiting = self._waiting.get(key)
        stored = Session(now) if waiting is None else waiting.session
        session = Session(stored.now, dict(stored.finished))
        for answered in self._answered.get(key, ()):
            if answered.error is None:
                session.settle(answered.call, answered.value)
            else:
                session.fail(answered.call, answered.error)
        return session

    def awaited(self, key: str) -> Call | None:
        """Return the call that the session of that name waits for, if it is recorded and has no answer yet."""
        waiting = self._waiting.get(key)
        if waiting is None or any(one.call.key == waiting.call.key for one in self._answered.get(key, ())):
            return None
        return waiting.call

    def now(self) -> str:
        """Return the time for a record."""
        return to_iso(self.now_ms())

    # New records

    def note(self, *new: AnyRecord) -> None:
        """Add records, which become durable with whatever the turn writes next."""
        figures = self._turn.journal.figures
        for record in new:
            self._turn.note(records.encode(record))
            if figures is not None:
                _count(figures, record)
            self._take(record)
            for take in self._followers:
                take(record)

    async def append(self, *new: AnyRecord) -> None:
        """Add records, which are durable when this returns."""
        self.note(*new)
        await self.settle()

    async def settle(self) -> None:
        """Wait until everything noted is durable."""
        await self._turn.catch_up()

    def _take(self, *new: AnyRecord) -> None:
        self.records += new
        for record in new:
            if isinstance(record, Waiting):
                self._waiting[record.key] = record
            elif isinstance(record, Answered):
                self._answered.setdefault(record.key, []).append(record)
            elif isinstance(record, Ended):
                self.over = record
        if new and isinstance(new[0], Started):
            self._context = Context(new[0])
            new = new[1:]
        if new:
            self.context.take(*new)


def _count(figures: Figures, record: AnyRecord) -> None:
    """Count the calls of models, tools and other agents, for every kind of agent."""
    match record:
        case records.ModelCalled():
            figures.used_model(record.model, record.prompt, record.completion)
        case records.CapabilityFinished():
            figures.called_tool("ok")
        case records.CapabilityErrored():
            figures.called_tool("failed")
        case records.CapabilityRestricted():
            figures.called_tool("refused")


def content_part(part: Part) -> dict[str, Any]:
    """Return a part of a message as the context has it: `mimeType`, and `text`, `data` or `file`."""
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
    """Return the same with the part's metadata, for agents that can read it."""
    return {**content_part(part), "metadata": part.metadata} if part.metadata else content_part(part)
