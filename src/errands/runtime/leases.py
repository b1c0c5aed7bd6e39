"""The leases of this process: claiming due tasks, and extending the leases of those that run."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence

import msgspec

from errands.engines.base import Engine
from errands.model.core import TaskState
from errands.model.log import Lease, LeaseSignal, RunningTask, StoredTask


class Leases:
    """Takes and extends leases that last `seconds`, in the name of this process."""

    def __init__(self, engine: Engine, seconds: float) -> None:
        self._engine = engine
        #: In milliseconds.
        self.duration = int(seconds * 1000)
        #: No lease that this process holds ends before this moment.
        self._held_until = 0
        #: Names this process among all that share the store.
        self.worker_id = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"

    async def claim(self, agents: Sequence[str], limit: int, now: int) -> list[StoredTask]:
        """Lease up to `limit` due tasks of these agents, longest due first."""
        return await self._engine.claim(self.worker_id, agents, limit, now + self.duration)

    def may_have_run_out(self) -> bool:
        """Return whether the last heartbeat is so long ago that other processes may claim what runs here."""
        return self._engine.clock() >= self._held_until

    async def extend(self, leases: Sequence[Lease]) -> list[LeaseSignal]:
        """Extend these leases: the heartbeat. Return which were lost, and whose tasks are to be canceled."""
        until = self._engine.clock() + self.duration
        signals = await self._engine.extend(self.worker_id, leases, until) if leases else []
        self._held_until = until
        return signals


class ActiveTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that some process holds a lease on. Times are in milliseconds since 1970."""

    task_id: str
    context_id: str
    state: TaskState
    agent: str
    owner: str
    tenant: str
    #: The process that runs it: host name, process id and a random number.
    worker: str
    #: Which try of this turn it is, from 1; more than 1 after a crash.
    attempt: int
    #: When the lease ends, unless the process lives and extends it.
    lease_until: int
    #: The age of the task.
    age: int
    cancel_requested: bool
    #: For how long this process has run it; None when another process does.
    running_for: int | None = None

    @classmethod
    def of(cls, running: RunningTask, now: int, started_at: int | None = None) -> ActiveTask:
        """Describe a task that the engine reports; `started_at` is known only where the task runs."""
        head = running.head
        return cls(
            task_id=running.task_id,
            context_id=running.context_id,
            state=head.state,
            agent=running.scope.agent,
            owner=running.scope.owner,
            tenant=running.scope.tenant,
            worker=head.worker,
            attempt=head.attempt - head.attempt_base,
            lease_until=head.due_at or 0,
            age=now - head.created_at,
            cancel_requested=head.cancel_requested,
            running_for=None if started_at is None else now - started_at,
        )
