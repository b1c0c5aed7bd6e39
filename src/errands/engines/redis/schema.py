"""What is stored and how it is spelled: names of keys, a task's hash, and the requests that the scripts understand.

What is behind each key is listed at the head of `lua/1_keys.lua`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

import msgspec

from errands.engines.damage import read_lease, salvaged_head, stored_task
from errands.model.base import UNREADABLE, encode
from errands.model.core import TaskState
from errands.model.log import Event, EventKind, Head, OutboxEntry, PushConfig, Scope, StoredTask

#: The arrangement of keys that this release reads and writes.
SCHEMA = "1"


@lru_cache(maxsize=1024)
def scope_name(scope: Scope) -> str:
    """Return a scope as one word: different scopes never have the same, whatever characters they are made of."""
    return "/".join(quote(part, safe="") for part in scope)


class Keys:
    """The names of one store's keys, as `lua/1_keys.lua` lists them: `keys("task", ID)`."""

    def __init__(self, prefix: str) -> None:
        #: The braces make a cluster keep all keys in one slot.
        self.base = f"{{{prefix}}}:"

    def __call__(self, *parts: str) -> str:
        return self.base + ":".join(parts)

    def listing(self, scope: Scope, context_id: str | None = None, state: TaskState | None = None) -> str:
        """Return the sorted set of the tasks that match these filters."""
        name = self("list", scope_name(scope), *([] if state is None else [state.short]))
        # Last, because it may hold any character.
        return name if context_id is None else f"{name}::{context_id}"

    def listings(self, scope: Scope, context_id: str, state: TaskState) -> list[str]:
        """Return every such set that a task in this state is in."""
        every, of_state = self.listing(scope), self.listing(scope, state=state)
        return [every, of_state, f"{every}::{context_id}", f"{of_state}::{context_id}"]


# A task's hash

#: Bytes on their way: as MessagePack's text, which Lua takes for any bytes. It does not know the type for bytes.
Blob = msgspec.Raw

Fields = list[str | Blob]

#: What a change is judged against and compared with, in the order of `fields_of` in `lua/1_keys.lua`.
FIELDS = ("record", "attempt", "worker", "due_at", "claimed")
#: The same for a task that does not exist.
ABSENT: Fields = [""] * len(FIELDS)
#: The scope of a task whose record cannot be read at all: no agent has this name. The listings still know the real one.
LOST = Scope()


class TaskHash(msgspec.Struct, gc=False):
    """A task without its content. Its lease is stored in fields of its own, the rest as JSON in `record`."""

    scope: Scope
    context_id: str
    #: The events up to this version are no longer kept.
    trimmed: int
    head: Head

    def fields(self) -> Fields:
        head = self.head
        bare = msgspec.structs.replace(head, attempt=0, worker="", due_at=None, claimed="")
        record = encode(TaskHash(self.scope, self.context_id, self.trimmed, bare)).decode()
        return [record, str(head.attempt), head.worker, "" if head.due_at is None else str(head.due_at), head.claimed]


class KnownTask(msgspec.Struct, frozen=True, gc=False):
    """A task, None if it does not exist, together with its fields as they are compared."""

    task: TaskHash | None
    fields: Fields


NEW_TASK = KnownTask(None, ABSENT)

_read_hash = msgspec.json.Decoder(TaskHash).decode


def read_hash(fields: Sequence[bytes]) -> TaskHash | None:
    """Return a task from its fields; without a state when they cannot be read."""
    if not fields or not fields[0]:
        return None
    try:
        task = _read_hash(fields[0])
        task.head.attempt = int(fields[1] or 0)
        task.head.worker = fields[2].decode()
        task.head.due_at = int(fields[3]) if fields[3] else None
        task.head.claimed = fields[4].decode()  # type: ignore[assignment]
        return task
    except UNREADABLE:
        pass
    try:
        found = msgspec.json.decode(fields[0], type=dict[str, Any])
        scope, context_id = msgspec.convert((found["scope"], found["context_id"]), tuple[Scope, str])
    except (KeyError, *UNREADABLE):
        found, scope, context_id = {}, LOST, ""
    head = found.get("head")
    lease = zip(FIELDS[1:], (field.decode(errors="replace") for field in fields[1:5]), strict=True)
    return TaskHash(scope, context_id, 0, salvaged_head({**(head if isinstance(head, dict) else {}), **dict(lease)}))


def read_known(fields: Sequence[bytes]) -> KnownTask:
    task = read_hash(fields)
    try:
        return KnownTask(task, [field.decode() for field in fields])
    except UnicodeDecodeError:
        return KnownTask(task, list(map(blob, fields)))


def blob(data: bytes) -> Blob:
    return Blob(b"\xdb" + len(data).to_bytes(4, "big") + data)


def read_events(entries: Sequence[Any]) -> list[Event]:
    """Return the entries of a stream as events. The id of an entry is `VERSION-TIME`."""
    events: list[Event] = []
    for name, fields in entries:
        version, _, at = name.partition(b"-")
        lease = read_lease(fields[3]) if len(fields) > 3 else None
        events.append(Event(int(version), fields[0].decode(errors="replace"), fields[1], int(at), lease))
    return events


def read_stored(task_id: str, task: TaskHash, loaded: Sequence[Any]) -> StoredTask:
    """Return a task as the request `load` answers it: its fields, its snapshot and its tail."""
    content = read_events(loaded[6])
    if loaded[5]:
        content.insert(0, Event(0, "task", loaded[5]))
    return stored_task(task_id, task.context_id, task.scope, task.head, content)


# Requests

#: A call of one of the functions of the table `requests` in `lua/`. Times are text: Redis reads them exactly, while Lua
#: would write large numbers in its own way.
Request = dict[str, object]
#: A command of Redis with its arguments.
Command = list[str | Blob]


def request(name: str, **arguments: object) -> Request:
    return {"request": name, **arguments}


class NewPush(msgspec.Struct, gc=False):
    """A push config that a change adds; `config` is JSON."""

    id: str
    host: str
    agent: str
    config: str
    delivered: int


class OutboxChange(msgspec.Struct, gc=False):
    """What a change does to the outbox; see `Change.push` and `Change.drop_push`."""

    push: NewPush | None
    drop_push: str | None
    #: Whether the change has events for the webhooks of the task.
    fills: bool


class PackedEntry(msgspec.Struct, gc=False):
    """An entry of the outbox as it is stored."""

    host: str
    agent: str
    config: str
    delivered: int
    claim: int
    attempts: int
    failed_at: str
    error: str
    dead: bool


_read_packed = msgspec.msgpack.Decoder(PackedEntry).decode
_read_config = msgspec.json.Decoder(PushConfig).decode


def read_entry(answer: Sequence[bytes]) -> OutboxEntry | None:
    """Return an entry as the scripts answer it; None if its task cannot be read."""
    task_id, _, packed, record, due_at = answer
    task = read_hash((record, b"", b"", b"", b""))
    if task is None or task.scope == LOST:
        return None
    entry = _read_packed(packed)
    return OutboxEntry(
        task_id=task_id.decode(),
        scope=task.scope,
        config=_read_config(entry.config),
        delivered=entry.delivered,
        due_at=int(due_at) if due_at else None,
        claim=entry.claim,
        attempts=entry.attempts,
        failed_at=int(entry.failed_at) if entry.failed_at else None,
        error=entry.error,
        dead=entry.dead,
    )


class Commit(msgspec.Struct, tag_field="request", tag="commit", kw_only=True, gc=False):
    """The request that writes a change; without `expected` it only looks."""

    id: str
    expected: Fields | None = None
    #: The key of the message's receipt, and what must be there; "" for nothing.
    receipt: str | None = None
    expected_receipt: str = ""
    #: Kinds and data in turn; the first has the version `first`, all have the time `at`.
    events: list[EventKind | Blob] = []
    first: int = 0
    at: str = "0"
    #: The lease that the first event records, as JSON; "" for none.
    lease: str = ""
    commands: list[Command] = []
    #: Hardly anything will follow: the log is to be kept in as little memory as possible.
    ends: bool = False
    #: For other processes: who wrote the events, and the task's state after them.
    origin: str = ""
    state: str = ""
    outbox: OutboxChange | None = None


pack = msgspec.msgpack.Encoder().encode

#: The whole script, its files in the order of their numbers.
PROGRAM = "\n".join(
    file.read_text("utf-8")
    for file in sorted(files(__package__).joinpath("lua").iterdir(), key=lambda file: file.name)
    if file.name.endswith(".lua")
)
