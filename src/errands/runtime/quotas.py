"""What one caller may use: requests per second, open streams, tasks that have not ended, and bytes in the store.

Requests and streams are counted in this process. Tasks and bytes are counted by the store for all processes. The store
is asked at intervals, and nothing is written for this.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import TypeVar

import msgspec

from errands.clock import Clock
from errands.engines.base import Engine
from errands.errors import (
    QuotaError,
    StorageError,
    TooManyBytesError,
    TooManyRequestsError,
    TooManyStreamsError,
    TooManyTasksError,
)
from errands.model.log import Change, Reach, Scope
from errands.runtime.blobs import Blobs
from errands.runtime.settings import Settings

logger = logging.getLogger(__name__)

#: The authenticated tenant and owner, or the address of a caller without a name.
CallerKey = tuple[str, str] | str

#: The number of callers that are remembered, the latest ones. A forgotten caller starts with nothing used.
MAX_CALLERS = 10_000
#: Seconds between two warnings about the same setting.
_WARN_EVERY = 60.0
#: For how long the store's answer is used: in seconds, and as a multiple of the time that the answer took.
_TASKS_FRESH, _TASKS_REST = 1, 20
_BYTES_FRESH, _BYTES_REST = 60, 100

K = TypeVar("K")
V = TypeVar("V")


def remember(known: dict[K, V], key: K, value: V) -> None:
    """Put a value at the end of a dictionary, and drop the first one if there are too many."""
    known.pop(key, None)
    known[key] = value
    if len(known) > MAX_CALLERS:
        del known[next(iter(known))]


class Refusals:
    """Logs that a setting has callers refused, at most once a minute."""

    def __init__(self, setting: str) -> None:
        self._setting = setting
        self._warned_at = -math.inf

    def note(self, caller: object) -> None:
        """Log the refusal of this caller."""
        now = time.monotonic()
        if now - self._warned_at >= _WARN_EVERY:
            self._warned_at = now
            logger.warning("requests of caller %r are refused: the limit of %s is reached", caller, self._setting)


class RequestRate:
    """A token bucket for each caller, kept as the time at which the bucket will be full again."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._interval = 1 / rate
        self._burst = burst
        self._full_at: dict[CallerKey, float] = {}
        self._refusals = Refusals("caller_rate")

    def check(self, caller: CallerKey) -> float:
        """Return when the bucket of the caller will be full. Raise `TooManyRequestsError` if it is empty."""
        full_at, wait = self._look(caller)
        if wait > 1e-9:
            self._refusals.note(caller)
            raise TooManyRequestsError(
                f"This caller may send {1 / self._interval:g} requests per second, and {self._burst} at once",
                retry_after=math.ceil(wait),
            )
        return full_at

    def _look(self, caller: CallerKey) -> tuple[float, float]:
        """Return when the bucket of the caller will be full, and in how many seconds it is no longer empty."""
        now = self._clock()
        full_at = max(self._full_at.get(caller, now), now)
        return full_at, full_at - now - (self._burst - 1) * self._interval

    def admits(self, caller: CallerKey) -> bool:
        """Count a request unless the bucket of the caller is empty; return whether it was counted."""
        full_at, wait = self._look(caller)
        if wait > 1e-9:
            return False
        remember(self._full_at, caller, full_at + self._interval)
        return True

    def take(self, caller: CallerKey, weight: int = 1) -> None:
        """Count a request as `weight` of them. Raise `TooManyRequestsError` if the bucket of the caller is empty.

        A request of any weight is admitted unless the bucket is empty; the bucket may go below zero.
        """
        remember(self._full_at, caller, self.check(caller) + weight * self._interval)


class OpenStreams:
    """Counts the open streams of each caller."""

    def __init__(self, most: int, setting: str = "caller_max_streams") -> None:
        self._most = most
        self._open: dict[CallerKey, int] = {}
        self._refusals = Refusals(setting)

    def open(self, caller: CallerKey) -> Callable[[], None]:
        """Count a stream, and return what to call when it is closed. Raise `TooManyStreamsError`."""
        count = self._open.get(caller, 0)
        if count >= self._most:
            self._refusals.note(caller)
            raise TooManyStreamsError(f"This caller has {count} streams open, and may have no more; close some")
        self._open[caller] = count + 1
        is_open = True

        def close() -> None:
            nonlocal is_open
            if is_open:
                is_open = False
                self._open[caller] -= 1
                if not self._open[caller]:
                    del self._open[caller]

        return close


class _Usage(msgspec.Struct):
    """The usage of a scope, or of a reach: the store's last answer, and what this process has added since."""

    used: int = 0
    #: The amount that is being added; the store may or may not count it already.
    under_way: int = 0
    #: Whether the request that asked did not fit, by the store's last answer.
    is_full: bool = False
    #: When the answer is too old, in milliseconds.
    fresh_until: float = -math.inf
    #: One request asks at a time.
    asking: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)


class StoreQuota:
    """A bound on what the tasks of a scope use in the store.

    The store is asked again when its last answer is `fresh` seconds old, or `rest` times as old as the answer took.
    With `waits`, a request waits for the answer, and the store is also asked when the bound would be exceeded by what
    was added here since, because the usage may have gone down. Otherwise the answer counts for later requests.
    """

    def __init__(
        self,
        ask: Callable[[Scope, Reach], Awaitable[int]],
        most: int,
        clock: Clock,
        *,
        fresh: float,
        rest: float,
        waits: bool,
        refusal: Callable[[int], QuotaError],
        setting: str,
    ) -> None:
        self._ask = ask
        self._most = most
        self._clock = clock
        self._fresh, self._rest = fresh * 1000, rest * 1000
        self._waits = waits
        self._refusal = refusal
        self._refusals = Refusals(setting)
        self._usages: dict[tuple[Scope, Reach], _Usage] = {}
        self._background: set[asyncio.Task[None]] = set()

    async def take(self, scope: Scope, reach: Reach, amount: int) -> Callable[[], None]:
        """Count an amount that is about to be added, and return a function to call when it is stored or has failed.

        Raise a `QuotaError` if there is no room for it.
        """
        usage = self._usages.get((scope, reach)) or _Usage()
        remember(self._usages, (scope, reach), usage)
        if self._must_ask(usage, amount):
            if self._waits:
                await self._refresh(scope, reach, usage, amount)
            elif not usage.asking.locked():
                asking = asyncio.create_task(self._refresh(scope, reach, usage, amount))
                self._background.add(asking)
                asking.add_done_callback(self._background.discard)
        if usage.used + amount > self._most:
            self._refusals.note(scope[:2])
            raise self._refusal(usage.used)
        usage.used += amount
        usage.under_way += amount

        def done() -> None:
            usage.under_way -= amount

        return done

    def _must_ask(self, usage: _Usage, amount: int) -> bool:
        if self._clock() >= usage.fresh_until:
            return True
        return self._waits and not usage.is_full and usage.used + amount > self._most

    async def _refresh(self, scope: Scope, reach: Reach, usage: _Usage, amount: int) -> None:
        async with usage.asking:
            if not self._must_ask(usage, amount):
                return
            began, before = time.monotonic(), usage.used - usage.under_way
            try:
                answer = await self._ask(scope, reach)
            except StorageError as error:
                logger.warning("the store did not say what %r uses, so its last answer is used: %s", scope[:2], error)
            else:
                # The answer may or may not contain what was added meanwhile.
                usage.used += answer - before
            usage.is_full = usage.used + amount > self._most
            usage.fresh_until = self._clock() + max(self._fresh, self._rest * (time.monotonic() - began))


class StoreQuotas:
    """The quotas for what a message adds to the store."""

    def __init__(self, engine: Engine, settings: Settings, blobs: Blobs | None = None) -> None:
        self._tasks = self._bytes = None
        #: The scopes without a tenant whose owners have named tenants.
        self._named: dict[Scope, None] = {}

        async def stored_bytes(scope: Scope, reach: Reach) -> int:
            files = 0 if blobs is None else await blobs.stored_bytes(engine, scope, reach)
            return files + await engine.stored_bytes(scope, reach)

        if (tasks := settings.caller_max_tasks) is not None:
            self._tasks = StoreQuota(
                engine.count_live,
                tasks,
                engine.clock,
                fresh=_TASKS_FRESH,
                rest=_TASKS_REST,
                waits=True,
                refusal=lambda used: TooManyTasksError(
                    f"This caller has {used} tasks that have not ended, and may have {tasks}; wait until some have "
                    "ended, or cancel them",
                ),
                setting="caller_max_tasks",
            )
        if (size := settings.caller_max_bytes) is not None:
            self._bytes = StoreQuota(
                stored_bytes,
                size,
                engine.clock,
                fresh=_BYTES_FRESH,
                rest=_BYTES_REST,
                waits=False,
                refusal=lambda used: TooManyBytesError(
                    f"The tasks of this caller take {used} bytes in the store, and may take {size}; nothing more is "
                    "accepted until old tasks are deleted",
                    retry_after=_BYTES_FRESH,
                ),
                setting="caller_max_bytes",
            )

    async def take(
        self, change: Change, *, is_new: bool, names_tenant: bool = False, files: int = 0
    ) -> Callable[[], None]:
        """Count a message that is about to be committed, or the bytes of its files that are about to be stored.

        A caller who only names a tenant could name another one each time, so its tasks in all tenants are counted, from
        then on also for its requests without a tenant. Return a function to call then. Raise a `QuotaError`.
        """
        scope = change.scope
        if names_tenant:
            scope = scope._replace(tenant="")
            remember(self._named, scope, None)
        reach: Reach = "owner" if scope in self._named else "scope"
        with ExitStack() as taken:
            if self._tasks is not None and is_new:
                taken.callback(await self._tasks.take(scope, reach, 1))
            if self._bytes is not None:
                size = files + sum([len(draft.data) for draft in change.events])
                taken.callback(await self._bytes.take(scope, reach, size))
            return taken.pop_all().close


def store_quotas(engine: Engine, settings: Settings, blobs: Blobs | None = None) -> StoreQuotas | None:
    """Return the quotas that are set, or None if none is."""
    if settings.caller_max_tasks is None and settings.caller_max_bytes is None:
        return None
    return StoreQuotas(engine, settings, blobs)
