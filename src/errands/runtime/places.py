"""How many turns of an agent run at the same time in this process, and to whom those that wait lend their places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from errands.model.log import Scope
from errands.runtime.execution import Execution


class Awaited(NamedTuple):
    """A task that somebody waits for."""

    task_id: str
    scope: Scope
    #: How often the work was handed down, as the other server says whose turn waits for it; None: a turn of this one.
    told_depth: int | None


class Places:
    """`limit` is the setting `max_concurrent_tasks`."""

    def __init__(self, running: Mapping[str, Execution], limit: int | None) -> None:
        self._running = running
        self._limit = limit
        #: Those kept for tasks whose lease is being written.
        self.reserved = 0

    @property
    def left(self) -> int | None:
        """None: there is no bound."""
        return None if self._limit is None else self._limit - len(self._running) - self.reserved

    def has_room(self) -> bool:
        # Asked for every message, so it costs no further call.
        return self._limit is None or len(self._running) + self.reserved < self._limit

    def has_room_for(self, awaited: Awaited) -> bool:
        return self.has_room_for_awaited() and (awaited.told_depth is None or self._lends_to(awaited.told_depth))

    def has_room_for_awaited(self) -> bool:
        """A turn that waits for a task lends its place to such tasks: they might wait for each other for ever."""
        left = self.left
        return left is None or left + sum(execution.waits_for > 0 for execution in self._running.values()) > 0

    def _lends_to(self, depth: int) -> bool:
        """Whether turns that wait have a place for what was handed down so often, which must be more often than theirs:
        whatever senders say, the places that are lent do not grow without end."""
        lent = sum(execution.waits_for > 0 and execution.depth < depth for execution in self._running.values())
        return lent > sum(execution.depth >= depth for execution in self._running.values())
