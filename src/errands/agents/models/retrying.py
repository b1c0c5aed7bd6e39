"""When a model is asked again, and how long is waited before."""

from __future__ import annotations

import asyncio
import email.utils
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from errands.agents.models.base import ModelError
from errands.clock import Clock, system_clock

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: No single wait is longer: a provider that asks for more is not waited for.
LONGEST_WAIT = 60.0


class FailedTry(Exception):
    """One try has failed; the message is for the operator and has no secret in it."""

    #: The answer had begun.
    broke_off = False

    def __init__(
        self, message: str, *, told: str = "", is_passing: bool = False, retry_after: str | None = None
    ) -> None:
        super().__init__(message)
        #: What the caller of the agent can do something with.
        self.told = told
        #: Whether it may pass by itself.
        self.is_passing = is_passing
        #: As in the header: seconds, or a date.
        self.retry_after = retry_after


@dataclass
class Patience:
    """Exponential backoff with full jitter, and what the provider asks for on top."""

    tries: int = 4
    delay: float = 0.5
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    uniform: Callable[[float, float], float] = random.uniform
    clock: Clock = field(default=system_clock)

    async def run(self, attempt: Callable[[], Awaitable[T]], may_repeat: Callable[[], bool]) -> T:
        """The result of `attempt`. Raises `ModelError` for a failure that is final, or one too many."""
        failures = 0
        while True:
            try:
                return await attempt()
            except FailedTry as failure:
                failures += 1
                asked = self._seconds(failure.retry_after)
                if not failure.is_passing or not may_repeat():
                    raise _final(failure) from None
                if failures >= self.tries:
                    raise _final(failure, f" (tried {failures} times)") from None
                if asked > LONGEST_WAIT:
                    raise _final(failure, f" (it asks to wait {asked:.0f} s)") from None
                wait = asked + self.uniform(0, min(LONGEST_WAIT, self.delay * 2 ** (failures - 1)))
                logger.info("%s; asking again in %.1f s", failure, wait)
                await self.sleep(wait)

    def _seconds(self, retry_after: str | None) -> float:
        if retry_after is None:
            return 0.0
        try:
            return max(0.0, float(retry_after))
        except ValueError:
            pass
        try:
            moment = email.utils.parsedate_to_datetime(retry_after)
        except ValueError:
            return 0.0
        return max(0.0, moment.timestamp() - self.clock() / 1000)


def _final(failure: FailedTry, more: str = "") -> ModelError:
    told = {"told": failure.told} if failure.told else {}
    return ModelError(f"{failure}{more}", broke_off=failure.broke_off, **told)
