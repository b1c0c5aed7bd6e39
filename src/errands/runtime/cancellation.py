"""Cancels tasks: at once, by asking the process that runs them, or by running the worker once more."""

from __future__ import annotations

import logging
from contextlib import suppress

from errands import errors, lifecycle
from errands.model.base import encode
from errands.model.core import (
    CANCELED,
    PAUSED_STATES,
    REJECTED,
    SETTLED_STATES,
    TERMINAL_STATES,
    Task,
    TaskState,
    text_of,
)
from errands.model.log import IDLE, READY, CancelRequest, Change, Draft, Scope, StoredTask
from errands.runtime.call import CallContext
from errands.runtime.expiry import Expired
from errands.runtime.journal import Batch, status_update
from errands.runtime.pool import WorkerPool
from errands.runtime.settings import Settings

logger = logging.getLogger(__name__)

#: The number of abandoned tasks that are fetched at a time.
_BATCH = 100


class Canceler:
    """Cancels the tasks of one agent."""

    def __init__(self, pool: WorkerPool, agent: str, settings: Settings) -> None:
        self._pool = pool
        self._handler = pool.handlers[agent]
        self._journal = self._handler.journal
        self._engine = self._journal.engine
        self._settings = settings

    async def cancel(self, task_id: str, call: CallContext) -> Task:
        """Return the task once it is canceled.

        Raise `TaskNotFoundError`, and `TaskNotCancelableError` if it has ended.
        """
        # An executor may still run while its task is paused; it always ends the task.
        until = TERMINAL_STATES if self._handler.chooses_reply else SETTLED_STATES
        while True:
            stored = await call.load(self._engine, task_id)
            if stored.damage:
                await self._engine.set_aside(stored)
            if stored.state in TERMINAL_STATES:
                raise errors.TaskNotCancelableError(f"Task is already {stored.state.short}", taskId=task_id)
            try:
                if stored.head.worker and (stored.head.due_at or 0) > self._journal.now():
                    await self._request_cancel(stored, call)
                elif self._handler.hears_cancel and stored.head.attempt:
                    await self._run_to_cancel(stored, call)
                    until = TERMINAL_STATES
                else:
                    return await self._cancel_now(stored, call=call)
                break
            except (errors.ConcurrencyError, errors.LeaseLostError, errors.TaskTerminalStateError):
                continue
        self._pool.request_cancel(task_id)
        stored = await self._settled(stored, until)
        if self._handler.hears_cancel and stored.state not in TERMINAL_STATES and stored.head.worker:
            # The holder has died or does not react. A worker here takes its place, and the holder is fenced off.
            with suppress(errors.ConcurrencyError, errors.TaskTerminalStateError):
                await self._run_to_cancel(stored, call)
            stored = await self._settled(stored, TERMINAL_STATES)
        while stored.state not in TERMINAL_STATES:
            # It paused instead, or that worker did not react either: the log decides, and later writes are refused.
            try:
                return await self._cancel_now(stored, call=call)
            except (errors.ConcurrencyError, errors.TaskTerminalStateError):
                stored = await self._engine.load(task_id, call.scope)
        if stored.state is not CANCELED:
            ended = "been rejected" if stored.state is REJECTED else stored.state.short
            raise errors.TaskNotCancelableError(f"Task had already {ended}", taskId=task_id)
        return stored.task

    async def _settled(self, stored: StoredTask, until: frozenset[TaskState]) -> StoredTask:
        """Return the task once it is in one of the states, or as it is when the time of the worker is over."""
        grace = self._settings.cancel_force_timeout + 1.0
        return await self._engine.wait_for_state(stored.task.id, stored.scope, until, grace)

    async def _cancel_now(
        self, stored: StoredTask, expired: Expired | None = None, call: CallContext | None = None
    ) -> Task:
        """End a task that no process holds, as canceled or as `expired` says."""
        now = self._journal.now()
        state, message = (CANCELED, None) if expired is None else (expired.state, expired.message)
        events = Batch()
        if call is not None and call.address and not stored.head.cancel_requested:
            events.drafts.append(_cancel_event(call))
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
        await self._journal.commit(change)
        self._pool.contexts.forget(stored.task.id)
        return task

    async def _request_cancel(self, stored: StoredTask, call: CallContext) -> None:
        """Commit a request to cancel a task that some process runs."""
        if stored.head.cancel_requested:
            return
        await self._journal.commit(
            Change(
                task_id=stored.task.id,
                scope=stored.scope,
                events=(_cancel_event(call),),
                expected_states=frozenset({stored.state}),
                fence=stored.pause_fence,
                at=self._journal.now(),
                cancel_requested=True,
            )
        )

    async def end_abandoned(self) -> None:
        """End the tasks of this agent that were not answered, or did not end, in time.

        Every process that runs turns does this. The version of a task decides which of them ends it, and whether an
        answer came first. A task at work is ended as by a cancel, by the process that runs it.
        """
        expiry, ended = self._handler.expiry, _BATCH
        while ended >= _BATCH:
            ended = 0
            now = self._journal.now()
            paused_by, created_by, unfinished_by = expiry.moments(now)
            abandoned = await self._engine.abandoned(
                self._handler.agent, paused_by, created_by, _BATCH, unfinished_by=unfinished_by
            )
            for task_id, scope in abandoned:
                with suppress(
                    errors.ConcurrencyError,
                    errors.LeaseLostError,
                    errors.TaskNotFoundError,
                    errors.TaskTerminalStateError,
                ):
                    ended += await self._end_if_expired(task_id, scope, now)

    async def _end_if_expired(self, task_id: str, scope: Scope, now: int) -> bool:
        """End the task, or ask the process that runs it to do so, if it is still late."""
        stored, expiry = await self._engine.load(task_id, scope), self._handler.expiry
        # A paused task that a worker holds is not waiting, but its total time is limited, too.
        judge = expiry.judge if stored.head.due_at is None else expiry.judge_unfinished
        expired = None if stored.damage or stored.state in TERMINAL_STATES else judge(stored, now)
        if expired is None:
            return False
        logger.info("task %s has exceeded its time limit: %s", task_id, text_of(expired.message.parts))
        if stored.head.worker and (stored.head.due_at or 0) > now:
            await self._request_cancel(stored, CallContext(scope))
            self._pool.request_cancel(task_id)
        elif self._handler.hears_cancel and (stored.head.attempt or stored.state in PAUSED_STATES):
            # Its worker releases what it holds elsewhere, and the turn ends as `expired` says.
            await self._run_to_cancel(stored, CallContext(scope))
        else:
            await self._cancel_now(stored, expired)
        return True

    async def _run_to_cancel(self, stored: StoredTask, call: CallContext) -> None:
        """Have the worker run once more for a task that it has worked on and that does not run now."""
        now = self._journal.now()
        change = Change(
            task_id=stored.task.id,
            scope=stored.scope,
            events=(_cancel_event(call),),
            expected=stored.version,
            fence=stored.head.attempt if stored.head.worker else None,
            at=now,
            work=READY,
            due_at=now,
            cancel_requested=True,
        )
        await self._pool.commit_and_run(stored, change, request_context=call.request_context)


def _cancel_event(call: CallContext) -> Draft:
    """Return the event that asks to cancel a task, with the caller for the audit trail."""
    if not call.address:
        return Draft("cancel", b"{}")
    return Draft("cancel", encode(CancelRequest(caller=call.caller, address=call.address)))
