"""The one pen of a process: whatever is asked for while a batch is on its way becomes the next batch.

One batch at a time keeps the commits to one task in the order of their calls, and lets one round trip serve many tasks.
Where a task that is run here stands is remembered from the last answer, so that a change to it is usually judged
without asking first; when that is out of date the script says so and nothing was written.

A batch whose answer was lost with the connection is sent again under the same number: the server knows whether it was
done (see `lua/6_batch.lua`), so that a caller hears the truth. Only when the server stays away is it told that nobody
knows.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from redis import exceptions as redis_errors

from errands.engines.redis.changes import Judge, Judged
from errands.engines.redis.connection import Link
from errands.engines.redis.failures import explain, is_passing
from errands.engines.redis.jobs import Job, pack
from errands.engines.redis.keys import Keys
from errands.engines.redis.records import NOWHERE, Stand, read_stand
from errands.errors import DuplicateMessageError, ErrandsError, StorageError
from errands.model.core import TERMINAL_STATES
from errands.model.log import LEASE, Change

logger = logging.getLogger(__name__)

#: A batch that has so many entries, or bytes, takes no more: the server does nothing else meanwhile.
MAX_BATCH = 128
MAX_BYTES = 4_000_000
#: Tasks whose place is remembered.
MAX_KNOWN = 10_000

Deliver = Callable[[Change, Judged], None]


class Entry(NamedTuple):
    work: Change | Job
    future: asyncio.Future[Any]


class Writer:
    """`deliver` is called for each change once it is durable, before its caller hears of it."""

    def __init__(self, link: Link, keys: Keys, judge: Judge, deliver: Deliver) -> None:
        self._link = link
        self._judge = judge
        self._deliver = deliver
        self._answer = keys.answer(secrets.token_hex(8))
        self._number = 0
        self._loop = asyncio.get_running_loop()
        self._queue: list[Entry] = []
        self._wanted = asyncio.Event()
        self._known: dict[str, Stand] = {}
        self._closing = False
        self._task = self._loop.create_task(self._run(), name="errands-redis-writer")
        #: How many batches were sent.
        self.batches = 0

    def submit(self, work: Change | Job) -> asyncio.Future[Any]:
        if self._closing:
            raise StorageError(f"The connection to Redis at {self._link.server} is closed")
        future = self._loop.create_future()
        self._queue.append(Entry(work, future))
        self._wanted.set()
        return future

    def know(self, task_id: str, stand: Stand) -> None:
        """Remembers where a task stands that is run here, as long as it is: it is written to again and again."""
        self._known.pop(task_id, None)
        if stand.record is None or not stand.record.head.worker or stand.record.head.state in TERMINAL_STATES:
            return
        self._known[task_id] = stand
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def _learn(self, change: Change, stand: Stand) -> None:
        """What somebody writes who does not run the task is hardly followed by more."""
        if change.fence is not None or change.work is LEASE or change.task_id in self._known:
            self.know(change.task_id, stand)

    async def stop(self) -> None:
        """Writes what is queued, then ends."""
        self._closing = True
        self._wanted.set()
        await self._task

    async def _run(self) -> None:
        while self._queue or not self._closing:
            if not self._queue:
                self._wanted.clear()
                await self._wanted.wait()
                # What else this turn of the event loop submits comes along.
                await asyncio.sleep(0)
                continue
            batch = self._take()
            try:
                await self._write(batch)
            except Exception as error:
                if not isinstance(error, StorageError):
                    logger.exception("a batch failed")
                for entry in batch:
                    _fail(entry.future, _copy(error, self._link.server))

    def _take(self) -> list[Entry]:
        size = count = 0
        for entry in self._queue[:MAX_BATCH]:
            count += 1
            if isinstance(entry.work, Change):
                size += sum(len(draft.data) for draft in entry.work.events) + len(entry.work.context or b"")
            if size > MAX_BYTES:
                break
        batch, self._queue = self._queue[:count], self._queue[count:]
        return batch

    async def _write(self, batch: list[Entry]) -> None:
        """Sends what can be sent until each entry has come to its end."""
        #: Where the tasks stood at the last answer; what is in here is no guess.
        fresh: dict[str, Stand] = {}
        while batch:
            asked = self._prepare(batch, fresh)
            fresh = {}
            if not asked:
                return
            answers = await self._send([job for _, job, _ in asked])
            batch = []
            for (entry, _, judged), answer in zip(asked, answers, strict=True):
                if isinstance(answer, Exception):
                    _fail(entry.future, explain(answer, self._link.server))
                elif not isinstance(entry.work, Change):
                    _finish(entry.future, answer)
                elif answer[0] == b"stale":
                    fresh[entry.work.task_id] = stand = read_stand(answer[1:])
                    self._learn(entry.work, stand)
                    batch.append(entry)
                else:
                    self._settle(entry, entry.work, judged, answer)

    def _prepare(self, batch: list[Entry], fresh: dict[str, Stand]) -> list[tuple[Entry, bytes, Judged | None]]:
        """The jobs of one round. A refusal counts only where the task is known to stand, never on a guess."""
        asked: list[tuple[Entry, bytes, Judged | None]] = []
        #: Where tasks will stand after the jobs before; None when one of these has to look first, and so the next.
        assumed: dict[str, Stand | None] = {}
        for entry in batch:
            try:
                judged = self._judged(entry.work, assumed, fresh) if isinstance(entry.work, Change) else None
                asked.append((entry, pack(self._job(entry.work, judged)), judged))
            except ErrandsError as error:
                _fail(entry.future, error)
            except (ValueError, TypeError, OverflowError) as error:
                # What cannot be encoded fails alone.
                _fail(entry.future, StorageError(f"this cannot be stored: {error}"))
        return asked

    def _judged(self, change: Change, assumed: dict[str, Stand | None], fresh: dict[str, Stand]) -> Judged | None:
        """None when the task has to be looked at first."""
        task_id = change.task_id
        if task_id in assumed:
            stand = assumed[task_id]
        else:
            stand = fresh.get(task_id) or self._known.get(task_id) or (NOWHERE if change.expected == 0 else None)
        judged = None
        try:
            judged = None if stand is None else self._judge.judge(stand, change)
        except ErrandsError:
            if task_id in fresh and task_id not in assumed:
                raise
        assumed[task_id] = None if judged is None else judged.stand
        return judged

    def _job(self, work: Change | Job, judged: Judged | None) -> Job:
        if not isinstance(work, Change):
            return work
        return self._judge.look(work) if judged is None else judged.job

    def _settle(self, entry: Entry, change: Change, judged: Judged | None, answer: Sequence[bytes]) -> None:
        if answer[0] == b"duplicate":
            _fail(entry.future, DuplicateMessageError(answer[1].decode()))
            return
        assert judged is not None
        assert judged.stand.record is not None
        self._learn(change, judged.stand)
        self._deliver(change, judged)
        _finish(entry.future, judged.stand.record.head.version)

    async def _send(self, jobs: list[bytes]) -> list[Any]:
        """Raises `StorageError` when the server stays away or refuses."""
        self._number += 1
        while True:
            try:
                answers = await self._link.call(jobs, answer=self._answer, number=self._number)
            except (redis_errors.RedisError, OSError) as error:
                if await self._link.may_try_again(error):
                    continue
                raise (self._unknown(error) if is_passing(error) else explain(error, self._link.server)) from error
            self._link.was_reached()
            self.batches += 1
            return answers

    def _unknown(self, error: Exception) -> StorageError:
        known = explain(error, self._link.server)
        return StorageError(f"{known}. What was on its way may have been written or not; to send it again is safe")


def _finish(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():  # the caller was canceled
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _copy(error: Exception, server: str) -> StorageError:
    """An error of its own for each caller: a traceback grows with every raise."""
    copy = error if isinstance(error, StorageError) else explain(error, server)
    twin = StorageError(*copy.args)
    twin.__cause__ = error.__cause__ or error
    return twin
