"""An agent on one file, whose processes come one after another: one that is killed, and one that goes on."""

from __future__ import annotations

import asyncio
import signal
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from errands import A2AClient
from errands.engines.base import Engine
from errands.engines.urls import engine_from_url
from errands.model.core import Task
from errands.model.log import Scope
from errands.policy.records import AnyRecord
from errands.policy.run import stored_records
from tests.unit.cli.processes import Served


class Scene(ABC):
    """One task of the agent of that name."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.storage = f"sqlite:///{folder / 'tasks.db'}"
        self._scope = Scope("", "", name)
        self.task_id = ""

    @abstractmethod
    def serve(self) -> Served:
        """Another process of the agent."""

    @asynccontextmanager
    async def killed_at_the_end(self) -> AsyncIterator[A2AClient]:
        """A client of a process that is killed when the block is over."""
        with await asyncio.to_thread(self.serve) as first:
            async with A2AClient(first.url) as client:
                yield client
            first.signal(signal.SIGKILL)
            first.finish()

    async def finish(self) -> Task:
        """Starts another process and waits for the task's end."""
        with await asyncio.to_thread(self.serve) as second:
            async with A2AClient(second.url) as client:
                async for event in client.subscribe(self.task_id):
                    if event.is_final:
                        break
                result = await client.get_task(self.task_id)
        assert result.raw_task is not None
        return result.raw_task

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[Engine]:
        async with engine_from_url(self.storage) as engine:
            yield engine

    async def records(self) -> list[AnyRecord]:
        async with self.engine() as engine:
            return await stored_records(engine, self.task_id, self._scope)
