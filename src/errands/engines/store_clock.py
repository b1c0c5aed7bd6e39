"""The time that replicas agree on: the machine's, unless that differs from the store's.

Leases are compared by the clocks of those who claim. A machine whose clock is wrong by more than a lease would take
tasks from those at work on them, again and again, until they have had all their tries.
"""

from __future__ import annotations

import logging

from errands.clock import Clock, system_clock

logger = logging.getLogger(__name__)

#: Milliseconds by which clocks may differ: what NTP gives, with room to spare.
TOLERATED = 1000


class StoreClock:
    """What `own` says, put right when the store says otherwise."""

    def __init__(self, own: Clock = system_clock) -> None:
        self.own = own
        self._correction = 0

    def __call__(self) -> int:
        return self.own() + self._correction

    def compare(self, asked: int, theirs: int, answered: int, store: str) -> None:
        """`theirs` is the time of the store, read after `asked` and before `answered`, which are of `own`."""
        if answered < asked:
            return  # it was set back meanwhile, and what lies between the two says nothing
        difference = theirs - (asked + answered) // 2
        if abs(difference - self._correction) <= TOLERATED + (answered - asked) // 2:
            return
        self._correction = difference if abs(difference) > TOLERATED else 0
        if self._correction:
            logger.warning(
                "the clock of this machine is %.1f s %s that of %s; going by the latter. Set it right (NTP)",
                abs(difference) / 1000,
                "behind" if difference > 0 else "ahead of",
                store,
            )
        else:
            logger.info("the clock of this machine agrees with that of %s again", store)


def goes_by_store(clock: Clock) -> Clock:
    """The machine's clock with the store's as a corrective; one that somebody has given is left to them."""
    return StoreClock() if clock is system_clock else clock
