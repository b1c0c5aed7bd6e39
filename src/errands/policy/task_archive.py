"""The archive: whole tasks as JSON lines, for moving them to another store. docs/cli.md has the format.

A task is one line about its head, followed by one line for each event of its log. Archives are checked while they are
read: every event must be readable and in its place in the log, and the log must lead to the state of the head.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from itertools import count, islice
from operator import eq, ge
from typing import Annotated, Any, BinaryIO, Literal

import msgspec

from errands.clock import exact_iso, from_iso
from errands.engines.base import Engine
from errands.errors import ErrandsError
from errands.lifecycle import fold
from errands.model import log
from errands.model.base import UNREADABLE, encode
from errands.model.core import TERMINAL_STATES, StreamResponse, Task, TaskState
from errands.policy import records
from errands.policy.audit_trail import read_log
from errands.version import __version__

#: The version of the format.
FORMAT = 1

#: The numbers that every kind of store can hold.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Version = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]

_DECODERS: dict[log.EventKind, Any] = {
    "request": msgspec.json.Decoder(log.RequestOptions).decode,
    "cancel": msgspec.json.Decoder(log.CancelRequest).decode,
    "record": records.decode,
}
_decode_event = msgspec.json.Decoder(StreamResponse).decode


class ArchiveError(ErrandsError):
    """A line of an archive cannot be used."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.problem = problem


class _Line(msgspec.Struct, rename="camel", tag_field="line", forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A line of an archive."""


class ArchiveBegin(_Line, frozen=True, kw_only=True, tag="archive"):
    """The first line."""

    format: int
    errands: str
    exported_at: str


class ArchivedHead(_Line, frozen=True, kw_only=True, omit_defaults=True, tag="task"):
    """The line of a task; the lines of its `events` follow."""

    task_id: Annotated[str, msgspec.Meta(min_length=1)]
    context_id: str
    tenant: str
    owner: str
    agent: str
    state: str
    version: Version
    #: The events up to this version are no longer kept, apart from records.
    trimmed: Count = 0
    created_at: str
    updated_at: str
    status_at: str
    attempt: Count = 0
    attempt_base: Count = 0
    given_back: Count = 0
    #: Whether a process had a lease on the task, and whether the task was in the queue or leased.
    leased: bool = False
    live: bool = False
    unread: Count = 0
    cancel_requested: bool = False
    direct: bool = False
    asks: str = ""
    #: The task as A2A has it, if the events that are kept do not lead to it.
    snapshot: Task | None = None
    #: What the agent remembers of the conversation, in Base64.
    memory: bytes | None = None
    events: Count
    #: The digest of the lines of its events, without their ends.
    sha256: str


class ArchivedLease(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A lease that an event records."""

    attempt: Count
    worker: str
    until: str
    cause: Literal["new", "expired", "given back"]


class ArchivedEvent(_Line, frozen=True, kw_only=True, omit_defaults=True, tag="event"):
    """The line of an event."""

    version: Version
    kind: log.EventKind
    at: str
    lease: ArchivedLease | None = None
    data: msgspec.Raw


class ArchiveEnd(_Line, frozen=True, kw_only=True, tag="end"):
    """The last line: without it, the file is not complete."""

    tasks: Count


AnyLine = ArchiveBegin | ArchivedHead | ArchivedEvent | ArchiveEnd
_LINES: msgspec.json.Decoder[AnyLine] = msgspec.json.Decoder(AnyLine)


class ArchivedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task of an archive that was read and checked."""

    task: Task
    scope: log.Scope
    head: log.Head
    events: list[log.Event]
    trimmed: int
    memory: bytes | None
    leased: bool
    live: bool

    def change(self, now: int, memory: bytes | None) -> log.Change:
        """Return the change that restores the task. A live one is ready again, as if its lease had been given back."""
        head = msgspec.structs.replace(
            self.head,
            due_at=now if self.live else None,
            given_back=self.head.given_back + (self.live and self.leased),
        )
        return log.Change(
            task_id=self.task.id,
            scope=self.scope,
            context_id=self.task.context_id or "",
            expected=0,
            at=head.updated_at,
            fold=self.task,
            work=log.READY if self.live else log.IDLE,
            due_at=now,
            context=memory,
            restored=log.Restored(head=head, events=self.events, trimmed=self.trimmed),
        )


# Writing


def beginning(now: int) -> bytes:
    """Return the first line of an archive."""
    return encode(ArchiveBegin(format=FORMAT, errands=__version__, exported_at=exact_iso(now)))


def ending(tasks: int) -> bytes:
    """Return the last line of an archive."""
    return encode(ArchiveEnd(tasks=tasks))


async def archive_lines(
    engine: Engine, stored: log.StoredTask, *, with_memory: bool, most: int | None = None
) -> list[bytes]:
    """Return the lines of a task.

    Raises what reading its log raises, `ValueError` if that cannot be read back, and `PayloadTooLargeError` for a log
    of more than `most` bytes.
    """
    if stored.damage:
        raise ValueError(stored.damage)
    events = (await read_log(engine, stored, most=most)).events
    known = await engine.records(stored.task.id, stored.scope)
    memory = await engine.load_context(stored.scope, stored.task.context_id or "") if with_memory else None
    # In a thread: a server has other things to do meanwhile.
    return await asyncio.to_thread(_lines_of, stored, events, known, memory)


def _lines_of(
    stored: log.StoredTask, events: list[log.Event], known: list[log.Event], memory: bytes | None
) -> list[bytes]:
    kept = [event for event in events if event.version <= stored.version]
    trimmed = stored.version
    while kept and kept[-1].version - len(kept) + 1 != kept[0].version:
        kept.pop(0)  # records that some engines return with the log
    if kept:
        trimmed = kept[0].version - 1
    older = [event for event in known if event.version <= trimmed]
    lines = [_event_line(event) for event in (*older, *kept)]
    is_whole = not trimmed and fold(None, kept) == stored.task
    head, scope, context_id = stored.head, stored.scope, stored.task.context_id or ""
    is_over = head.state in TERMINAL_STATES
    archived = ArchivedHead(
        task_id=stored.task.id,
        context_id=context_id,
        tenant=scope.tenant,
        owner=scope.owner,
        agent=scope.agent,
        state=head.state.value,
        version=head.version,
        trimmed=trimmed,
        created_at=exact_iso(head.created_at),
        updated_at=exact_iso(head.updated_at),
        status_at=exact_iso(head.status_at),
        attempt=head.attempt,
        attempt_base=head.attempt_base,
        given_back=head.given_back,
        leased=not is_over and head.worker != "",
        live=not is_over and (head.worker != "" or head.due_at is not None),
        unread=head.unread,
        cancel_requested=head.cancel_requested,
        direct=head.direct,
        asks=head.asks,
        snapshot=None if is_whole else stored.task,
        memory=memory,
        events=len(lines),
        sha256=_digest(lines),
    )
    line = encode(archived)
    try:
        # A damaged head may contain any numbers, and one line that cannot be read would end the import.
        _check(_LINES.decode(line), lines, 0)
    except ArchiveError as error:
        raise ValueError(error.problem) from None
    return [line, *lines]


def _event_line(event: log.Event) -> bytes:
    try:
        _DECODERS.get(event.kind, _decode_event)(event.data)
    except UNREADABLE as error:
        raise ValueError(f"event {event.version} cannot be read ({error})") from None
    lease = None
    if event.lease is not None:
        lease = ArchivedLease(event.lease.attempt, event.lease.worker, exact_iso(event.lease.until), event.lease.cause)
    data = event.data if b"\n" not in event.data else msgspec.json.format(event.data, indent=-1)
    return encode(
        ArchivedEvent(
            version=event.version, kind=event.kind, at=exact_iso(event.at), lease=lease, data=msgspec.Raw(data)
        )
    )


def _digest(lines: list[bytes]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line + b"\n")
    return digest.hexdigest()


# Reading


def read_archive(file: BinaryIO) -> Iterator[ArchivedTask]:
    """Yield the tasks of an archive. Raises `ArchiveError`; every task before it can be used."""
    lines = enumerate((line.rstrip(b"\r\n") for line in file), 1)
    number, first = next(lines, (1, b""))
    begin = _read_line(number, first) if first else None
    if not isinstance(begin, ArchiveBegin):
        raise ArchiveError(number, "this is not an archive of tasks; `errands tasks export` writes one")
    if begin.format != FORMAT:
        raise ArchiveError(number, f"the archive has format {begin.format}; this release reads format {FORMAT}")
    tasks = 0
    while (entry := next(lines, None)) is not None:
        number, text = entry
        line = _read_line(number, text)
        if isinstance(line, ArchiveEnd):
            if line.tasks != tasks:
                raise ArchiveError(number, f"the archive should have {line.tasks} tasks and has {tasks}")
            return
        wanted = line.events if isinstance(line, ArchivedHead) else 0
        events = [text for _, text in islice(lines, wanted)]
        if len(events) < wanted:
            number += len(events)
            break
        yield _check(line, events, number)
        tasks += 1
    raise ArchiveError(number, "the archive ends here and is not complete: export it again")


def _read_line(number: int, text: bytes) -> AnyLine:
    try:
        return _LINES.decode(text)
    except UNREADABLE as error:
        raise ArchiveError(number, f"it cannot be read ({error})") from None


def _check(archived: AnyLine, lines: list[bytes], number: int) -> ArchivedTask:
    """Check the line of a task and the lines of its events, and return the task."""
    if not isinstance(archived, ArchivedHead):
        raise ArchiveError(number, "a line about a task was expected")
    if _digest(lines) != archived.sha256:
        raise ArchiveError(number, f"the events of task {archived.task_id} were changed after the export")
    events = [_read_event(at, line, archived) for at, line in enumerate(lines, number + 1)]
    versions = [event.version for event in events]
    kept = [version for version in versions if version > archived.trimmed]
    # Compared one by one: the numbers are not trusted, and a range of them may not fit into memory.
    is_whole = len(kept) == archived.version - archived.trimmed and all(map(eq, kept, count(archived.trimmed + 1)))
    if not is_whole or any(map(ge, versions, versions[1:])):
        raise ArchiveError(number, f"the log of task {archived.task_id} has gaps")
    task = archived.snapshot
    try:
        state = TaskState(archived.state)
        task = fold(None, events) if task is None else task
        head = log.Head(
            version=archived.version,
            state=state,
            attempt=archived.attempt,
            attempt_base=archived.attempt_base,
            given_back=archived.given_back,
            unread=archived.unread,
            cancel_requested=archived.cancel_requested,
            direct=archived.direct,
            asks=archived.asks,
            created_at=_time(archived.created_at),
            updated_at=_time(archived.updated_at),
            status_at=_time(archived.status_at),
        )
    except UNREADABLE as error:
        raise ArchiveError(number, f"task {archived.task_id} cannot be read ({error})") from None
    if (task.id, task.context_id or "", task.status.state) != (archived.task_id, archived.context_id, state):
        raise ArchiveError(number, f"the log of task {archived.task_id} does not lead to what the line says")
    if archived.live and state in TERMINAL_STATES:
        raise ArchiveError(number, f"task {archived.task_id} cannot be live: it is {state.short}")
    return ArchivedTask(
        task=task,
        scope=log.Scope(archived.tenant, archived.owner, archived.agent),
        head=head,
        events=events,
        trimmed=archived.trimmed,
        memory=archived.memory,
        leased=archived.leased,
        live=archived.live,
    )


def _read_event(number: int, text: bytes, archived: ArchivedHead) -> log.Event:
    line = _read_line(number, text)
    if not isinstance(line, ArchivedEvent):
        raise ArchiveError(number, "a line about an event was expected")
    if line.version <= archived.trimmed and line.kind != "record":
        raise ArchiveError(number, f"only records can be older than version {archived.trimmed + 1} in this log")
    data = bytes(line.data)
    if b"\r" in data:
        data = msgspec.json.format(data, indent=-1)  # a stream would end the line there
    try:
        if line.kind in _DECODERS:
            _DECODERS[line.kind](data)
        elif _subject_of(line.kind, _decode_event(data)) not in (archived.task_id, None):
            raise ArchiveError(number, f"event {line.version} is about another task")
        lease = None
        if line.lease is not None:
            lease = log.LeaseRecord(line.lease.attempt, line.lease.worker, _time(line.lease.until), line.lease.cause)
        return log.Event(line.version, line.kind, data, _time(line.at), lease)
    except UNREADABLE as error:
        raise ArchiveError(number, f"event {line.version} cannot be read ({error})") from None


def _subject_of(kind: log.EventKind, update: StreamResponse) -> str | None:
    """Return the task that an event is about, None if it does not say. Raises `ValueError` for one of another kind."""
    if kind == "task" and update.task is not None:
        return update.task.id
    if kind == "status" and update.status_update is not None:
        return update.status_update.task_id
    if kind == "artifact" and update.artifact_update is not None:
        return update.artifact_update.task_id
    if kind == "message" and update.message is not None:
        return update.message.task_id
    raise ValueError(f"it is not a {kind}")


def _time(text: str) -> int:
    """Return the time in a line. Raises `ValueError`, also for one that could not be exported again."""
    ms = from_iso(text)
    exact_iso(ms)
    return ms
