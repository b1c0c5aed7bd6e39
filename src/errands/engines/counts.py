"""Counts of what an engine has written in this process: metrics are made of them."""

from __future__ import annotations

from bisect import bisect_left

from errands.lifecycle import Judged
from errands.model.core import SUBMITTED, UNSPECIFIED, WORKING, TaskState
from errands.model.log import LEASE

#: Upper bounds of the changes of one batch, and of seconds of work inside a process or a store.
BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
COMMIT_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram:
    """How often values fell below each of some bounds, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        #: By the first bound that is not smaller than the value; the last one counts larger values.
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class CommitCounts:
    """The changes that an engine has made durable in this process, and the batches that they were written in."""

    __slots__ = ("attempts", "changes", "seconds", "states")

    def __init__(self) -> None:
        #: How often tasks have entered each state.
        self.states = dict.fromkeys((state for state in TaskState if state is not UNSPECIFIED), 0)
        #: Leases by their cause, see `errands.model.log.LeaseRecord`: those whose first event is durable.
        self.attempts = {"new": 0, "expired": 0, "given back": 0}
        #: Of each batch. An engine without batches leaves these two alone.
        self.changes = Histogram(BATCH_BOUNDS)
        self.seconds = Histogram(COMMIT_BOUNDS)

    def note(self, judged: Judged) -> None:
        """Count a durable change."""
        state, before = judged.head.state, judged.before.state
        if state is not before:
            self.states[state] += 1
            if state is WORKING and before is not SUBMITTED and judged.change.work is LEASE:
                # A task that is leased when it is created or resumed passes through `submitted`.
                self.states[SUBMITTED] += 1
        if judged.events and (lease := judged.events[0].lease) is not None:
            self.attempts[lease.cause] += 1

    def note_batch(self, changes: int, seconds: float) -> None:
        """Count a batch that was written in one transaction, which took `seconds`."""
        self.changes.observe(changes)
        self.seconds.observe(seconds)
