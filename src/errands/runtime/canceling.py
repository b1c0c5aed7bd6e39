"""Canceling a task: at once, by asking whoever runs it, or by having an executor's `cancel` called."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from errands import lifecycle
from errands.errors import (
    ConcurrencyError,
    LeaseLostError,
    TaskNotCancelableError,
    TaskNotFoundError,
    TaskTerminalStateError,
)
from errands.model.core import CANCELED, SETTLED_STATES, TERMINAL_STATES, Task, TaskState, text_of
from errands.model.log import IDLE, LEASE, READY, Change, Draft, Head, StoredTask
from errands.runtime.adapter import WorkerAdapter
from errands.runtime.call import CallContext
from errands.runtime.expiry import Expired
from errands.runtime.journal import Batch, Journal, status_update
from errands.runtime.settings import Settings

logger = logging.getLogger(__name__)

#: Abandoned tasks that are looked for at a time.
_AT_ONCE = 100


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
            if stored.damage:
                await self._engine.set_aside(stored)
            if stored.state in TERMINAL_STATES:
                raise TaskNotCancelableError(f"Task is already {stored.state.short}", taskId=task_id)
            try:
                if self._is_held(stored.head):
                    await self._ask_to_cancel(stored)
                elif self._adapter.hears_cancel and stored.head.attempt:
                    await self._run_to_cancel(stored, call.request_context)
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
                await self._run_to_cancel(stored, call.request_context)
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

    async def _cancel_now(self, stored: StoredTask, expired: Expired | None = None) -> Task:
        """Ends a task that nobody holds, as canceled or as it has expired."""
        now = self._journal.now()
        state, message = (CANCELED, None) if expired is None else (expired.state, expired.message)
        events = Batch()
        for record in () if expired is None else expired.records:
            events.note(record)
        events.add("status", status_update(stored.task.id, stored.task.context_id or "", state, now, message))
        task = lifecycle.fold_updates(stored.task, events.updates)
        change = Change(
            task_id=stored.task.id,
            scope=stored.scope,
            events=events.drafts,
            expected=stored.version,
            at=now,
            state=state,
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

    async def end_abandoned(self) -> None:
        """Ends the paused tasks of this agent that nobody has answered in time.

        Every process that runs turns does this. The version of a task decides which of them ends it, and whether an
        answer came first.
        """
        expiry, ended = self._adapter.expiry, _AT_ONCE
        while ended >= _AT_ONCE:
            ended = 0
            now = self._journal.now()
            for task_id, scope in await self._engine.abandoned(self._adapter.agent, *expiry.moments(now), _AT_ONCE):
                with suppress(ConcurrencyError, LeaseLostError, TaskNotFoundError, TaskTerminalStateError):
                    stored = await self._engine.load(task_id, scope)
                    expired = expiry.judge(stored, now)
                    if expired is not None and stored.head.due_at is None and not stored.damage:
                        await self._expire(stored, expired)
                        ended += 1

    async def _expire(self, stored: StoredTask, expired: Expired) -> None:
        logger.info("task %s was not answered in time: %s", stored.task.id, text_of(expired.message.parts))
        if self._adapter.hears_cancel:
            # Its worker lets go of what it holds elsewhere, and the turn ends as `expired` says.
            await self._run_to_cancel(stored, {})
        else:
            await self._cancel_now(stored, expired)

    async def _run_to_cancel(self, stored: StoredTask, request_context: dict[str, Any]) -> None:
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
            self._adapter.start(leased, now, request_context=request_context)


def _ended(state: TaskState) -> str:
    return {"completed": "completed", "failed": "failed", "rejected": "been rejected"}.get(state.short, "ended")
