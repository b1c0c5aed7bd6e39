"""Reaching a store: hide its password, check that it answers, and compare its clock with ours."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

from errands.clock import Clock, system_clock
from errands.errors import StorageError

logger = logging.getLogger(__name__)

#: Up to the last `@`, so that a password that should have been percent-encoded is hidden, too.
_PASSWORD = re.compile(r"(//[^/:@]*):.*@")
#: In a URL without its two slashes everything before the `@` may be the password.
_PASSWORD_WITHOUT_SLASHES = re.compile(r"^((?:[a-z+]*:/*)?).*@", re.IGNORECASE)
_PASSWORD_OPTION = re.compile(r"([?&]password=)[^&]*", re.IGNORECASE)


def without_password(url: str) -> str:
    """Return a storage URL as people may see it: with stars in place of its password."""
    if "//" not in url:
        return _PASSWORD_WITHOUT_SLASHES.sub(r"\1***@", url)
    return _PASSWORD_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1:***@", url))


#: Seconds after which a store that has not answered is not ready.
PROBE_TIMEOUT = 1.0
#: Seconds for which a successful write counts: clients may ask for readiness as often as they like.
_WRITE_EVERY = 0.2

Question = Callable[[], Awaitable[Any]]


class StoreProbe:
    """Checks that a store answers and takes writes: what readiness asks.

    `look` reads from the store. `write` writes something that leaves no trace, because a store that is full or
    read-only can still be read. One check runs at a time, however many callers there are, so that a store that does not
    answer takes up one connection only.
    """

    def __init__(self, name: str, look: Question, write: Question) -> None:
        self._name = name
        self._look = look
        self._write = write
        self._written_at = float("-inf")
        self._asking: asyncio.Task[Any] | None = None

    async def __call__(self) -> None:
        """Raises the `StorageError` of the check, or one that says that there was no answer in time."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="errands-probe")
            self._asking.add_done_callback(lambda task: task.cancelled() or task.exception())
        # The check is not canceled: that would mean closing the connection that it uses.
        done, _ = await asyncio.wait({self._asking}, timeout=PROBE_TIMEOUT)
        if not done:
            raise StorageError(f"{self._name} does not answer. Check its load and the network")
        done.pop().result()

    async def _ask(self) -> None:
        await self._look()
        loop = asyncio.get_running_loop()
        if loop.time() - self._written_at >= _WRITE_EVERY:
            await self._write()
            self._written_at = loop.time()

    async def stop(self) -> None:
        """End a check that is still running. Call it when that cannot break a connection in use."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking})


#: Milliseconds by which clocks may differ: what NTP gives, with room to spare.
TOLERATED = 1000


class StoreClock:
    """The clock of this machine, corrected when it differs from the store's.

    Replicas compare leases by their own clocks. A machine whose clock is wrong by more than a lease would take tasks
    from workers that still run them, again and again, until the tasks have used up all their tries.
    """

    def __init__(self, own: Clock = system_clock) -> None:
        self.own = own
        self._correction = 0

    def __call__(self) -> int:
        return self.own() + self._correction

    def compare(self, asked: int, theirs: int, answered: int, store: str) -> None:
        """Corrects this clock by `theirs`, the store's time, read between the own times `asked` and `answered`."""
        if answered < asked:
            return  # the own clock was set back in between
        difference = theirs - (asked + answered) // 2
        if abs(difference - self._correction) <= TOLERATED + (answered - asked) // 2:
            return
        self._correction = difference if abs(difference) > TOLERATED else 0
        if self._correction:
            logger.warning(
                "the clock of this machine is %.1f s %s that of %s; using the store's time. Synchronise it (NTP)",
                abs(difference) / 1000,
                "behind" if difference > 0 else "ahead of",
                store,
            )
        else:
            logger.info("the clock of this machine agrees with that of %s again", store)


def store_clock(clock: Clock) -> Clock:
    """Return the machine's clock with corrections by the store's; a clock that was passed in is left as it is."""
    return StoreClock() if clock is system_clock else clock
