"""What every engine does in the same way: readers of this process are fed by a `Fanout`, workers are woken, and tasks
that cannot be read are set aside."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from errands.clock import Clock, system_clock
from errands.engines.base import Engine, Retention, Tasks
from errands.engines.fanout import Fanout, LocalExpectation, LocalSubscription
from errands.engines.stored import failed_draft
from errands.errors import ConcurrencyError, ErrandsError, LeaseLostError, StorageError, TaskTerminalStateError
from errands.model.core import FAILED, TaskState
from errands.model.log import IDLE, LEASE, Change, Event, Scope, StoredTask

logger = logging.getLogger(__name__)


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

    async def claim(self, worker: str, agents: Sequence[str], limit: int, until: int) -> Tasks:
        claimed: list[StoredTask] = []
        while len(claimed) < limit:
            leased = await self._lease_due(worker, agents, limit - len(claimed), until)
            damaged = [stored for stored in leased if stored.damage]
            claimed += [stored for stored in leased if not stored.damage]
            for stored in damaged:
                try:
                    await self.set_aside(stored, worker)
                except ErrandsError:
                    # Those that can be run must not wait for it. Its lease keeps it away for a while.
                    logger.exception("task %s is damaged and could not be ended", stored.task.id)
                    return claimed
            if claimed or not damaged:
                break
        return claimed

    @abstractmethod
    async def _lease_due(self, worker: str, agents: Sequence[str], limit: int, until: int) -> Tasks:
        """Does what `claim` does, and gives out damaged tasks as well."""

    async def set_aside(self, stored: StoredTask, worker: str = "") -> None:
        now, head, attempt = self.clock(), stored.head, stored.head.attempt
        if head.worker not in ("", worker) and head.due_at is not None and head.due_at > now:
            return
        with suppress(ConcurrencyError, LeaseLostError, TaskTerminalStateError):
            # Only the holder may fail any task, so it is leased first.
            await self.commit(
                Change(
                    task_id=stored.task.id,
                    scope=stored.scope,
                    fence=attempt,
                    at=now,
                    work=LEASE,
                    due_at=now,
                    worker="set aside",
                )
            )
            end = Change(
                task_id=stored.task.id,
                scope=stored.scope,
                events=(failed_draft(stored, now),),
                fence=attempt + 1,
                at=now,
                state=FAILED,
                work=IDLE,
                cancel_requested=False,
            )
            try:
                await self.commit(end)
            except StorageError:
                # Its log may be what is damaged.
                await self.commit(msgspec.structs.replace(end, events=()))

    def subscribe(self, task_id: str, scope: Scope, after: int, *, caught_up: bool = False) -> LocalSubscription:
        self._watch(task_id)
        return self._fanout.subscribe(task_id, after, lambda cursor: self.read(task_id, scope, cursor), caught_up)

    def tell(self, task_id: str, data: bytes) -> None:
        self._fanout.tell(task_id, Event(0, "status", data))

    def expect(self, task_id: str, scope: Scope, states: frozenset[TaskState]) -> LocalExpectation:
        self._watch(task_id)
        return self._fanout.expect(task_id, scope, states, self.load)

    def _watch(self, task_id: str) -> None:
        """Somebody here is about to watch this task: for an engine that hears of other processes."""

    def disconnect(self) -> None:
        self._fanout.close()
