"""Retention: what is too old or too much is removed, by one process at a time."""

from __future__ import annotations

from contextlib import suppress

from redis import exceptions as redis_errors
from redis.asyncio.lock import Lock

from errands.engines.base import Retention
from errands.engines.redis.changes import Judge
from errands.engines.redis.connection import Link
from errands.engines.redis.jobs import Forget, ForgetContexts, Job, Run, Stands
from errands.engines.redis.keys import Keys
from errands.engines.redis.reading import Reader
from errands.engines.redis.records import read_stand
from errands.errors import StorageError
from errands.model.base import encode
from errands.model.core import TERMINAL_STATES, UNSPECIFIED, TaskState

#: What one batch removes at most: other writes wait that long.
SWEEP_TASKS = 100
SWEEP_EVENTS = 1000
#: The live states, as listings are named after them.
_LIVE = [state.short for state in TaskState if state not in TERMINAL_STATES]
#: Seconds after which a process that died while it swept no longer keeps the others from it.
LOCK_SECONDS = 60.0


class Sweeper:
    """What it removes goes to the server directly and not through the writer: a server whose memory is full refuses
    whatever travels together with a commit, and this is what frees memory. Everything here may be done twice."""

    def __init__(self, link: Link, keys: Keys, reader: Reader, judge: Judge) -> None:
        self._link = link
        self._keys = keys
        self._reader = reader
        self._judge = judge

    async def sweep(self, retention: Retention, now: int, every: int) -> int:
        """Returns how many tasks were deleted; 0 as well when another process is at it, or began to in the last `every`
        milliseconds."""
        lock = self._link.client.lock(self._keys.sweeper, timeout=LOCK_SECONDS, blocking=False)
        if not await self._acquire(lock):
            return 0
        try:
            if not await self._begin(now, every):
                return 0
            deleted = 0
            for state, before in retention.moments(now).items():
                deleted += await self._forget_ended(lock, self._keys.ended(state), before)
            if retention.ended_at_most is not None:
                deleted += await self._forget_excess(lock, retention.ended_at_most)
            if (untouched_since := retention.contexts_before(now)) is not None:
                await self._forget_contexts(untouched_since)
            if retention.events_per_task is not None:
                await self._trim_all(lock, retention.events_per_task)
            return deleted
        finally:
            with suppress(StorageError):  # it expired, or was never there
                await self._link.guard(lambda: lock.release())

    async def _begin(self, now: int, every: int) -> bool:
        """Notes that retention is applied now, unless it was just before; whoever asks holds the lock."""
        before = await self._link.do("get", self._keys.swept)
        if before is not None and abs(now - int(before)) < every:
            return False  # from far in the future it is a wrong clock's, and not believed
        with suppress(StorageError):  # a server whose memory is full keeps no note, and is swept all the same
            await self._link.do("set", self._keys.swept, now)
        return True

    async def _acquire(self, lock: Lock) -> bool:
        try:
            acquired: bool = await self._link.guard(lambda: lock.acquire())
            return acquired
        except StorageError as error:
            # Not even the lock fits in: all the more reason to sweep. Two who do so at once only do it twice.
            if isinstance(error.__cause__, redis_errors.OutOfMemoryError):
                return True
            raise

    async def _hold(self, lock: Lock) -> None:
        with suppress(StorageError):
            await self._link.guard(lambda: lock.reacquire())

    async def _forget_ended(self, lock: Lock, ended: str, before: int) -> int:
        deleted = 0
        while ids := await self._link.do("zrangebyscore", ended, "-inf", before, start=0, num=SWEEP_TASKS):
            deleted += await self._forget([(ended, name.decode()) for name in ids])
            await self._hold(lock)
        return deleted

    async def _forget_excess(self, lock: Lock, at_most: int) -> int:
        deleted = 0
        while (excess := await self._count_ended() - at_most) > 0:
            deleted += await self._forget(await self._longest_ended(min(excess, SWEEP_TASKS)))
            await self._hold(lock)
        return deleted

    @property
    def _all_ended(self) -> list[str]:
        """The sets of ended tasks, of every state."""
        return [self._keys.ended(state) for state in sorted(TERMINAL_STATES)]

    async def _count_ended(self) -> int:
        return sum([await self._link.do("zcard", ended) for ended in self._all_ended])

    async def _longest_ended(self, limit: int) -> list[tuple[str, str]]:
        """The ended tasks that have not changed for the longest time, each with the set it is in."""
        found: list[tuple[float, str, str]] = []
        for ended in self._all_ended:
            oldest = await self._link.do("zrange", ended, 0, limit - 1, withscores=True)
            found += [(score, name.decode(), ended) for name, score in oldest]
        return [(ended, task_id) for _, task_id, ended in sorted(found)[:limit]]

    async def _forget(self, listed: list[tuple[str, str]]) -> int:
        """Deletes these tasks; what is no ended task is taken out of the set it was in."""
        stands = await self._link.ask(Stands(ids=[task_id for _, task_id in listed]))
        jobs: list[Job] = []
        for (ended, task_id), fields in zip(listed, stands, strict=True):
            stand = read_stand(fields)
            if stand.record is None or stand.record.head.state not in TERMINAL_STATES | {UNSPECIFIED}:
                jobs.append(Run(commands=[["ZREM", ended, task_id]]))
                continue
            commands = self._judge.forget(task_id, stand.record)
            jobs.append(Forget(id=task_id, expected=stand.fields, commands=commands))
        answers = await self._link.ask_all(jobs)
        return sum(
            isinstance(job, Forget) and answer[0] == b"written" for job, answer in zip(jobs, answers, strict=True)
        )

    async def _forget_contexts(self, before: int) -> None:
        found, skip = 1, 0
        while found:
            job = ForgetContexts(before=str(before), skip=skip, limit=SWEEP_TASKS, live=_LIVE)
            found, left = map(int, await self._link.ask(job))
            skip += left

    async def _trim_all(self, lock: Lock, keep: int) -> None:
        # A tenth over the bound before trimming, so that a growing log is cut rarely.
        bound = keep + keep // 10
        names = await self._link.do("zrangebyscore", self._keys.long, f"({bound}", "+inf")
        for name in names:
            await self._trim(name.decode(), keep)
            await self._hold(lock)

    async def _trim(self, task_id: str, keep: int) -> None:
        """Brings the snapshot up to date and cuts the log, piece by piece.

        One that changes before the first piece is off is left to the next sweep.
        """
        (fields,) = await self._link.ask(Stands(ids=[task_id]))
        stand = read_stand(fields)
        (stored,) = await self._reader.load_all([task_id])
        if stand.record is None or stored is None or stored.version != stand.record.head.version or stored.damage:
            return
        snapshot: bytes | None = encode(stored.task)
        # What comes meanwhile is not in the snapshot, and left to the next sweep.
        goal = stored.version - keep
        trimmed = stand.record.trimmed
        while trimmed < goal:
            upto = min(goal, trimmed + SWEEP_EVENTS)
            job, after = self._judge.trim(task_id, stand, upto, snapshot)
            word, *fields = await self._link.ask(job)
            if word == b"written":
                stand, snapshot = after, None
            elif snapshot is None:
                stand = read_stand(fields)
            else:
                return
            trimmed = goal if stand.record is None else stand.record.trimmed
