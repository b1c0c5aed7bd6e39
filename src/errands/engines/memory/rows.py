"""What the memory engine keeps of a task."""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from operator import attrgetter

import msgspec

from errands import lifecycle
from errands.engines.fanout import READ_BYTES
from errands.engines.stored import damaged_task
from errands.model.base import UNREADABLE, encode
from errands.model.core import Task
from errands.model.log import AskingQuery, Event, Head, ListQuery, LogSlice, Scope, StoredTask

#: The log of an ended task is kept in one piece when it has no more events than this.
PACKED_EVENTS = 32

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[Event]).decode
_version = attrgetter("version")
_decode = msgspec.json.Decoder(Task).decode


class Row(msgspec.Struct, gc=False):
    """One task: its head, its log, and the snapshot up to `folded`.

    What is kept of an ended task is bytes: thousands of them as objects would push out of the processor's caches
    what the running ones need.
    """

    id: str
    scope: Scope
    context_id: str
    head: Head
    events: list[Event] = []
    snapshot: Task | bytes | None = None
    folded: int = 0
    #: Records among the events that were cut off.
    records: list[Event] = []
    #: The whole log of an ended task, if it is short; `events` and `snapshot` are then empty.
    packed: bytes | None = None
    receipts: tuple[bytes, ...] = ()

    def pack(self, task: Task | None) -> None:
        """Keeps what has ended as bytes; `task` is the whole of it, if the writer knows it."""
        if len(self.events) == self.head.version <= PACKED_EVENTS:
            self.packed, self.events = _pack(self.events), []
            if self.folded:
                self.snapshot, self.folded = None, 0
        elif task is not None:
            self.snapshot, self.folded = encode(task), self.head.version
        elif isinstance(self.snapshot, Task):
            self.snapshot = encode(self.snapshot)

    @property
    def kept_bytes(self) -> int:
        """The bytes of content that an ended task holds."""
        if self.packed is not None:
            return len(self.packed)
        snapshot = len(self.snapshot) if isinstance(self.snapshot, bytes) else 0
        return snapshot + sum([len(event.data) for event in self.events]) + sum([len(one.data) for one in self.records])

    def unpack(self) -> None:
        if self.packed is not None:
            self.events, self.packed = _unpack(self.packed), None

    def log(self) -> list[Event]:
        """What has not been cut off of it."""
        try:
            return self.events if self.packed is None else _unpack(self.packed)
        except UNREADABLE:
            return []

    def slice(self, after: int, limit: int) -> LogSlice:
        events = self.log()
        first = events[0].version if events else self.head.version + 1
        start = bisect_right(events, after, key=_version)
        taken, size = [], 0
        for event in islice(events, start, start + limit):
            if size >= READ_BYTES:
                break
            taken.append(event)
            size += len(event.data)
        return LogSlice(taken, gap=after + 1 < first)

    def stored(self) -> StoredTask:
        try:
            task = self._folded_task()
        except UNREADABLE as error:
            return damaged_task(self.id, self.context_id, self.scope, self.head, error)
        return StoredTask(task=task, head=self.head, scope=self.scope)

    def _folded_task(self) -> Task:
        if self.packed is not None:
            return lifecycle.fold(None, _unpack(self.packed))
        task = _decode(self.snapshot) if isinstance(self.snapshot, bytes) else self.snapshot
        if task is None or self.folded < self.head.version:
            tail = self.events[bisect_right(self.events, self.folded, key=_version) :]
            self.snapshot = task = lifecycle.fold(task, tail)
            self.folded = self.head.version
        return task

    def without_artifacts(self) -> StoredTask:
        stored = self.stored()
        if stored.task.artifacts:
            stored.task = msgspec.structs.replace(stored.task, artifacts=None)
        return stored

    def size(self, *, with_artifacts: bool) -> int:
        """How many bytes there are of what a listing would show."""
        if self.packed is not None:
            return len(self.packed)
        if isinstance(self.snapshot, bytes) and self.folded == self.head.version:
            return len(self.snapshot)
        return len(encode((self.stored() if with_artifacts else self.without_artifacts()).task))

    def trim(self, keep: int) -> None:
        """Cuts the oldest events off, all but their records."""
        # They must be in the snapshot before.
        self.stored()
        cut = len(self.events) - keep
        self.records = self.records + [event for event in self.events[:cut] if event.kind == "record"]
        del self.events[:cut]

    def is_asked(self, query: AskingQuery) -> bool:
        return (
            (query.tenant is None or self.scope.tenant == query.tenant)
            and (query.agent is None or self.scope.agent == query.agent)
            and (query.users is None or self.head.asks in query.users)
        )

    def matches(self, query: ListQuery) -> bool:
        head = self.head
        return (
            self.scope == query.scope
            and (query.context_id is None or self.context_id == query.context_id)
            and (query.state is None or head.state == query.state)
            and (query.status_after is None or head.status_at >= query.status_after)
        )
