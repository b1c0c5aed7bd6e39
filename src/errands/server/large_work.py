"""Bounds the memory of large requests and answers, and keeps the event loop free for small ones.

Reading, decoding or encoding 20 MB blocks Python for tens of milliseconds, in any thread. So such work is done one
piece after another, and after each there is a rest that is a multiple of its time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from errands.errors import OverloadedError

#: Request bodies of more bytes are decoded one at a time.
LARGE_BODY = 64 * 1024
#: Large requests that may wait at the same time.
MOST_WAITING = 1000
#: The time of the rest after a piece of work, as a multiple of the time of the work.
REST = 3.0
#: Seconds of rest that may be due before other work waits for it, so that a single, barely large request never waits.
_SLACK = 0.02
#: Seconds between checks whether the event loop is idle, which ends a rest.
_LOOK = 0.005
#: The share of this time for which an idle loop may have worked.
_IDLE = 0.2

_TOO_MANY = "Too many large requests and answers at the same time; send it again in a moment"


class Holder(Protocol):
    """A connection that can be closed to free what is held for it."""

    @property
    def unread(self) -> int:
        """The bytes that the client has to read before the application may continue; 0 if it may."""

    def give_up(self) -> None:
        """Disconnect the client."""


class Budget:
    """The bytes that a process holds for its clients: requests that are not handled yet and unread responses.

    Only connections with more than `SMALL` bytes count. Above `most` bytes, connections are closed until an eighth is
    free again, starting with those that have been idle for longest.
    """

    #: The bytes from which an application has to wait for its client, too.
    SMALL = 64 * 1024

    def __init__(self, most: int) -> None:
        self.most = most
        self.total = 0
        #: The bytes of each connection, and when its client last sent or read some.
        self._held: dict[Holder, tuple[int, float]] = {}

    def hold(self, connection: Holder, size: int, now: float) -> None:
        """Note that `connection` holds `size` bytes and that its client has just sent or read some."""
        if size <= self.SMALL:
            return
        self.total += size - self._held.get(connection, (0, 0))[0]
        self._held[connection] = size, now
        if self.total > self.most:
            self._make_room(connection, now)

    def release(self, connection: Holder) -> None:
        """Note that `connection` no longer holds anything."""
        if connection in self._held:
            self.total -= self._held.pop(connection)[0]

    def reserve(self, size: int, before: int = 0) -> None:
        """Count `size` bytes, in place of `before`, until they are given back. Raises `OverloadedError` for too many.

        Any number of bytes may be reserved while nothing else is held.
        """
        self.total += size - before
        if self.total > self.most and size > before:
            self._make_room(None, time.monotonic())
            if self.most < self.total > size:
                self.total -= size - before
                raise OverloadedError(f"{_TOO_MANY} (max_buffered_bytes)", retry_after=1)

    def give_back(self, size: int) -> None:
        """End a reservation."""
        self.total -= size

    def _make_room(self, newest: Holder | None, now: float) -> None:
        for connection, (size, _) in list(self._held.items()):
            unread = connection.unread
            if unread and unread < size:  # its client reads, however slowly
                self.total -= size - unread
                self._held[connection] = unread, now
        for connection in sorted(self._held, key=lambda each: self._held[each][1]):
            if self.total > self.most * 7 // 8 and connection is not newest:
                self.release(connection)
                connection.give_up()


class Pace:
    """Gives those that ask for it a moment each, one `interval` apart and in the next `most` seconds."""

    def __init__(self, interval: float, most: float) -> None:
        self._interval = interval
        self._most = most
        #: The last moment that was given, and the last one that was used.
        self._given = self._used = 0.0

    def next(self, now: float) -> float | None:
        """Return the next moment; None if too many have one."""
        moment = max(self._given, now) + self._interval
        if moment > now + self._most:
            return None
        self._given = moment
        return moment

    def use(self, now: float) -> bool:
        """Return whether the moment may be used. When the event loop is late, many moments are over at once."""
        if now - self._used < self._interval / 2:
            return False
        self._used = now
        return True


class LargeWork:
    """Lets the large requests and answers of a process be processed one at a time, in the order of their arrival."""

    def __init__(self, most_bytes: int) -> None:
        self.budget = Budget(most_bytes)
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._rest_until = 0.0

    @asynccontextmanager
    async def one_at_a_time(self, size: int, *, is_held: bool = False) -> AsyncIterator[None]:
        """Wait until no other large work is done, then work on `size` bytes in the block.

        `is_held` says that they are in memory while the caller waits. What the caller does after the block until it
        next waits for something, such as encoding what was read, counts as part of the block. Raises `OverloadedError`.
        """
        if is_held:
            self.budget.reserve(size)
        try:
            await self._enter()
        except BaseException:
            if is_held:
                self.budget.give_back(size)
            raise
        began = time.monotonic()
        try:
            if not is_held:
                self.budget.reserve(size)
        except OverloadedError:
            self._lock.release()
            raise

        def leave() -> None:
            now = time.monotonic()
            self._rest_until = max(self._rest_until, now) + REST * (now - began)
            self.budget.give_back(size)
            self._lock.release()

        try:
            yield
        finally:
            asyncio.get_running_loop().call_soon(leave)

    async def _enter(self) -> None:
        if self._waiting >= MOST_WAITING:
            raise OverloadedError(_TOO_MANY, retry_after=1)
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1
        try:
            await self._rest()
        except BaseException:
            self._lock.release()
            raise

    async def _rest(self) -> None:
        left = self._rest_until - time.monotonic()
        while left > _SLACK:
            worked = time.thread_time()
            await asyncio.sleep(min(left, _LOOK))
            if time.thread_time() - worked < _IDLE * _LOOK:
                self._rest_until = 0.0  # the rest is not continued when the loop is busy again
                return
            left = self._rest_until - time.monotonic()
