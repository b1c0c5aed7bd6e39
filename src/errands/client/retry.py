"""When to try again, and how long to wait before."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import httpx

from errands.client.transport import TransientError
from errands.errors import A2AError

T = TypeVar("T")

#: Connections that could not be made or broke. A timeout of the answer is not among them: it has cost enough.
RETRY_ON: tuple[type[Exception], ...] = (
    httpx.NetworkError,
    httpx.ProxyError,
    httpx.RemoteProtocolError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
)
#: How many times more failures in a row a stream bears than a call: with the defaults, half a minute of them.
STREAM_PATIENCE = 3
#: No single wait is longer; an agent that asks for more gets its answer passed on to the caller.
LONGEST_WAIT = 60.0


@dataclass
class RetryPolicy:
    """Exponential backoff with full jitter: many clients cut off together do not come back together."""

    max_retries: int = 3
    delay: float = 0.2
    #: Which broken connections are worth another try.
    retry_on: tuple[type[Exception], ...] = RETRY_ON
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    uniform: Callable[[float, float], float] = random.uniform

    async def run(self, attempt: Callable[[], Awaitable[T]], *, idempotent: bool) -> T:
        """The result of `attempt`, tried again as often as is allowed and safe, or its last `TransientError`."""
        failures = 0
        while True:
            try:
                return await attempt()
            except TransientError as failure:
                failures += 1
                if not self._may_repeat(failure, idempotent) or self.is_spent(failures, failure):
                    raise
                await self.pause(failures, failure)

    def _may_repeat(self, failure: TransientError, idempotent: bool) -> bool:
        if failure.reached and not idempotent:
            return False
        return isinstance(failure.cause, (A2AError, *self.retry_on))

    def is_spent(self, failures: int, failure: TransientError | None, *, streaming: bool = False) -> bool:
        """Whether that was one failure too many, or the agent wants more patience than we have.

        A stream has more patience than a call: what it would lose is its place, and a redeploy takes a while.
        """
        asked = failure.retry_after if failure is not None else None
        most = self.max_retries * STREAM_PATIENCE if streaming else self.max_retries
        return failures > most or (asked is not None and asked > LONGEST_WAIT)

    async def pause(self, failures: int, failure: TransientError | None) -> None:
        """Waits before the next try; `failures` counts those in a row."""
        wait = self.uniform(0, min(LONGEST_WAIT, self.delay * 2 ** min(failures - 1, 30)))
        if failure is not None and failure.retry_after is not None:
            wait += failure.retry_after
        await self.sleep(wait)
