"""Canceling a task: at once, by asking whoever runs it, or by having an executor's `cancel` called."""

from __future__ import annotations

from contextlib import suppress

from errands import lifecycle
from errands.errors import ConcurrencyError, LeaseLostError, TaskNotCancelableError, TaskTerminalStateError
from errands.model.core import CANCELED, SETTLED_STATES, TERMINAL_STATES, Task, TaskState
from errands.model.log import IDLE, LEASE, READY, Change, Draft, Head, StoredTask
from errands.runtime.adapter import WorkerAdapter
from errands.runtime.call import CallContext
from errands.runtime.journal import Batch, Journal, status_update
from errands.runtime.settings import Settings


class Canceler:
    def __init__(self, journal: Journal, adapter: WorkerAdapter, settings: Settings) -> None:
        self._journal = journal
        self._engine = journal.engine
        self._adapter = adapter
        self._settings = settings

    async def cancel(self, task_id: str, call: CallContext) -> Task:
        """The task once it is canceled. Raises `TaskNotFoundError`, and `TaskNotCancelableError` when it has ended."""
        # An executor may be in a pause while it runs; it always ends the task.
        until = TERMINAL_STATES if self._adapter.chooses_reply else SETTLED_STATES
        while True:
            stored = await self._engine.load(task_id, call.scope)
            if stored.state in TERMINAL_STATES:
                raise TaskNotCancelableError(f"Task is already {stored.state.short}", taskId=task_id)
            try:
                if self._is_held(stored.head):
                    await self._ask_to_cancel(stored)
                elif self._adapter.hears_cancel and stored.head.attempt:
                    await self._run_to_cancel(stored, call)
                    until = TERMINAL_STATES
                else:
                    return await self._cancel_now(stored)
                break
            except (ConcurrencyError, LeaseLostError, TaskTerminalStateError):
                continue
        self._adapter.stopper.request(task_id)
        stored = await self._settled(stored, until)
        if self._adapter.hears_cancel and stored.state not in TERMINAL_STATES and stored.head.worker:
            # Whoever held it has died, or does not react: this process lets go in its place, and it is fenced off.
            with suppress(ConcurrencyError, TaskTerminalStateError):
                await self._run_to_cancel(stored, call)
            stored = await self._settled(stored, TERMINAL_STATES)
        while stored.state not in TERMINAL_STATES:
            # It paused all the same, or its process did not react either: the log decides, later writes are refused.
            try:
                return await self._cancel_now(stored)
            except (ConcurrencyError, TaskTerminalStateError):
                stored = await self._engine.load(task_id, call.scope)
        if stored.state is not CANCELED:
            raise TaskNotCancelableError(f"Task had already {_ended(stored.state)}", taskId=task_id)
        return stored.task

    async def _settled(self, stored: StoredTask, until: frozenset[TaskState]) -> StoredTask:
        """The task once it is in one of the states, or as it is when the worker has had its time."""
        grace = self._settings.cancel_force_timeout + 1.0
        return await self._engine.wait_for_state(stored.task.id, stored.scope, until, grace)

    def _is_held(self, head: Head) -> bool:
        return bool(head.worker) and head.due_at is not None and head.due_at > self._journal.now()

    async def _cancel_now(self, stored: StoredTask) -> Task:
        now = self._journal.now()
        events = Batch()
        events.add("status", status_update(stored.task.id, stored.task.context_id or "", CANCELED, now))
        task = lifecycle.fold_updates(stored.task, events.updates)
        change = Change(
            task_id=stored.task.id,
            scope=stored.scope,
            events=events.drafts,
            expected=stored.version,
            at=now,
            state=CANCELED,
            fold=task,
            work=IDLE,
        )
        await self._journal.commit(change, events.updates)
        self._adapter.waiting.forget(stored.task.id)
        return task

    async def _ask_to_cancel(self, stored: StoredTask) -> None:
        if stored.head.cancel_requested:
            return
        await self._journal.commit(
            Change(
                task_id=stored.task.id,
                scope=stored.scope,
                events=(Draft("cancel", b"{}"),),
                expected_states=frozenset({stored.state}),
                fence=stored.pause_fence,
                at=self._journal.now(),
                cancel_requested=True,
            )
        )

    async def _run_to_cancel(self, stored: StoredTask, call: CallContext) -> None:
        """Has the worker run once more for a task that it has worked on and that does not run now."""
        now = self._journal.now()
        inline = self._adapter.reserve()
        change = Change(
            task_id=stored.task.id,
            scope=stored.scope,
            events=(Draft("cancel", b"{}"),),
            expected=stored.version,
            # A claim leaves the version as it is; the attempt tells that somebody was faster.
            fence=stored.head.attempt if inline or stored.head.worker else None,
            at=now,
            work=LEASE if inline else READY,
            due_at=self._adapter.lease_until(now) if inline else now,
            worker=self._adapter.worker_id if inline else "",
            cancel_requested=True,
        )
        try:
            await self._journal.commit(change)
        except BaseException:
            if inline:
                self._adapter.release()
            raise
        if inline:
            head = lifecycle.advance(stored.head, change)
            leased = StoredTask(task=stored.task, head=head, scope=stored.scope)
            self._adapter.start(leased, now, request_context=call.request_context)


def _ended(state: TaskState) -> str:
    return {"completed": "completed", "failed": "failed", "rejected": "been rejected"}.get(state.short, "ended")
