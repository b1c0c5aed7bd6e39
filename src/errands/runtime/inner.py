"""Agents that run in the same process and on the same store as the served one, and that clients cannot reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager

import msgspec

from errands.runtime.handler import Handler
from errands.runtime.journal import Journal
from errands.runtime.oversight import Oversight
from errands.runtime.pool import WorkerPool
from errands.runtime.settings import Settings
from errands.runtime.task_manager import TaskManager
from errands.runtime.worker import Worker

_INPUT_MODES = ["text/plain", "application/json"]


class InnerAgents:
    """The workers of inner agents by name and, once the server has started, the task manager of every agent."""

    def __init__(self, workers: Mapping[str, Worker] | None = None) -> None:
        self.workers: dict[str, Worker] = dict(workers or {})
        self._managers: dict[str, TaskManager] = {}
        self._pool: WorkerPool | None = None

    def start(
        self,
        pool: WorkerPool,
        served: Mapping[str, TaskManager],
        journal: Journal,
        settings: Settings,
        oversight_of: Callable[[Worker], Oversight],
    ) -> None:
        """Have the pool run these agents, too, beside those that are `served`."""
        # Their tasks are part of tasks that were accepted, so they are not refused.
        settings = msgspec.structs.replace(settings, max_queue_age=None)
        self._pool = pool
        self._managers = dict(served)
        for name, worker in self.workers.items():
            pool.add(Handler(name, worker, journal, settings, oversight_of(worker)))
            self._managers[name] = TaskManager(pool, name, input_modes=_INPUT_MODES, settings=settings)

    def manager(self, agent: str) -> TaskManager:
        """Return the task manager of an agent. Raise `KeyError` for an unknown one, and before the start."""
        return self._managers[agent]

    def waiting(self, task_id: str) -> AbstractAsyncContextManager[None]:
        """Give the slot of a running turn back while it waits for a task that it has delegated."""
        assert self._pool is not None
        return self._pool.waiting(task_id)
