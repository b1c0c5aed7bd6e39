"""From a change and the place where its task stands to what is to be written. Pure: no I/O, no clock.

Redis cannot call `lifecycle`, so the judgement is optimistic: Python judges a change against the task as it knows it,
and the script writes only if the task still stands exactly so, byte for byte; otherwise it answers with how it stands
and the change is judged again. The guards repeated in Lua would be a second lifecycle that has to agree with the first.
Since everything that is judged is also compared, a write is always one that `accept` allowed at that very moment.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from errands import lifecycle
from errands.engines.redis.jobs import Command, Commit, Trim
from errands.engines.redis.keys import Keys
from errands.engines.redis.records import FIELDS, Blob, Fields, Record, Stand, blob
from errands.errors import ConcurrencyError
from errands.model.base import encode
from errands.model.core import FAILED, PAUSED_STATES, TERMINAL_STATES
from errands.model.log import READY, Change, Event, EventKind, Head, StoredTask

#: Longer than its window by this much is a receipt kept: clocks differ, and a window may be configured anew.
RECEIPT_SLACK_MS = 3_600_000
#: A log with more events than this is noted in `long`, for retention to look at.
LONG_LOG = 100


class Judged(NamedTuple):
    """An accepted change: what to ask of Redis, and what is true once it is written."""

    job: Commit
    stand: Stand
    events: list[Event]
    #: The whole task, when the change brought it along.
    stored: StoredTask | None
    wakes_workers: bool


def _is_paused(head: Head) -> bool:
    """Whether a task waits for an answer, and no worker holds it."""
    return head.due_at is None and head.state in PAUSED_STATES


class Judge:
    """Judges changes for one store."""

    def __init__(self, keys: Keys, origin: str, long_log: int = LONG_LOG) -> None:
        self._keys = keys
        self._origin = origin
        self._long_log = long_log

    def look(self, change: Change) -> Commit:
        """The job that only asks where the task stands, and whether the message is known."""
        return Commit(id=change.task_id, receipt=self._receipt(change), receipt_since=change.receipt_since)

    def _receipt(self, change: Change) -> str | None:
        if change.receipt is None:
            return None
        return self._keys.receipt(self._keys.receipt_name(change.scope, change.receipt))

    def judge(self, stand: Stand, change: Change) -> Judged:
        """Raises what `lifecycle.accept` raises."""
        before = stand.record
        if before is not None and before.scope != change.scope:
            lifecycle.accept(None, change)
            raise ConcurrencyError(f"the id {change.task_id} is taken")
        lifecycle.accept(None if before is None else before.head, change)
        snapshot = None if change.fold is None else encode(change.fold)
        old = Head() if before is None else before.head
        head = lifecycle.advance(old, change)
        after = Record(change.scope, change.context_id, 0, head)
        if before is not None:
            after.context_id, after.trimmed = before.context_id, before.trimmed
        fields = after.fields()
        flat: list[EventKind | Blob] = []
        events: list[Event] = []
        for version, draft in enumerate(change.events, old.version + 1):
            flat += (draft.kind, blob(draft.data))
            events.append(Event(version, draft.kind, draft.data))
        wakes = change.work is READY or bool(change.cancel_requested)
        job = Commit(
            id=change.task_id,
            expected=stand.fields,
            receipt=self._receipt(change),
            receipt_since=change.receipt_since,
            events=flat,
            first=old.version + 1,
            commands=self._commands(change, before, after, fields, snapshot),
            ends=head.state in TERMINAL_STATES and head.version - after.trimmed <= LONG_LOG,
            origin=self._origin,
            state=head.state.value,
        )
        stored = None
        if change.fold is not None:
            stored = StoredTask(task=change.fold, head=head, scope=change.scope)
        return Judged(job, Stand(after, fields), events, stored, wakes)

    def _commands(
        self, change: Change, before: Record | None, after: Record, fields: Fields, snapshot: bytes | None
    ) -> list[Command]:
        keys, task_id = self._keys, change.task_id
        hash_fields: Command = ["HSET", keys.task(task_id)]
        for name, value in zip(FIELDS, fields, strict=True):
            hash_fields += (name, value)
        commands = [hash_fields]
        if before is None:
            hash_fields += ("agent", after.scope.agent)
            commands.append(["SADD", keys.agents, after.scope.agent])
        if snapshot is not None:
            hash_fields += ("snapshot", blob(snapshot), "folded", str(after.head.version))
        if change.receipt is not None:
            name = keys.receipt_name(change.scope, change.receipt)
            hash_fields += (f"r:{name}", "")
            lasts = max(change.receipt_until - change.at, 0) + RECEIPT_SLACK_MS
            commands.append(["SET", keys.receipt(name), f"{change.at} {task_id}", "PX", str(lasts)])
        if change.context is not None:
            name = keys.context_name(after.scope, after.context_id)
            commands.append(["SET", keys.context(name), blob(change.context)])
            commands.append(["ZADD", keys.contexts, str(change.at), name])
        commands += self._place(task_id, before, after)
        commands += self._list(task_id, before, after)
        if change.work is READY or change.cancel_requested:
            commands.append(["PUBLISH", keys.work, self._origin])
        return commands

    def _place(self, task_id: str, before: Record | None, after: Record) -> list[Command]:
        """In the queue, among the tasks wanted canceled, those that ask, the ended and the long ones."""
        keys, head = self._keys, after.head
        old = Head() if before is None else before.head
        commands: list[Command] = []
        if head.due_at is None:
            if old.due_at is not None:
                commands.append(["ZREM", keys.queue(after.scope.agent), task_id])
        elif head.due_at != old.due_at:
            commands.append(["ZADD", keys.queue(after.scope.agent), str(head.due_at), task_id])
        ended = head.state in TERMINAL_STATES
        if ended:
            commands.append(["ZADD", keys.ended(head.state), str(head.updated_at), task_id])
        if head.cancel_requested and not ended:
            commands.append(["SADD", keys.canceling, task_id])
        elif old.cancel_requested:
            commands.append(["SREM", keys.canceling, task_id])
        if head.asks:
            commands.append(["ZADD", keys.asking, str(head.status_at), task_id])
        elif old.asks:
            commands.append(["ZREM", keys.asking, task_id])
        kept = head.version - after.trimmed
        if kept > self._long_log:
            commands.append(["ZADD", keys.long, str(kept), task_id])
        return commands + self._pause(task_id, before, after)

    def _pause(self, task_id: str, before: Record | None, after: Record) -> list[Command]:
        """Among the paused tasks, when it has begun or ceased to be one."""
        keys, agent, head = self._keys, after.scope.agent, after.head
        was_paused = before is not None and _is_paused(before.head)
        if _is_paused(head):
            return [
                ["ZADD", keys.paused(agent), str(head.status_at), task_id],
                ["ZADD", keys.aging(agent), str(head.created_at), task_id],
            ]
        return [["ZREM", keys.paused(agent), task_id], ["ZREM", keys.aging(agent), task_id]] if was_paused else []

    def _list(self, task_id: str, before: Record | None, after: Record) -> list[Command]:
        """In the listings, when the status changed."""
        keys, head = self._keys, after.head
        commands: list[Command] = []
        if before is not None:
            if (before.head.state, before.head.status_at) == (head.state, head.status_at):
                return commands
            if before.head.state is not head.state:
                for context_id in (None, after.context_id):
                    listing = keys.listing(after.scope, context_id, before.head.state)
                    commands.append(["ZREM", listing, task_id])
        score = str(-head.status_at)
        listings = keys.listings(after.scope, after.context_id, head.state)
        return commands + [["ZADD", listing, score, task_id] for listing in listings]

    def forget(self, task_id: str, record: Record) -> list[Command]:
        """What removes a task, beside its receipts."""
        keys = self._keys
        commands: list[Command] = [
            ["UNLINK", keys.task(task_id), keys.log(task_id), keys.records(task_id)],
            ["ZREM", keys.queue(record.scope.agent), task_id],
            ["SREM", keys.canceling, task_id],
            ["ZREM", keys.asking, task_id],
            ["ZREM", keys.long, task_id],
        ]
        states = [record.head.state] if record.head.state in TERMINAL_STATES else TERMINAL_STATES
        commands += [["ZREM", keys.ended(state), task_id] for state in states]
        listings = keys.listings(record.scope, record.context_id, record.head.state)
        return commands + [["ZREM", listing, task_id] for listing in listings]

    def lose(self, task_id: str, agents: Iterable[str], now: int) -> list[Command]:
        """What ends a task whose record cannot be read, and cannot be written anew: nobody knows whose it is."""
        keys = self._keys
        commands: list[Command] = [["ZREM", keys.queue(agent), task_id] for agent in agents]
        return [
            *commands,
            ["SREM", keys.canceling, task_id],
            ["ZREM", keys.asking, task_id],
            ["HSET", keys.task(task_id), "worker", "", "due_at", ""],
            ["ZADD", keys.ended(FAILED), str(now), task_id],
        ]

    def trim(self, task_id: str, stand: Stand, upto: int, snapshot: bytes | None) -> tuple[Trim, Stand]:
        """Cuts a log off up to a version; what is cut off lives on in the snapshot, and records by themselves.

        Without a snapshot the one that is stored reaches far enough. The stand is what follows once it is written.
        """
        assert stand.record is not None
        keys, head = self._keys, stand.record.head
        record = msgspec.structs.replace(stand.record, trimmed=upto)
        fields = record.fields()
        hash_fields: Command = ["HSET", keys.task(task_id), "record", fields[0]]
        if snapshot is not None:
            hash_fields += ("snapshot", blob(snapshot), "folded", str(head.version))
        kept = head.version - upto
        place: Command = ["ZADD", keys.long, str(kept), task_id]
        if kept <= self._long_log:
            place = ["ZREM", keys.long, task_id]
        return Trim(id=task_id, expected=stand.fields, upto=str(upto), commands=[hash_fields, place]), Stand(
            record, fields
        )
