"""Deleting what is old, step by step, by one process at a time.

The requests go to the server directly and not through the store: a server whose memory is full refuses whatever travels
together with a commit, and this is what frees memory. Everything here may be done twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

from redis import exceptions as redis_errors
from redis.asyncio.lock import Lock

from errands.engines.redis.queries import RedisQueries
from errands.engines.redis.schema import Request, read_known, request
from errands.engines.redis.store import CommandBuilder
from errands.engines.retention import apply_retention
from errands.errors import StorageError
from errands.model.base import encode
from errands.model.core import TERMINAL_STATES, UNSPECIFIED, TaskState

#: What one step removes at most: other writes wait that long.
SWEEP_TASKS = 100
SWEEP_EVENTS = 1000
#: The live states, as listings are named after them.
_LIVE = [state.short for state in TaskState if state not in TERMINAL_STATES]
#: Seconds after which a process that died while it swept no longer keeps the others from it.
LOCK_SECONDS = 60.0


class RedisSweep:
    """The steps of `errands.engines.retention.Sweep`, under a lock."""

    def __init__(self, engine: RedisQueries, commands: CommandBuilder) -> None:
        self._engine = engine
        self._server = engine.server
        self._keys = engine.keys
        self._commands = commands
        self._lock: Lock = self._server.client.lock(self._keys("sweeper"), timeout=LOCK_SECONDS, blocking=False)
        #: How many old contexts are passed over, because their conversations have live tasks.
        self._left_contexts = 0

    async def run(self, now: int, every: int) -> int:
        """Return how many tasks were deleted; 0 as well when another process applies the policy, or has begun to in the
        last `every` milliseconds."""
        try:
            if not await self._server.guard(lambda: self._lock.acquire()):
                return 0
        except StorageError as error:
            # Memory is too full even for the lock, so sweeping is needed. Two processes may sweep at the same time.
            if not isinstance(error.__cause__, redis_errors.OutOfMemoryError):
                raise
        try:
            before = await self._server.do("get", self._keys("swept"))
            if before is not None and abs(now - int(before)) < every:
                return 0  # a time far in the future is a wrong clock's, and does not count
            with suppress(StorageError):  # a server whose memory is full keeps no note, and is swept anyway
                await self._server.do("set", self._keys("swept"), now)
            return await apply_retention(self, self._engine.retention, now)
        finally:
            with suppress(StorageError):  # it expired, or was never there
                await self._server.guard(lambda: self._lock.release())

    async def _hold(self) -> None:
        with suppress(StorageError):
            await self._server.guard(lambda: self._lock.reacquire())

    async def delete_ended(self, state: TaskState, before: int) -> int:
        ended = self._keys("ended", state.short)
        while names := await self._server.do("zrangebyscore", ended, "-inf", before, start=0, num=SWEEP_TASKS):
            if deleted := await self._delete_all([(ended, name.decode()) for name in names]):
                return deleted
        return 0

    async def delete_excess(self, at_most: int) -> int:
        all_ended = [self._keys("ended", state.short) for state in sorted(TERMINAL_STATES)]
        while (excess := sum([await self._server.do("zcard", ended) for ended in all_ended]) - at_most) > 0:
            limit = min(excess, SWEEP_TASKS)
            found: list[tuple[float, str, str]] = []
            for ended in all_ended:
                oldest = await self._server.do("zrange", ended, 0, limit - 1, withscores=True)
                found += [(score, name.decode(), ended) for name, score in oldest]
            if deleted := await self._delete_all([(ended, task_id) for _, task_id, ended in sorted(found)[:limit]]):
                return deleted
        return 0

    async def _delete_all(self, listed: list[tuple[str, str]]) -> int:
        """Delete these tasks, each given with the set that it is in. One that has not ended is only removed from it."""
        requests: list[Request] = []
        fields = await self._server.ask("look", ids=[task_id for _, task_id in listed])
        for (ended, task_id), known in zip(listed, map(read_known, fields), strict=True):
            if known.task is None or known.task.head.state not in TERMINAL_STATES | {UNSPECIFIED}:
                requests.append(request("run", commands=[["ZREM", ended, task_id]]))
            else:
                requests.append(self._commands.delete(task_id, known))
        answers = await self._server.ask_all(requests)
        await self._hold()
        return sum(
            each["request"] == "delete" and answer[0] == b"written"
            for each, answer in zip(requests, answers, strict=True)
        )

    async def clear_remains(self) -> int:
        return 0

    async def delete_receipts(self, now: int) -> int:
        return 0  # they expire

    async def delete_contexts(self, before: int) -> int:
        answer = await self._server.ask(
            "delete_contexts", before=str(before), skip=self._left_contexts, limit=SWEEP_TASKS, live=_LIVE
        )
        found, left = map(int, answer)
        self._left_contexts += left
        return found

    async def overgrown(self, events: int) -> AsyncIterator[str]:
        for name in await self._server.do("zrangebyscore", self._keys("long"), f"({events}", "+inf"):
            yield name.decode()
            await self._hold()

    async def trim(self, task_id: str, keep: int) -> int:
        """Bring the snapshot up to date and trim the whole log, piece by piece.

        A task that changes before the first piece is removed is left to the next sweep.
        """
        (fields,) = await self._server.ask("look", ids=[task_id])
        known = read_known(fields)
        (stored,) = await self._engine.load_all([task_id])
        if known.task is None or stored is None or stored.version != known.task.head.version or stored.damage:
            return 0
        snapshot: bytes | None = encode(stored.task)
        # What comes in between is not in the snapshot, and left to the next sweep.
        goal = stored.version - keep
        trimmed = known.task.trimmed
        while trimmed < goal:
            upto = min(goal, trimmed + SWEEP_EVENTS)
            after, trim = self._commands.trim(task_id, known, upto, snapshot)
            ((word, *fields),) = await self._server.ask_all([trim])
            if word == b"written":
                known, snapshot = after, None
            elif snapshot is None:
                known = read_known(fields)
            else:
                return 0
            trimmed = goal if known.task is None else known.task.trimmed
        return 0
