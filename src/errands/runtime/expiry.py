"""The time limits of tasks: how long they take, how long they wait for an answer, and how old they become."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from errands.model.core import CANCELED, FAILED, PAUSED_STATES, Message, Part, Role, TaskState
from errands.model.log import StoredTask
from errands.runtime.journal import new_id
from errands.runtime.oversight import Oversight

_UNITS = (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))


class Expired(msgspec.Struct, frozen=True):
    """The end of a task that was not finished, or not answered, in time."""

    state: TaskState
    message: Message
    #: Records that are written with it, encoded.
    records: tuple[bytes, ...] = ()


class Moments(NamedTuple):
    """Tasks before these times are late. In milliseconds; -1 without a bound. See `Storage.abandoned`."""

    paused_by: int
    created_by: int
    unfinished_by: int


class Expiry:
    """The time limits of the tasks of one agent."""

    def __init__(self, task_timeout: float | None, paused_timeout: float | None, oversight: Oversight | None) -> None:
        self._task_timeout = task_timeout
        self._paused_timeout = paused_timeout
        self._oversight = oversight
        self._max_age = None if oversight is None else oversight.max_age

    def moments(self, now: int) -> Moments:
        """Return when tasks must have paused, and been created, to be too late."""
        return Moments(
            -1 if self._paused_timeout is None else now - int(self._paused_timeout * 1000),
            # An age that is just reached is not exceeded.
            -1 if self._max_age is None else now - self._max_age - 1,
            -1 if self._task_timeout is None else now - int(self._task_timeout * 1000),
        )

    def judge(self, stored: StoredTask, now: int) -> Expired | None:
        """Return how the task ends, or None while it may continue."""
        if (unfinished := self.judge_unfinished(stored, now)) is not None:
            return unfinished
        head = stored.head
        if head.state not in PAUSED_STATES:
            return None
        paused_by, created_by, _ = self.moments(now)
        if self._oversight is not None and self._max_age is not None and head.created_at <= created_by:
            return self._oversight.expire(stored, now)
        if self._paused_timeout is not None and head.status_at <= paused_by:
            text = f"No answer came within {_words(self._paused_timeout)}."
            return Expired(CANCELED, expiry_message(stored, text, "paused_timeout"))
        return None

    def judge_unfinished(self, stored: StoredTask, now: int) -> Expired | None:
        """Return how a task ends whose total time is used up, in any live state, else None."""
        if self._task_timeout is None or now - stored.head.created_at < self._task_timeout * 1000:
            return None
        text = f"The task was not finished within {_words(self._task_timeout)}."
        return Expired(FAILED, expiry_message(stored, text, "task_timeout"))


def expiry_message(stored: StoredTask, text: str, reason: str) -> Message:
    """Return the last message of an expired task."""
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
    """Return a duration in the largest unit of which it is a whole number."""
    for unit, length in _UNITS:
        if seconds >= length and seconds % length == 0:
            count = int(seconds // length)
            return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return f"{seconds:g} seconds"
