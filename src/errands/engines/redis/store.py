"""Writing: whatever is submitted while a batch is on its way becomes the next batch.

Redis cannot call `lifecycle.judge`, so judging is optimistic: Python judges a change against the task as it knows it,
and the script writes only if the task and the receipt are still exactly so, byte for byte; otherwise it answers what
they are and the change is judged again. Rules in Lua would be a second lifecycle that has to agree with the first.
Since everything that is judged is also compared, a write is always one that was accepted at that very moment.

One batch at a time keeps the changes to one task in the order of their calls, and lets one round trip serve many tasks.
A task that is run here is remembered as of the last answer, so that a change to it is usually judged without asking
first.

A batch whose answer was lost with the connection is sent again under the same number: the server knows whether it was
done (see `lua/7_batch.lua`), so that a caller gets the right answer. Only when the server stays away does the caller
get an error that says that it is not known.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from redis import exceptions as redis_errors

from errands.engines.commit import CommitCounts, CommitJob, CommitQueue, Outcome, failures
from errands.engines.redis import schema
from errands.engines.redis.connection import RedisServer, explain, is_passing
from errands.engines.redis.schema import (
    Blob,
    Command,
    Commit,
    KnownTask,
    NewPush,
    OutboxChange,
    Request,
    TaskHash,
    blob,
    pack,
    request,
    scope_name,
)
from errands.errors import ErrandsError, StorageError
from errands.lifecycle import Judged, Receipt, judge, receipt_until
from errands.model.base import encode
from errands.model.core import FAILED, PAUSED_STATES, TERMINAL_STATES
from errands.model.log import LEASE, Change, Event, EventKind, Head

logger = logging.getLogger(__name__)

#: The server does nothing else while it runs a batch.
MAX_JOBS = 128
MAX_BYTES = 4_000_000
#: Tasks that are remembered.
MAX_KNOWN = 10_000
#: A receipt is kept longer than its window by this much: clocks differ, and a window may be configured anew.
RECEIPT_SLACK_MS = 3_600_000
#: A log with more events than this is noted in `long`, for retention to look at.
LONG_LOG = 100


class RoundEntry(msgspec.Struct):
    """A job of the round that is being prepared."""

    job: CommitJob
    packed: bytes
    #: None for what is not a change, and for a change whose task has to be looked up first.
    judged: Judged | None = None
    #: The task after the change.
    after: KnownTask | None = None


class Found(msgspec.Struct):
    """What the last answer said: no guess."""

    tasks: dict[str, KnownTask] = {}
    #: By key, as they are stored: the time, a space, and the task's id.
    receipts: dict[str, str] = {}


class RedisStore:
    """The queue and the task that writes. `deliver` is called with what is durable.

    A job is a change, or a request that the scripts understand.
    """

    def __init__(
        self,
        server: RedisServer,
        commands: CommandBuilder,
        deliver: Callable[[Iterable[Outcome]], None],
        counts: CommitCounts | None = None,
    ) -> None:
        self._counts = counts
        self._server = server
        self._commands = commands
        self._deliver = deliver
        self._answer = commands.keys("answer", secrets.token_hex(8))
        self._loop = asyncio.get_running_loop()
        self._queue = CommitQueue(MAX_JOBS, MAX_BYTES)
        self._wanted = asyncio.Event()
        self._known: dict[str, KnownTask] = {}
        self._closing = False
        self._task = self._loop.create_task(self._run(), name="errands-redis-writer")
        #: How many batches were sent, the number of the last one.
        self.batches = 0

    def submit(self, work: Change | Request) -> asyncio.Future[Any]:
        if self._closing:
            raise StorageError(f"The connection to Redis at {self._server.name} is closed")
        future = self._loop.create_future()
        self._queue.append(CommitJob(work, future))
        self._wanted.set()
        return future

    async def stop(self) -> None:
        """Write what is queued, then end."""
        self._closing = True
        self._wanted.set()
        await self._task

    def know(self, task_id: str, known: KnownTask) -> None:
        """Remember a task as long as it is run here: it is written to again and again."""
        self._known.pop(task_id, None)
        if known.task is None or not known.task.head.worker or known.task.head.state in TERMINAL_STATES:
            return
        self._known[task_id] = known
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def _learn(self, change: Change, known: KnownTask) -> None:
        # A change by anyone but the holder of the lease is hardly followed by more.
        if change.fence is not None or change.work is LEASE or change.task_id in self._known:
            self.know(change.task_id, known)

    async def _run(self) -> None:
        while self._queue or not self._closing:
            if not self._queue:
                self._wanted.clear()
                await self._wanted.wait()
                # Whatever else this turn of the event loop submits goes with it.
                await asyncio.sleep(0)
                continue
            jobs = self._queue.take()
            try:
                await self._write(jobs)
            except Exception as error:
                if not isinstance(error, StorageError):
                    logger.exception("a batch failed")
                self._deliver(failures(jobs, explain(error, self._server.name)))

    async def _write(self, jobs: list[CommitJob]) -> None:
        """Send rounds until each job has come to its end."""
        found = Found()
        while jobs and (round_ := self._prepare(jobs, found)):
            answers = await self._send([entry.packed for entry in round_])
            jobs, found = [], Found()
            outcomes: list[Outcome] = []
            for entry, answer in zip(round_, answers, strict=True):
                change = entry.job.work
                if isinstance(answer, Exception):
                    outcomes.append((entry.job, explain(answer, self._server.name)))
                elif not isinstance(change, Change):
                    outcomes.append((entry.job, answer))
                elif answer[0] == b"stale":
                    known = found.tasks[change.task_id] = schema.read_known(answer[2:])
                    if (key := self._receipt_key(change)) is not None:
                        found.receipts[key] = answer[1].decode()
                    self._learn(change, known)
                    jobs.append(entry.job)
                else:
                    assert entry.after is not None
                    self._learn(change, entry.after)
                    outcomes.append((entry.job, entry.judged))
            self._deliver(outcomes)

    def _prepare(self, jobs: list[CommitJob], found: Found) -> list[RoundEntry]:
        """Return the jobs of one round. A refusal counts only for what was found, never for a guess."""
        round_: list[RoundEntry] = []
        failed: list[Outcome] = []
        #: Tasks as they will be after the jobs before; None when one of these has to look first, and so the next.
        assumed: dict[str, KnownTask | None] = {}
        for job in jobs:
            try:
                if isinstance(job.work, Change):
                    round_.append(self._entry(job, job.work, found, assumed))
                else:
                    round_.append(RoundEntry(job, pack(job.work)))
            except ErrandsError as error:
                failed.append((job, error))
            except (ValueError, TypeError, OverflowError) as error:
                # What cannot be encoded fails alone.
                failed.append((job, StorageError(f"this cannot be stored: {error}")))
        self._deliver(failed)
        return round_

    def _entry(self, job: CommitJob, change: Change, found: Found, assumed: dict[str, KnownTask | None]) -> RoundEntry:
        task_id, key = change.task_id, self._receipt_key(change)
        stored = "" if key is None else found.receipts.get(key, "")
        at, _, by = stored.partition(" ")
        receipt = Receipt(by, int(at)) if stored else None
        if task_id in assumed:
            known = assumed[task_id]
        else:
            known = (
                found.tasks.get(task_id)
                or self._known.get(task_id)
                or (schema.NEW_TASK if change.expected == 0 else None)
            )
        is_guess = task_id in assumed or task_id not in found.tasks
        assumed[task_id] = None
        if known is not None:
            scope, head = (None, None) if known.task is None else (known.task.scope, known.task.head)
            try:
                judged = judge(scope, head, receipt, change)
            except ErrandsError:
                if not is_guess:
                    raise
            else:
                after, commit = self._commands.commit(judged, known, key, stored)
                assumed[task_id] = after
                return RoundEntry(job, pack(commit), judged, after)
        return RoundEntry(job, pack(Commit(id=task_id, receipt=key)))

    def _receipt_key(self, change: Change) -> str | None:
        if change.receipt is None:
            return None
        return self._commands.keys("receipt", scope_name(change.scope), change.receipt.hex())

    async def _send(self, requests: list[bytes]) -> list[Any]:
        """Raises `StorageError` when the server stays away or refuses."""
        self.batches += 1
        began = self._loop.time()
        while True:
            try:
                answers = await self._server.call(requests, answer=self._answer, number=self.batches)
            except (redis_errors.RedisError, OSError) as error:
                if await self._server.may_try_again(error):
                    continue
                failure = explain(error, self._server.name)
                if is_passing(error):
                    failure = StorageError(
                        f"{failure}. What was on its way may have been written or not; to send it again is safe"
                    )
                raise failure from error
            self._server.was_reached()
            if self._counts is not None:
                self._counts.note_batch(len(requests), self._loop.time() - began)
            return answers


class CommandBuilder:
    """Builds the requests that store a judged change, delete a task or trim a log."""

    def __init__(self, keys: schema.Keys, origin: str, long_log: int = LONG_LOG) -> None:
        self.keys = keys
        self._origin = origin
        self._long_log = long_log

    def commit(self, judged: Judged, known: KnownTask, key: str | None, receipt: str) -> tuple[KnownTask, Commit]:
        """Return the task after a change, and the request that writes it."""
        keys, change, head, task_id = self.keys, judged.change, judged.head, judged.change.task_id
        snapshot = None if change.fold is None else encode(change.fold)
        restored = change.restored
        after = TaskHash(change.scope, change.context_id, 0 if restored is None else restored.trimmed, head)
        if known.task is not None:
            after.context_id, after.trimmed = known.task.context_id, known.task.trimmed
        fields = after.fields()
        hash_fields: Command = ["HSET", keys("task", task_id)]
        for name, value in zip(schema.FIELDS, fields, strict=True):
            hash_fields += (name, value)
        commands = [hash_fields]
        if known.task is None:
            hash_fields += ("agent", after.scope.agent)
            commands.append(["SADD", keys("agents"), after.scope.agent])
        if snapshot is not None:
            hash_fields += ("snapshot", blob(snapshot), "folded", str(head.version))
        if key is not None:
            lasts = max(receipt_until(change) - change.at, 0) + RECEIPT_SLACK_MS
            commands.append(["SET", key, f"{change.at} {task_id}", "PX", str(lasts)])
        if change.context is not None:
            name = f"{scope_name(after.scope)}:{after.context_id}"
            commands.append(["SET", keys("context", name), blob(change.context)])
            commands.append(["ZADD", keys("contexts"), str(change.at), name])
        self._index(commands, task_id, judged.before, after)
        self._list(commands, task_id, judged.before, after)
        if judged.wakes_workers:
            commands.append(["PUBLISH", keys("work"), self._origin])
        events: list[EventKind | Blob] = []
        first = None
        if restored is None:
            for event in judged.events:
                events += (event.kind, blob(event.data))
            first = judged.events[0] if judged.events else None
        else:
            commands += [self._add_event(task_id, event, restored.trimmed) for event in restored.events]
        outbox = None
        if head.pushes or judged.before.pushes:
            push = None
            if (config := change.push) is not None:
                text = encode(config).decode()
                push = NewPush(config.id, config.host, after.scope.agent, text, judged.before.version)
            outbox = OutboxChange(push, change.drop_push, judged.fills_outbox)
        return KnownTask(after, fields), Commit(
            id=task_id,
            expected=known.fields,
            receipt=key,
            expected_receipt=receipt,
            events=events,
            first=0 if first is None else first.version,
            at=str(max(change.at, 0)),
            lease="" if first is None or first.lease is None else encode(first.lease).decode(),
            commands=commands,
            ends=head.state in TERMINAL_STATES and head.version - after.trimmed <= LONG_LOG,
            origin=self._origin,
            state=head.state.value,
            outbox=outbox,
        )

    def _add_event(self, task_id: str, event: Event, trimmed: int) -> Command:
        """Return the command that writes an event with a time and lease of its own."""
        stream = self.keys("log" if event.version > trimmed else "records", task_id)
        command: Command = ["XADD", stream, f"{event.version}-{max(event.at, 0)}", event.kind, blob(event.data)]
        if event.lease is not None:
            command += ("lease", encode(event.lease).decode())
        return command

    def _index(self, commands: list[Command], task_id: str, before: Head, after: TaskHash) -> None:
        """Move a task in the queue and in the sets of canceling, asking, paused, ended and long tasks."""
        keys, head, agent = self.keys, after.head, after.scope.agent
        if head.due_at is None:
            if before.due_at is not None:
                commands.append(["ZREM", keys("queue", agent), task_id])
        elif head.due_at != before.due_at:
            commands.append(["ZADD", keys("queue", agent), str(head.due_at), task_id])
        ended = head.state in TERMINAL_STATES
        if ended:
            commands.append(["ZADD", keys("ended", head.state.short), str(head.updated_at), task_id])
        if head.cancel_requested and not ended:
            commands.append(["SADD", keys("canceling"), task_id])
        elif before.cancel_requested:
            commands.append(["SREM", keys("canceling"), task_id])
        if head.asks:
            commands.append(["ZADD", keys("asking"), str(head.status_at), task_id])
        elif before.asks:
            commands.append(["ZREM", keys("asking"), task_id])
        if head.due_at is None and head.state in PAUSED_STATES:
            commands.append(["ZADD", keys("paused", agent), str(head.status_at), task_id])
            commands.append(["ZADD", keys("aging", agent), str(head.created_at), task_id])
        elif before.due_at is None and before.state in PAUSED_STATES:
            commands += [["ZREM", keys("paused", agent), task_id], ["ZREM", keys("aging", agent), task_id]]
        kept = head.version - after.trimmed
        if kept > self._long_log:
            commands.append(["ZADD", keys("long"), str(kept), task_id])

    def _list(self, commands: list[Command], task_id: str, before: Head, after: TaskHash) -> None:
        """Move a task in the listings, if its status changed."""
        head, scope, context_id = after.head, after.scope, after.context_id
        if before.version and (before.state, before.status_at) == (head.state, head.status_at):
            return
        if before.version and before.state is not head.state:
            former = self.keys.listing(scope, None, before.state), self.keys.listing(scope, context_id, before.state)
            commands += [["ZREM", listing, task_id] for listing in former]
        listings = self.keys.listings(scope, context_id, head.state)
        commands += [["ZADD", listing, str(-head.status_at), task_id] for listing in listings]

    def delete(self, task_id: str, known: KnownTask) -> Request:
        """Return the request that deletes a task."""
        assert known.task is not None
        keys, task = self.keys, known.task
        commands: list[Command] = [
            ["UNLINK", keys("task", task_id), keys("log", task_id), keys("records", task_id)],
            ["SREM", keys("canceling"), task_id],
        ]
        states = [task.head.state] if task.head.state in TERMINAL_STATES else TERMINAL_STATES
        indexes = [keys("queue", task.scope.agent), keys("asking"), keys("long")]
        indexes += [keys("ended", state.short) for state in states]
        indexes += keys.listings(task.scope, task.context_id, task.head.state)
        commands += [["ZREM", index, task_id] for index in indexes]
        return request("delete", id=task_id, expected=known.fields, commands=commands)

    def end_lost(self, task_id: str, agents: Iterable[str], now: int) -> Request:
        """Return the request that ends a task whose record cannot be read, and so cannot be written anew."""
        keys = self.keys
        commands: list[Command] = [["ZREM", keys("queue", agent), task_id] for agent in agents]
        commands += [
            ["SREM", keys("canceling"), task_id],
            ["ZREM", keys("asking"), task_id],
            ["HSET", keys("task", task_id), "worker", "", "due_at", ""],
            ["ZADD", keys("ended", FAILED.short), str(now), task_id],
        ]
        return request("run", commands=commands)

    def trim(self, task_id: str, known: KnownTask, upto: int, snapshot: bytes | None) -> tuple[KnownTask, Request]:
        """Return the task after its log is trimmed up to a version, and the request that does it.

        What is trimmed must be in the snapshot; without one, the stored snapshot reaches far enough.
        """
        assert known.task is not None
        head = known.task.head
        task = msgspec.structs.replace(known.task, trimmed=upto)
        fields = task.fields()
        hash_fields: Command = ["HSET", self.keys("task", task_id), "record", fields[0]]
        if snapshot is not None:
            hash_fields += ("snapshot", blob(snapshot), "folded", str(head.version))
        kept = head.version - upto
        long: Command = ["ZREM", self.keys("long"), task_id]
        if kept > self._long_log:
            long = ["ZADD", self.keys("long"), str(kept), task_id]
        commands = [hash_fields, long]
        return KnownTask(task, fields), request(
            "trim", id=task_id, expected=known.fields, upto=str(upto), commands=commands
        )
