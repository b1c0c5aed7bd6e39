"""What every engine does in the same way for its own process: readers are fed by a `Fanout`, workers are woken."""

from __future__ import annotations

from collections.abc import Callable

from errands.clock import Clock, system_clock
from errands.engines.base import Engine, Retention
from errands.engines.fanout import Fanout, LocalExpectation, LocalSubscription
from errands.model.core import TaskState
from errands.model.log import Scope


class LocalEngine(Engine):
    """An engine that publishes to `_fanout` what is durable, and calls `_wake_workers` when there may be work."""

    def __init__(self, *, clock: Clock = system_clock, retention: Retention | None = None) -> None:
        super().__init__(clock=clock, retention=retention)
        self._fanout = Fanout()
        self._wakers: list[Callable[[], None]] = []

    def on_work(self, wake: Callable[[], None]) -> None:
        self._wakers.append(wake)

    def _wake_workers(self) -> None:
        for wake in self._wakers:
            wake()

    def subscribe(self, task_id: str, scope: Scope, after: int, *, caught_up: bool = False) -> LocalSubscription:
        self._watch(task_id)
        return self._fanout.subscribe(task_id, after, lambda cursor: self.read(task_id, scope, cursor), caught_up)

    def expect(self, task_id: str, scope: Scope, states: frozenset[TaskState]) -> LocalExpectation:
        self._watch(task_id)
        return self._fanout.expect(task_id, scope, states, self.load)

    def _watch(self, task_id: str) -> None:
        """Somebody here is about to watch this task: for an engine that hears of other processes."""

    def disconnect(self) -> None:
        self._fanout.close()
