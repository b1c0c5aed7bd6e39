"""Which paused tasks have waited too long, and in which words they end."""

from __future__ import annotations

import msgspec

from errands.clock import to_iso
from errands.model.core import CANCELED, FAILED, PAUSED_STATES, Message, Part, Role, TaskState
from errands.model.log import StoredTask
from errands.policy.limits import AgeLimit
from errands.policy.records import AnyRecord, Decided, Ended
from errands.runtime.journal import new_id

_UNITS = (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))


class Expired(msgspec.Struct, frozen=True):
    """How a task ends that nobody has answered in time."""

    state: TaskState
    message: Message
    records: tuple[AnyRecord, ...] = ()


class Expiry:
    """The bounds on the paused tasks of one agent: how long they wait, and how old they grow."""

    def __init__(self, paused_timeout: float | None, age_limit: AgeLimit | None) -> None:
        self._paused_timeout = paused_timeout
        self._age_limit = age_limit

    def moments(self, now: int) -> tuple[int, int]:
        """Return when tasks must have paused, and been created, to be too late; -1 without a bound."""
        waited = -1 if self._paused_timeout is None else now - int(self._paused_timeout * 1000)
        # An age that is just reached is not exceeded.
        return waited, -1 if self._age_limit is None else now - self._age_limit.allowed - 1

    def judge(self, stored: StoredTask, now: int) -> Expired | None:
        """Return how the task ends, or None while it may wait."""
        if stored.head.state not in PAUSED_STATES:
            return None
        paused_by, created_by = self.moments(now)
        if self._age_limit is not None and stored.head.created_at <= created_by:
            return _too_old(stored, self._age_limit, now)
        if self._paused_timeout is not None and stored.head.status_at <= paused_by:
            text = f"Nobody answered within {_words(self._paused_timeout)}."
            return Expired(CANCELED, _message(stored, text, "paused_timeout"))
        return None


def _too_old(stored: StoredTask, limit: AgeLimit, now: int) -> Expired:
    """The end that a policy gives to a task that has grown too old, as it would at the next message."""
    exceeded = limit.exceeded_by(now - stored.head.created_at)
    text, at = limit.told.format(exceeded.message), to_iso(now)
    decided = Decided(
        at=at, step=limit.step, action="limit", outcome="exceeded", policy=limit.policy, detail=exceeded.message
    )
    ended = Ended(at=at, reason="limit_exceeded", detail=text)
    return Expired(FAILED, _message(stored, text, "limit_exceeded"), (decided, ended))


def _message(stored: StoredTask, text: str, reason: str) -> Message:
    task = stored.task
    return Message(
        message_id=new_id(),
        role=Role.AGENT,
        parts=[Part(text=text)],
        task_id=task.id,
        context_id=task.context_id,
        metadata={"reason": reason},
    )


def _words(seconds: float) -> str:
    """A duration in the largest unit that it is a whole number of."""
    for unit, length in _UNITS:
        if seconds >= length and seconds % length == 0:
            count = int(seconds // length)
            return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return f"{seconds:g} seconds"
