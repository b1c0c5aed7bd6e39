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
from errands.model.log import Event, EventKind, Head, Scope, StoredTask

#: The arrangement of keys that this release reads and writes.
SCHEMA = "1"


@lru_cache(maxsize=1024)
def scope_name(scope: Scope) -> str:
    """Return a scope as one word: different scopes never have the same, whatever characters they are made of."""
    return "/".join(quote(part, safe="") for part in scope)


class Keys:
    """The names of one store's keys. The braces make a cluster keep them in one slot."""

    def __init__(self, prefix: str) -> None:
        self.base = f"{{{prefix}}}:"
        self.agents = f"{self.base}agents"
        self.canceling = f"{self.base}canceling"
        self.asking = f"{self.base}asking"
        self.long = f"{self.base}long"
        self.contexts = f"{self.base}contexts"
        self.schema = f"{self.base}schema"
        self.sweeper = f"{self.base}sweeper"
        self.swept = f"{self.base}swept"
        self.probe = f"{self.base}probe"
        #: The channel for "a task may be due, or is to be canceled".
        self.work = f"{self.base}work"
        self._events = f"{self.base}events:"

    def task(self, task_id: str) -> str:
        return f"{self.base}task:{task_id}"

    def log(self, task_id: str) -> str:
        return f"{self.base}log:{task_id}"

    def records(self, task_id: str) -> str:
        return f"{self.base}records:{task_id}"

    def queue(self, agent: str) -> str:
        return f"{self.base}queue:{agent}"

    def paused(self, agent: str) -> str:
        return f"{self.base}paused:{agent}"

    def aging(self, agent: str) -> str:
        return f"{self.base}aging:{agent}"

    def ended(self, state: TaskState) -> str:
        return f"{self.base}ended:{state.short}"

    def listing(self, scope: Scope, context_id: str | None = None, state: TaskState | None = None) -> str:
        """Return the sorted set of the tasks that match these filters."""
        name = f"{self.base}list:{scope_name(scope)}"
        if state is not None:
            name = f"{name}:{state.short}"
        # Last, because it may hold any character.
        return name if context_id is None else f"{name}::{context_id}"

    def listings(self, scope: Scope, context_id: str, state: TaskState) -> list[str]:
        """Return every such set that a task in this state is in."""
        every, of_state = self.listing(scope), self.listing(scope, state=state)
        return [every, of_state, f"{every}::{context_id}", f"{of_state}::{context_id}"]

    def receipt(self, scope: Scope, digest: bytes) -> str:
        return f"{self.base}receipt:{scope_name(scope)}:{digest.hex()}"

    @staticmethod
    def context_name(scope: Scope, context_id: str) -> str:
        return f"{scope_name(scope)}:{context_id}"

    def context(self, name: str) -> str:
        return f"{self.base}context:{name}"

    def answer(self, process: str) -> str:
        return f"{self.base}answer:{process}"

    def events(self, task_id: str) -> str:
        """Return the channel on which a task's events are sent to other processes."""
        return self._events + task_id

    def task_of(self, channel: str) -> str | None:
        """Return the task of a channel."""
        return channel.removeprefix(self._events) if channel.startswith(self._events) else None


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
    except UNREADABLE:
        return _salvaged(fields)
    return task


def _salvaged(fields: Sequence[bytes]) -> TaskHash:
    try:
        found = msgspec.json.decode(fields[0], type=dict[str, Any])
        scope, context_id = msgspec.convert((found["scope"], found["context_id"]), tuple[Scope, str])
    except (KeyError, *UNREADABLE):
        found, scope, context_id = {}, LOST, ""
    names = (field.decode(errors="replace") for field in fields[1:5])
    lease = dict(zip(FIELDS[1:], names, strict=True))
    head = found.get("head")
    return TaskHash(scope, context_id, 0, salvaged_head({**(head if isinstance(head, dict) else {}), **lease}))


def read_record(field: bytes) -> TaskHash:
    """Return a task from the field `record` alone, when its lease does not matter."""
    task = read_hash((field, b"", b"", b"", b""))
    assert task is not None
    return task


def read_known(fields: Sequence[bytes]) -> KnownTask:
    return KnownTask(read_hash(fields), list(map(_comparable, fields)))


def _comparable(field: bytes) -> str | Blob:
    try:
        return field.decode()
    except UnicodeDecodeError:
        return blob(field)


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


# Requests: one struct for each function of the table `requests` in `lua/`. Times are text: Redis reads them exactly,
# while Lua would write large numbers in its own way.

#: A command of Redis with its arguments.
Command = list[str | Blob]


class ScriptRequest(msgspec.Struct, tag_field="request", kw_only=True, gc=False):
    pass


class Commit(ScriptRequest, tag="commit"):
    id: str
    #: None: only look.
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


class Delete(ScriptRequest, tag="delete"):
    id: str
    expected: Fields
    commands: list[Command]


class Trim(ScriptRequest, tag="trim"):
    id: str
    expected: Fields
    upto: str
    commands: list[Command]


class RunCommands(ScriptRequest, tag="run"):
    commands: list[Command]


class Claim(ScriptRequest, tag="claim"):
    agents: list[str]
    worker: str
    limit: int
    now: str
    expires: str


class Extend(ScriptRequest, tag="extend"):
    worker: str
    #: Ids and attempts in turn.
    leases: list[str]
    expires: str


class DeleteContexts(ScriptRequest, tag="delete_contexts"):
    before: str
    #: How many of them to pass over: those that were left where they are.
    skip: int
    limit: int
    #: The listings of live tasks, by state, as the ends of their names: a conversation that is in one is left alone.
    live: list[str]


class Load(ScriptRequest, tag="load"):
    ids: list[str]
    with_artifacts: bool = True
    #: Bytes of content; the tasks after the one that goes beyond are left out, but never the first.
    most: int | None = None


class ReadLog(ScriptRequest, tag="read"):
    id: str
    after: str
    limit: int
    bytes: int


class Records(ScriptRequest, tag="records"):
    id: str


class Look(ScriptRequest, tag="look"):
    ids: list[str]


class SinceChanged(ScriptRequest, tag="since_changed"):
    listing: str
    #: The highest score of what changed since, and the moment that the listing began.
    newer: str
    as_of: int
    limit: int


class Running(ScriptRequest, tag="running"):
    now: str


class Canceling(ScriptRequest, tag="canceling"):
    worker: str


pack = msgspec.msgpack.Encoder().encode

#: The whole script, its files in the order of their numbers.
PROGRAM = "\n".join(
    file.read_text("utf-8")
    for file in sorted(files(__package__).joinpath("lua").iterdir(), key=lambda file: file.name)
    if file.name.endswith(".lua")
)
