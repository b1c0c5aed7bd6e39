"""Applying the retention policy: the driver that every engine uses.

It works in small steps, each a transaction of its own, so that other writes are never held up for long.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from errands.engines.base import Retention
from errands.model.core import TaskState


class Sweep(Protocol):
    """The steps of retention in one store. Each removes a few and returns how many, 0 when none is left."""

    async def delete_ended(self, state: TaskState, before: int) -> int:
        """Delete tasks that ended in this state and have not changed since `before`, the oldest first."""

    async def delete_excess(self, at_most: int) -> int:
        """Delete the oldest ended tasks as long as there are more than `at_most`."""

    async def clear_remains(self) -> int:
        """Remove events of tasks that were deleted before."""

    async def delete_receipts(self, now: int) -> int:
        """Delete receipts whose window has passed."""

    async def delete_contexts(self, before: int) -> int:
        """Delete contexts that have not changed since `before`, in conversations without a live task."""

    async def delete_accesses(self, before: int) -> int:
        """Delete entries of the access log that were made at `before` or earlier."""

    def overgrown(self, events: int) -> AsyncIterator[str]:
        """Iterate over the tasks whose logs hold more than this number of events."""

    async def trim(self, task_id: str, keep: int) -> int:
        """Remove events from the beginning of a log until it has `keep` left; never records.

        What is removed stays in the snapshot. A log that cannot be read is left as it is.
        """


async def apply_retention(sweep: Sweep, retention: Retention, now: int) -> int:
    """Delete what the policy no longer keeps, and return how many tasks that were."""
    deleted = 0
    for state, before in retention.moments(now).items():
        while count := await sweep.delete_ended(state, before):
            deleted += count
    if retention.ended_at_most is not None:
        while count := await sweep.delete_excess(retention.ended_at_most):
            deleted += count
    while await sweep.clear_remains():
        pass
    while await sweep.delete_receipts(now):
        pass
    if (untouched_since := retention.contexts_before(now)) is not None:
        while await sweep.delete_contexts(untouched_since):
            pass
    if (made_before := retention.accesses_before(now)) is not None:
        while await sweep.delete_accesses(made_before):
            pass
    if (keep := retention.events_per_task) is not None:
        # A tenth over the bound before trimming, so that a growing log is trimmed rarely.
        async for task_id in sweep.overgrown(keep + keep // 10):
            while await sweep.trim(task_id, keep):
                pass
    return deleted
