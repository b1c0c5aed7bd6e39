"""`InnerAgents`: agents that run in the same process as the served one, for delegation; clients cannot reach them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager

import msgspec

from errands.errors import ConcurrencyError, DuplicateMessageError
from errands.model.core import SETTLED_STATES, Message, Task
from errands.model.log import StoredTask
from errands.model.requests import SendMessageRequest
from errands.runtime.call import CallContext
from errands.runtime.cancellation import Canceler
from errands.runtime.handler import Handler
from errands.runtime.journal import Journal
from errands.runtime.oversight import Oversight
from errands.runtime.pool import WorkerPool
from errands.runtime.settings import Settings
from errands.runtime.submission import Submitter
from errands.runtime.worker import Worker

_INPUT_MODES = ["text/plain", "application/json"]


class InnerAgents:
    """The workers of inner agents by name and, once the server has started, what delegation needs of every agent.

    The served agent is among those that tasks can be delegated to.
    """

    def __init__(self, workers: Mapping[str, Worker] | None = None) -> None:
        self.workers: dict[str, Worker] = dict(workers or {})
        self._submitters: dict[str, Submitter] = {}
        self._cancelers: dict[str, Canceler] = {}

    def start(
        self, pool: WorkerPool, journal: Journal, settings: Settings, oversight_of: Callable[[Worker], Oversight]
    ) -> None:
        """Have the pool run these agents, too. The journal has no hooks: they are about the served agent only."""
        # Delegated tasks are part of tasks that were accepted, so they are not refused.
        settings = msgspec.structs.replace(settings, max_queue_age=None)
        for name, worker in self.workers.items():
            pool.add(Handler(name, worker, journal, settings, oversight_of(worker)))
        self._pool, self._engine = pool, journal.engine
        self._submitters = {
            name: Submitter(pool, name, input_modes=_INPUT_MODES, settings=settings) for name in pool.handlers
        }
        self._cancelers = {name: Canceler(pool, name, settings) for name in pool.handlers}
        for name in self.workers:
            pool.on_expiry(self._cancelers[name].end_abandoned)

    async def begin(self, message: Message, call: CallContext, task_id: str) -> StoredTask:
        """Return the task of this id of the agent in `call.scope`, created with its first message unless it exists.

        It is created even while the server stops; it then waits for another process, or for the next start.
        """
        submitter = self._submitters[call.scope.agent]
        try:
            return (await submitter.create(SendMessageRequest(message=message), call, task_id)).stored
        except (ConcurrencyError, DuplicateMessageError):
            return await self._engine.load(task_id, call.scope)

    def waiting(self, task_id: str, *, is_local: bool) -> AbstractAsyncContextManager[None]:
        """Let a running turn wait without a slot for a task that it has delegated, here or to another server."""
        return self._pool.waiting(task_id, is_local=is_local)

    async def wait_until_settled(self, task_id: str, call: CallContext, after: int = 0) -> StoredTask:
        """Return the task once it has ended or paused at a version above `after`, however long that takes.

        Any process may work on it. Raise `TaskNotFoundError`.
        """
        while True:
            with (
                self._pool.awaiting(task_id, call.scope),
                self._engine.expect(task_id, call.scope, SETTLED_STATES) as expectation,
            ):
                stored = await self._engine.load(task_id, call.scope)
                if stored.state in SETTLED_STATES and stored.version > after:
                    return stored
                # None: waits end when the server stops, though turns that wait may have some time left.
                if (settled := await expectation.wait(max(stored.version, after), None)) is not None:
                    return settled

    async def cancel(self, task_id: str, call: CallContext) -> Task:
        """Return the task once it is canceled. Raise `TaskNotFoundError` and `TaskNotCancelableError`."""
        return await self._cancelers[call.scope.agent].cancel(task_id, call)
