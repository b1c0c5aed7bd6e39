"""One running turn, for whoever has to stop it."""

from __future__ import annotations

import asyncio
from typing import Literal

from errands.model.log import Lease, StoredTask
from errands.runtime.context import TaskContext

#: Why a running turn was stopped from outside: canceled by force, taken over by another worker, or the server stops.
Stop = Literal["force", "lost", "drain"]


class Execution:
    __slots__ = (
        *("attempt", "cancel_requested", "ctx", "depth", "force_timer", "started_at", "stopped", "task", "task_id"),
        "waits_for",
    )

    def __init__(self, stored: StoredTask, started_at: int) -> None:
        self.task_id = stored.task.id
        self.attempt = stored.head.attempt
        self.started_at = started_at
        self.cancel_requested = stored.head.cancel_requested
        self.ctx: TaskContext | None = None
        self.task: asyncio.Task[None] | None = None
        self.stopped: Stop | None = None
        self.force_timer: asyncio.TimerHandle | None = None
        #: How many agents have handed its work down.
        self.depth = 0
        #: Tasks that it has handed down and waits for.
        self.waits_for = 0

    @property
    def lease(self) -> Lease:
        return Lease(self.task_id, self.attempt)

    @property
    def turn_ended(self) -> bool:
        return self.ctx is not None and self.ctx.turn_ended

    def signal_cancel(self) -> None:
        """Tells the handler, which may look at `ctx.is_cancelled` or not, or have asked to be called."""
        self.cancel_requested = True
        if self.ctx is not None and not self.ctx._cancelled:
            self.ctx._cancelled = True
            if self.ctx._on_cancel is not None:
                self.ctx._on_cancel()

    def stop(self, why: Stop) -> None:
        self.stopped = why
        if self.task is not None:
            self.task.cancel()
