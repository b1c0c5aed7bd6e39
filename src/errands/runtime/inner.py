"""Agents that run beside the served one on the same store and that nobody outside can reach: for delegation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from errands.engines.base import Engine
from errands.runtime.adapter import WorkerAdapter
from errands.runtime.dependencies import DependencyContainer
from errands.runtime.journal import Journal
from errands.runtime.oversight import Oversight
from errands.runtime.settings import Settings
from errands.runtime.task_manager import TaskManager
from errands.runtime.worker import Worker

_INPUT_MODES = ["text/plain", "application/json"]


class InnerAgents:
    """Their workers by name, and while the server runs their task managers, with the one of the served agent."""

    def __init__(self, workers: Mapping[str, Worker] | None = None) -> None:
        self.workers: dict[str, Worker] = dict(workers or {})
        self._adapters: list[WorkerAdapter] = []
        self._managers: dict[str, TaskManager] = {}

    def manager(self, agent: str) -> TaskManager:
        """Raises `KeyError` for an agent that is not here, and while the server does not run."""
        return self._managers[agent]

    @asynccontextmanager
    async def running(
        self,
        engine: Engine,
        served: Mapping[str, TaskManager],
        deps: DependencyContainer,
        settings: Settings,
        oversight_of: Callable[[Worker], Oversight],
    ) -> AsyncIterator[None]:
        """Has them work until the end of the block. Hooks are not told: they are about the served agent."""
        journal = Journal(engine)
        # What they are given is part of a task that was taken: it is not refused.
        settings = msgspec.structs.replace(settings, max_queue_age=None)
        async with AsyncExitStack() as stack:
            stack.callback(self._adapters.clear)
            stack.callback(self._managers.clear)
            self._managers.update(served)
            for name, worker in self.workers.items():
                adapter = WorkerAdapter(
                    worker, journal, agent=name, deps=deps, settings=settings, oversight=oversight_of(worker)
                )
                self._managers[name] = TaskManager(journal, adapter, input_modes=_INPUT_MODES, settings=settings)
                self._adapters.append(await stack.enter_async_context(adapter))
            yield

    async def drain(self) -> None:
        """See `WorkerAdapter.drain`."""
        await asyncio.gather(*(adapter.drain() for adapter in self._adapters))
