"""Whether the queue is so far behind that new tasks are refused: better an honest "later" than a wait without end.

Only tasks that would have to wait are judged. One that this process can take up at once never asks the store.
"""

from __future__ import annotations

import logging
import math
from contextlib import suppress

from errands.engines.base import Engine
from errands.errors import ConcurrencyError, OverloadedError
from errands.model.log import Change

logger = logging.getLogger(__name__)

#: Milliseconds for which what the store said is believed.
_FRESH = 1000
#: Seconds after which a refused client is to come back: the further behind the later, up to this.
_LONGEST_WAIT = 30


class Pressure:
    """How long the tasks of an agent wait to be taken up."""

    def __init__(self, engine: Engine, agent: str, max_age: float | None) -> None:
        self._engine = engine
        self._agent = agent
        self._max_age = max_age
        self._asked_at = -math.inf
        #: Seconds.
        self._age = 0.0
        self._was_behind = False

    async def admit(self, change: Change) -> None:
        """For the change that makes a new task which has to wait: raises `OverloadedError` when it must not.

        A message that was accepted before finds its task, whatever the queue: then it is `DuplicateMessageError`.
        """
        if self._max_age is None:
            return
        is_behind = await self._queue_age() > self._max_age
        self._log(is_behind)
        if not is_behind:
            return
        # A receipt is looked at before all else, and a task that does not exist is not at version 1.
        known = Change(
            task_id=change.task_id,
            scope=change.scope,
            expected=1,
            receipt=change.receipt,
            receipt_since=change.receipt_since,
            at=change.at,
        )
        with suppress(ConcurrencyError):
            await self._engine.commit(known)
        raise OverloadedError(
            f"Tasks of this agent have waited for {self._age:.0f} s to be taken up, so no new one is accepted now; "
            "send the message again later",
            retry_after=min(max(math.ceil(self._age - self._max_age), 1), _LONGEST_WAIT),
        )

    def _log(self, is_behind: bool) -> None:
        """Says once that it begins, however many are refused."""
        if is_behind and not self._was_behind:
            logger.warning(
                "tasks of %s have waited for %.0f s, longer than max_queue_age allows: new ones are refused. "
                "Start more workers, or see why those that run take none",
                self._agent,
                self._age,
            )
        self._was_behind = is_behind

    async def _queue_age(self) -> float:
        now = self._engine.clock()
        if abs(now - self._asked_at) >= _FRESH:  # a clock may be put right
            # Noted before the answer is there: whoever comes meanwhile does not ask again.
            self._asked_at = now
            self._age = (await self._engine.queue_age([self._agent]) or 0) / 1000
        return self._age
