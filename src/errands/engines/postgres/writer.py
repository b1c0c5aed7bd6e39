"""Group commit: whatever is queued is written as one transaction, while earlier ones wait for the disk.

A few lanes, each with a connection, take turns: one at a time holds the pen and writes, the others commit what they
have written. A task is in one lane at a time, so changes to it keep their order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from errands.engines.postgres.changes import Changes
from errands.engines.postgres.connection import Connection, Options
from errands.engines.postgres.failures import explain, is_crowded, is_in_the_way, is_lost, is_read_only
from errands.engines.postgres.link import FIRST_PAUSE, LONGEST_PAUSE, Link
from errands.errors import ErrandsError, StorageError
from errands.model.log import Change

#: A transaction that has so many jobs, or bytes, takes no more: the first is not to wait for ever, and PostgreSQL takes
#: no message of more than a gigabyte.
MAX_BATCH = 512
MAX_BYTES = 8_000_000

#: A function of `jobs` with its arguments bound.
Action = Callable[[Connection], Awaitable[Any]]
Write = Change | Action


class Job(NamedTuple):
    work: Write
    future: asyncio.Future[Any]
    #: What no two lanes may have at the same time. None: it comes after everything that was submitted before.
    key: object
    number: int
    #: When it was submitted, on the loop's clock.
    at: float


#: A job and what came of it: `Written` for a change, the function's result, or the error.
Outcome = tuple[Job, Any]
#: What was written and waits to be committed: the results, and whether the batch's number was left behind with it.
Prepared = tuple[Sequence[Any], bool]


class Writer:
    """The lanes and their queue. `deliver` hears of what is durable."""

    def __init__(self, options: Options, changes: Changes, deliver: Callable[[list[Outcome]], None]) -> None:
        self._options = options
        self._changes = changes
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Job] = deque()
        self._submitted = 0
        #: Held by the lane that takes jobs and writes.
        self._pen = asyncio.Lock()
        self._news = asyncio.Event()
        self._stopping = False
        #: The keys that lanes have, and the first job of each lane that has some.
        self._busy: set[object] = set()
        self._first: dict[Link, int] = {}
        self._lanes: list[asyncio.Task[None]] = []
        #: How many transactions were committed; what group commit saves is seen here.
        self.transactions = 0

    def start(self, connection: Connection) -> None:
        """Begins with this connection; the lanes make further ones when they need them."""
        name = self._changes.process.name
        links = [Link(self._options, name, 0, connection)]
        links += [Link(self._options, name, lane) for lane in range(1, self._options.lanes)]
        self._lanes = [self._loop.create_task(self._run(link), name="errands-postgres-writer") for link in links]

    def submit(self, work: Write, key: object = None) -> asyncio.Future[Any]:
        """Queues work; whatever else this turn of the event loop submits comes along."""
        future = self._loop.create_future()
        self._submitted += 1
        self._queue.append(Job(work, future, key, self._submitted, self._loop.time()))
        self._news.set()
        return future

    async def stop(self) -> None:
        """Writes what is queued, then ends."""
        self._stopping = True
        self._news.set()
        await asyncio.gather(*self._lanes)

    async def _run(self, link: Link) -> None:
        """One lane."""
        while await self._turn(link):
            pass
        await link.close()

    async def _turn(self, link: Link) -> bool:
        """Takes, writes, commits and delivers; false when nothing will follow. A method, so that a lane which waits
        holds on to nothing."""
        async with self._pen:
            jobs = await self._next()
            if not jobs:
                return False
            self._busy.update(job.key for job in jobs)
            self._first[link] = jobs[0].number
            prepared = await self._prepare(link, jobs)
        if is_crowded(prepared) and self._is_patient(jobs):
            return await self._leave_to_others(link, jobs)
        try:
            self._deliver(await self._finish(link, jobs, prepared))
        finally:
            self._let_go(link, jobs)
        return True

    async def _leave_to_others(self, link: Link, jobs: list[Job]) -> bool:
        """The server has no room for this lane's connection: lanes that have one do the work, and this one rests."""
        self._queue.extendleft(reversed(jobs))
        self._let_go(link, jobs)
        await asyncio.sleep(LONGEST_PAUSE)
        return True

    def _let_go(self, link: Link, jobs: list[Job]) -> None:
        self._busy.difference_update(job.key for job in jobs)
        del self._first[link]
        self._news.set()

    async def _next(self) -> list[Job]:
        """Jobs that may share a transaction, as soon as there are any; none when nothing will follow."""
        while not (jobs := self._take()):
            if self._stopping and not self._queue:
                break
            self._news.clear()
            await self._news.wait()
        return jobs

    def _take(self) -> list[Job]:
        taken: list[Job] = []
        left: list[Job] = []
        waiting = set(self._busy)
        size = 0
        while self._queue and len(taken) < MAX_BATCH and len(left) < MAX_BATCH and size < MAX_BYTES:
            job = self._queue.popleft()
            if job.key is None and not taken and not left and not self._is_anything_before(job):
                return [job]
            if job.key is None or job.key in waiting or (taken and not (_is_batched(job) and _is_batched(taken[0]))):
                waiting.add(job.key)
                left.append(job)
            else:
                taken.append(job)
                size += _size(job)
        self._queue.extendleft(reversed(left))
        return taken

    def _is_anything_before(self, job: Job) -> bool:
        return any(number < job.number for number in self._first.values())

    async def _prepare(self, link: Link, jobs: list[Job]) -> Prepared | Exception:
        """Does everything but the commit."""
        try:
            return await self._do(await link.begin(), link, jobs)
        except Exception as error:
            return error

    async def _do(self, connection: Connection, link: Link, jobs: list[Job]) -> Prepared:
        works: list[Any] = [job.work for job in jobs]
        if _is_batched(jobs[0]):
            return await self._changes.write(connection, works, link.lane, link.batch)
        try:
            result = await works[0](connection)
        except ErrandsError as error:
            return [error], False
        return [result], await link.note(connection)

    async def _finish(self, link: Link, jobs: list[Job], prepared: Prepared | Exception) -> list[Outcome]:
        """Commits, in spite of connections that break, for as long as there is patience."""
        pause = FIRST_PAUSE
        while True:
            result = await self._commit(link, prepared)
            if not isinstance(result, Exception):
                return list(zip(jobs, result, strict=True))
            is_unconnected = is_lost(result) or is_crowded(result)
            concerns_all = is_unconnected or is_read_only(result) or isinstance(result, StorageError)
            if not concerns_all and len(jobs) > 1:
                return await self._one_by_one(link, jobs)
            is_final = not (is_unconnected or is_in_the_way(result))
            if is_final or not self._is_patient(jobs):
                return self._failed(jobs, result)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            # Without the pen: it may be held by a lane that waits for work.
            prepared = await self._prepare(link, jobs)

    async def _commit(self, link: Link, prepared: Prepared | Exception) -> Sequence[Any] | Exception:
        """The results, once they are durable, or why they are not; then nothing is left of them."""
        failure = prepared
        if not isinstance(prepared, Exception):
            try:
                await link.commit(is_noted=prepared[1])
                self.transactions += 1
                return prepared[0]
            except Exception as error:
                failure = error
        assert isinstance(failure, Exception)
        if is_lost(failure) or is_read_only(failure):
            link.drop()
            self._changes.forget_numbers()
        else:
            await link.roll_back()
        return failure

    async def _one_by_one(self, link: Link, jobs: list[Job]) -> list[Outcome]:
        """One of the jobs cannot be stored at all, or has to wait for somebody: alone, it fails or waits alone."""
        outcomes: list[Outcome] = []
        for job in jobs:
            outcomes += await self._finish(link, [job], await self._prepare(link, [job]))
        return outcomes

    def _is_patient(self, jobs: list[Job]) -> bool:
        return self._loop.time() - jobs[0].at <= self._options.patience

    def _failed(self, jobs: list[Job], error: Exception) -> list[Outcome]:
        # An error of its own for each: callers may add to it.
        return [(job, StorageError(*explain(error, self._options.name).args)) for job in jobs]


def _size(job: Job) -> int:
    """Bytes of what it writes, as far as they can be many."""
    if not isinstance(job.work, Change):
        return 0
    return sum(len(draft.data) for draft in job.work.events) + len(job.work.context or b"")


def _is_batched(job: Job) -> bool:
    return isinstance(job.work, Change)
