"""What is running, and where: read from the engine, never a second record of it."""

from __future__ import annotations

import msgspec

from errands.model.core import TaskState
from errands.model.log import RunningTask


class ActiveTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that a process holds at this moment. Times are in milliseconds since 1970."""

    task_id: str
    context_id: str
    state: TaskState
    agent: str
    owner: str
    tenant: str
    #: The process that runs it, by host, process id and a number of its own.
    worker: str
    #: Which try of this turn it is, from 1; more than 1 after a crash.
    attempt: int
    #: Until when the lease lasts, unless it is extended as it is while the process lives.
    lease_until: int
    #: How old the task is, in milliseconds.
    age: int
    cancel_requested: bool
    #: How long this process has been at the turn, in milliseconds; None when another process is.
    running_for: int | None = None

    @classmethod
    def of(cls, running: RunningTask, now: int, started_at: int | None = None) -> ActiveTask:
        """What the engine says; `started_at` is known only where the task runs."""
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
