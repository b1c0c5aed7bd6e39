"""`WorkerPool`: runs the turns of all agents of a process.

It has slots for turns, claims due tasks while slots are free, extends the leases of running tasks, cancels and drains.
A turn belongs to the pool, never to the request that caused it: when a client disconnects, the work goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from time import monotonic
from typing import Any

import msgspec

from errands import errors, lifecycle, tracing
from errands.engines.base import Engine
from errands.model.base import shallow_copy
from errands.model.core import WORKING, StreamResponse, TaskStatusUpdateEvent
from errands.model.log import LEASE, Change, Lease, RequestOptions, Scope, StoredTask
from errands.runtime.call import WaitingContexts, current_message_id, stored_options
from errands.runtime.dependencies import DependencyContainer
from errands.runtime.figures import Figures
from errands.runtime.handler import Handler
from errands.runtime.journal import Batch, Journal, status_update
from errands.runtime.json_lines import current_task
from errands.runtime.leases import ActiveTask, Leases
from errands.runtime.settings import ServerRole, Settings
from errands.runtime.turn import Stop, Turn

logger = logging.getLogger(__name__)

#: Tasks claimed at a time.
_CLAIMED = 100
#: Seconds that turns have to stop when their tasks are given back.
_STOPPING = 5.0

#: Raises for a change that must not wait in the queue.
Admit = Callable[[Change], Awaitable[None]]


class Slots:
    """Room for turns: at most `limit` run at the same time, or any number without a limit.

    A turn that waits for a task of this process has no slot, but no new task may begin in its place: else any number of
    turns could begin only to wait. The slot is for delegated tasks, and for turns that have waited.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._taken = 0
        #: Turns without a slot that wait for tasks of this process.
        self.waiting = 0
        #: Turns that have waited and want a slot again. They come before all others.
        self._returning: deque[asyncio.Future[None]] = deque()

    def take(self, *, is_new: bool) -> bool:
        """Take a slot if one is free, for a new task or for a delegated one or a turn that has waited."""
        if self._limit is not None and self._taken + (self.waiting if is_new else 0) >= self._limit:
            return False
        self._taken += 1
        return True

    def take_many(self, at_most: int) -> int:
        """Take free slots for new tasks, `at_most` this number of them, and return how many."""
        count = at_most if self._limit is None else max(min(at_most, self._limit - self._taken - self.waiting), 0)
        self._taken += count
        return count

    def give_back(self, count: int = 1) -> None:
        self._taken -= count
        while self._returning and self.take(is_new=False):
            returning = self._returning.popleft()
            if returning.done():
                self._taken -= 1
            else:
                returning.set_result(None)

    def take_regardless(self) -> None:
        """Take a slot though none may be free; there is one less for others until it is given back."""
        self._taken += 1

    async def take_again(self) -> None:
        """Wait for a slot."""
        if self.take(is_new=False):
            return
        returning = asyncio.get_running_loop().create_future()
        self._returning.append(returning)
        try:
            await returning
        except asyncio.CancelledError:
            if not returning.cancelled():
                self.give_back()
            raise


class Execution:
    """A task that this process holds a lease on, and the asyncio task that runs its turns."""

    __slots__ = (
        *("attempt", "cancel_requested", "force_timer", "has_slot", "is_counted", "started_at", "stopped", "task"),
        *("task_id", "turn", "waits_for"),
    )

    def __init__(self, stored: StoredTask, started_at: int) -> None:
        self.task_id = stored.task.id
        self.attempt = stored.head.attempt
        self.started_at = started_at
        self.cancel_requested = stored.head.cancel_requested
        #: The turn that runs now; None before the first one has begun.
        self.turn: Turn | None = None
        self.task: asyncio.Task[None] | None = None
        self.stopped: Stop | None = None
        self.force_timer: asyncio.TimerHandle | None = None
        self.has_slot = True
        #: Whether it is one of `Slots.waiting`.
        self.is_counted = False
        #: Delegated tasks that it waits for.
        self.waits_for = 0

    @property
    def lease(self) -> Lease:
        return Lease(self.task_id, self.attempt)

    @property
    def turn_ended(self) -> bool:
        return self.turn is not None and self.turn.ended

    def stop(self, why: Stop) -> None:
        self.stopped = why
        if self.turn is not None:
            self.turn.stopped = why
        if self.task is not None:
            self.task.cancel()


class WorkerPool:
    """Runs turns in this process. An async context manager: leaving it drains."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        deps: DependencyContainer | None = None,
        figures: Figures | None = None,
    ) -> None:
        self._engine = engine
        self._figures = figures
        self._settings = settings
        self._deps = deps or DependencyContainer()
        #: The agents whose turns are run, by name.
        self.handlers: dict[str, Handler] = {}
        #: By task id.
        self.running: dict[str, Execution] = {}
        self.leases = Leases(engine, settings.lease_seconds)
        self.draining = False
        #: Request contexts of messages that wait for their turn.
        self.contexts = WaitingContexts()
        self._runs_turns = settings.role is not ServerRole.API
        self._slots = Slots(settings.max_concurrent_tasks)
        #: Slots taken for tasks whose lease is being written.
        self._starting = 0
        #: Tasks may wait in the queue, so new ones have to queue behind them.
        self._backlog = not self._runs_turns
        self._wake = asyncio.Event()
        #: While draining: turns are no longer waited for.
        self._out_of_time = False
        #: While draining: set when nothing runs any more.
        self._idle = asyncio.Event()
        self._on_expiry: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._on_sweep: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._forcing: set[asyncio.Task[None]] = set()
        #: Tasks of this process that its turns wait for.
        self._awaited: list[tuple[str, Scope]] = []

    def add(self, handler: Handler) -> None:
        """Run the turns of another agent."""
        self.handlers[handler.agent] = handler

    def on_expiry(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have `call` end the tasks that are too late, at intervals, where turns are run."""
        self._on_expiry.append(call)

    def on_sweep(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have `call` delete what is no longer needed, every sweep interval."""
        self._on_sweep.append(call)

    # Starting and stopping

    async def __aenter__(self) -> WorkerPool:
        async with AsyncExitStack() as stack:
            for handler in self.handlers.values():
                stack.callback(handler.close)
            self._loop = asyncio.get_running_loop()
            background = await stack.enter_async_context(asyncio.TaskGroup())
            loops = {"errands-sweep": self._sweep_loop}
            if self._runs_turns:
                loops |= {"errands-claims": self._claim_loop, "errands-heartbeat": self._heartbeat_loop}
                loops["errands-expiry"] = self._expiry_loop
                self._engine.on_work(self._wake.set)
            for name, loop in loops.items():
                stack.callback(background.create_task(loop(), name=name).cancel)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.drain()
        await self._stack.aclose()

    async def drain(self) -> None:
        """Take nothing new, let running turns finish until the deadline, give the rest back to the queue."""
        self.draining = True
        self._notice_idle()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_timeout):
                await self._idle.wait()
        self._out_of_time = True
        for execution in list(self.running.values()):
            self._give_back_soon(execution)
        with suppress(TimeoutError):
            # A handler that suppresses its cancellation must not keep the process from ending.
            async with asyncio.timeout(_STOPPING):
                await self._idle.wait()

    def _give_back_soon(self, execution: Execution) -> None:
        # Not at once: the coroutine of a turn that has not begun to run would never see the cancellation.
        self._loop.call_soon(execution.stop, "drain")

    def _notice_idle(self) -> None:
        if self.draining and not self.running and not self._starting:
            self._idle.set()

    # Taking tasks up

    async def commit_and_run(
        self,
        stored: StoredTask,
        change: Change,
        events: Batch | None = None,
        *,
        message_id: str = "",
        options: RequestOptions | None = None,
        request_context: dict[str, Any],
        admit: Admit | None = None,
        is_delegated: bool = False,
    ) -> StoredTask:
        """Commit a change that gives a task something to do, and run it here if there is room.

        `stored` is the task after the change with its head before it, and `change` puts the task into the queue. With
        room, the same commit leases the task to this process instead and, when `events` are those of the change, says
        that it is at work. Without room `admit` may refuse the change. A task that a turn waits for (`is_delegated`)
        does not queue behind others.
        """
        handler, task = self.handlers[change.scope.agent], stored.task
        if not self._take_slot(is_delegated):
            if admit is not None:
                await admit(change)
            self._backlog = True
            with self.keeping_context(task.id, message_id, request_context):
                head = await handler.journal.commit(change)
            return StoredTask(task=task, head=head, scope=change.scope)
        state = change.state
        if events is not None and not handler.chooses_reply:
            state, task, status = WORKING, shallow_copy(task), shallow_copy(task.status)
            task.status, status.state = status, WORKING
            update = TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id or "", status=task.status)
            events.add("status", StreamResponse(status_update=update))
        change = msgspec.structs.replace(
            change,
            # A claim leaves the version as it is; the attempt shows that another process was faster.
            fence=stored.head.attempt,
            state=state,
            work=LEASE,
            due_at=change.at + self.leases.duration,
            worker=self.leases.worker_id,
        )
        try:
            head = await handler.journal.commit(change)
        except BaseException:
            self._release_slots(1)
            raise
        leased = StoredTask(task=task, head=head, scope=change.scope)
        self._start(leased, change.at, options, request_context)
        return leased

    def _take_slot(self, is_delegated: bool) -> bool:
        """Take a slot for a task whose lease is about to be written; `_start` or `_release_slots` must follow."""
        if not self._runs_turns or self.draining or (self._backlog and not is_delegated):
            return False
        if not self._slots.take(is_new=not is_delegated):
            return False
        self._starting += 1
        return True

    def _release_slots(self, count: int) -> None:
        self._starting -= count
        self._slots.give_back(count)
        if self._backlog:
            self._wake.set()
        self._notice_idle()

    def keeping_context(
        self, task_id: str, message_id: str, request_context: dict[str, Any]
    ) -> AbstractContextManager[None]:
        """Keep a request context in memory for the commit after which its message waits for a turn."""
        return self.contexts.keeping(task_id, message_id, request_context if self._runs_turns else {})

    def _start(
        self,
        stored: StoredTask,
        now: int,
        options: RequestOptions | None = None,
        request_context: dict[str, Any] | None = None,
    ) -> None:
        """Run a task that was just leased to this process, in the slot taken for it."""
        self._starting -= 1
        execution = Execution(stored, now)
        if (former := self.running.get(execution.task_id)) is not None:
            self._count_lost_lease()
            former.stop("lost")
        self.running[execution.task_id] = execution
        # Held in `running` until it is over, and waited for in `drain`.
        execution.task = self._loop.create_task(self._run(execution, stored, options, request_context))
        if self._out_of_time:
            self._give_back_soon(execution)

    def _count_lost_lease(self) -> None:
        if self._figures is not None:
            self._figures.leases_lost += 1

    @asynccontextmanager
    async def waiting(self, task_id: str, *, is_local: bool) -> AsyncIterator[None]:
        """Take the slot of a running turn away while it waits for a delegated task, and give it one again after.

        Otherwise a turn and the task it waits for could block each other for ever. While it waits for a task of this
        process, only delegated tasks may use the slot. While it waits for another server, any task may: the server may
        need an answer from here first. A turn that is interrupted while it waits does not have to wait for a slot.
        """
        execution = self.running.get(task_id)
        if execution is None:
            yield
            return
        execution.waits_for += 1
        if execution.has_slot:
            execution.has_slot = False
            if is_local:
                execution.is_counted = True
                self._slots.waiting += 1
            self._slots.give_back()
            if self._backlog:
                self._wake.set()
        try:
            yield
        except BaseException:
            execution.waits_for -= 1
            if self._lacks_slot(execution):
                self._slots.take_regardless()
                self._resume(execution)
            raise
        execution.waits_for -= 1
        if self._lacks_slot(execution):
            await self._slots.take_again()
            # Meanwhile the turn may have begun another wait, or ended.
            if self._lacks_slot(execution):
                self._resume(execution)
            else:
                self._slots.give_back()

    def _lacks_slot(self, execution: Execution) -> bool:
        """Return whether a turn still runs, does not wait for a task any more and has no slot yet."""
        is_running = self.running.get(execution.task_id) is execution
        return is_running and not execution.waits_for and not execution.has_slot

    def _resume(self, execution: Execution) -> None:
        """Note that a turn that has waited has a slot again."""
        execution.has_slot = True
        self._stop_counting(execution)

    def _stop_counting(self, execution: Execution) -> None:
        if execution.is_counted:
            execution.is_counted = False
            self._slots.waiting -= 1

    @contextmanager
    def awaiting(self, task_id: str, scope: Scope) -> Iterator[None]:
        """Take this task up before others while a turn of this process waits for it."""
        awaited = (task_id, scope)
        self._awaited.append(awaited)
        if task_id not in self.running:
            self._wake.set()
        try:
            yield
        finally:
            self._awaited.remove(awaited)

    async def _take_up_awaited(self) -> None:
        """Lease tasks that turns of this process wait for and that have found no slot so far."""
        for task_id, scope in self._awaited[:]:
            if task_id in self.running or scope.agent not in self.handlers:
                continue
            with suppress(
                errors.TaskNotFoundError, errors.ConcurrencyError, errors.LeaseLostError, errors.TaskTerminalStateError
            ):
                stored = await self._engine.load(task_id, scope)
                now = self._engine.clock()
                if stored.damage or stored.head.due_at is None or stored.head.due_at > now:
                    continue  # it is settled, or held by another process
                if not self._take_slot(is_delegated=True):
                    return
                change = Change(
                    task_id=task_id,
                    scope=scope,
                    fence=stored.head.attempt,
                    at=now,
                    work=LEASE,
                    due_at=now + self.leases.duration,
                    worker=self.leases.worker_id,
                )
                try:
                    head = await self._engine.commit(change)
                except BaseException:
                    self._release_slots(1)
                    raise
                self._start(StoredTask(task=stored.task, head=head, scope=scope), now)

    # Running turns

    async def _run(
        self,
        execution: Execution,
        stored: StoredTask,
        options: RequestOptions | None,
        request_context: dict[str, Any] | None,
    ) -> None:
        handler = self.handlers[stored.scope.agent]
        journal = handler.journal
        current_task.set(execution.task_id)
        try:
            while True:
                if stored.damage:
                    raise errors.DamagedTaskError(stored.damage)
                if options is None:
                    options = await stored_options(self._engine, stored)
                if request_context is None:
                    request_context = self.contexts.take(execution.task_id, current_message_id(stored))
                since = stored.head.status_at
                # Judged before the turn begins, which ends the pause.
                expired = handler.expiry.judge(stored, journal.now()) if stored.head.cancel_requested else None
                if stored.head.state is not WORKING and not handler.chooses_reply:
                    stored = await _begin(journal, stored)
                turn = execution.turn = Turn(
                    journal,
                    stored,
                    options=options,
                    request_context=request_context,
                    deps=self._deps,
                    oversight=handler.oversight,
                )
                turn.expired = expired
                # A cancel may have been requested before there was a turn to tell.
                if stored.head.cancel_requested or execution.cancel_requested:
                    self._signal_cancel(execution)
                began = 0.0 if handler.seconds is None else monotonic()
                if tracing.tracer is None:
                    goes_on = await handler.run(turn)
                else:
                    goes_on = await handler.trace(tracing.tracer, turn, since)
                if handler.seconds is not None:
                    handler.seconds.observe(monotonic() - began)
                if not goes_on:
                    return
                stored = await self._engine.load(execution.task_id, stored.scope)
                options = request_context = None
        except (errors.LeaseLostError, errors.TaskTerminalStateError) as error:
            logger.info("task %s is no longer ours: %s", execution.task_id, error)
            if execution.stopped is None:
                self._count_lost_lease()
            self.contexts.forget(execution.task_id)
        except errors.DamagedTaskError as error:
            logger.error("task %s cannot go on, and ends as failed: %s", execution.task_id, error)
            self.contexts.forget(execution.task_id)
            await self._guarded(self._engine.set_aside(stored, self.leases.worker_id))
        except errors.StorageError:
            logger.exception("task %s could not be written; its lease will run out", execution.task_id)
        except asyncio.CancelledError:
            if execution.stopped == "drain":
                # Before the handler was called, or between two calls.
                with suppress(errors.ErrandsError):
                    await Turn(journal, stored).give_back()
        except Exception:
            logger.exception("task %s could not be run; its lease will run out", execution.task_id)
        finally:
            self._finished(execution)

    def _finished(self, execution: Execution) -> None:
        if execution.force_timer is not None:
            execution.force_timer.cancel()
        if self.running.get(execution.task_id) is execution:
            del self.running[execution.task_id]
        if execution.is_counted:
            self._stop_counting(execution)
        if execution.has_slot:
            execution.has_slot = False
            self._slots.give_back()
        if self.contexts and execution.turn is not None and execution.turn.ends_task:
            self.contexts.forget(execution.task_id)
        if self._backlog:
            self._wake.set()
        if self.draining:
            self._notice_idle()

    async def active_tasks(self, agent: str) -> list[ActiveTask]:
        """Return what is running of an agent, here and in other processes."""
        now = self._engine.clock()
        active: list[ActiveTask] = []
        for running in await self._engine.running():
            if running.scope.agent == agent:
                is_mine = running.head.worker == self.leases.worker_id
                mine = self.running.get(running.task_id) if is_mine else None
                active.append(ActiveTask.of(running, now, None if mine is None else mine.started_at))
        return active

    # Cancels

    def request_cancel(self, task_id: str) -> None:
        """Pass on to a turn that its task is to be canceled, if it runs here."""
        if (execution := self.running.get(task_id)) is not None:
            self._signal_cancel(execution)

    def _signal_cancel(self, execution: Execution) -> None:
        execution.cancel_requested = True
        turn = execution.turn
        if turn is not None:
            if turn.expired is None:
                # A cancel that comes when the task has taken too long ends it accordingly.
                expiry = self.handlers[turn.stored.scope.agent].expiry
                turn.expired = expiry.judge_unfinished(turn.stored, turn.journal.now())
            turn.request_cancel()
        if execution.force_timer is None:
            timeout = self._settings.cancel_force_timeout
            execution.force_timer = self._loop.call_later(timeout, self._force, execution)

    def _force(self, execution: Execution) -> None:
        if self.running.get(execution.task_id) is execution:
            forcing = self._loop.create_task(_cancel_by_force(execution))
            self._forcing.add(forcing)
            forcing.add_done_callback(self._forcing.discard)

    # Loops

    async def _claim_loop(self) -> None:
        """Take up due tasks: when the engine says that there are some, and every poll interval."""
        while True:
            self._wake.clear()
            if not self.draining:
                # Cancels first: clients wait for them.
                await self._guarded(self._watch_cancels())
                await self._guarded(self.poll())
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.poll_interval):
                    await self._wake.wait()

    async def poll(self) -> None:
        """Take up due tasks as long as slots are free."""
        if self.leases.may_have_run_out():
            # This process stood still: what no other has taken over goes on, and is not begun again.
            await self._extend()
        if self._awaited:
            await self._take_up_awaited()
        while not self.draining and (room := self._slots.take_many(_CLAIMED)):
            self._starting += room
            now, claimed = self._engine.clock(), []
            try:
                claimed = await self.leases.claim(list(self.handlers), room, now)
            finally:
                self._starting -= room - len(claimed)
                self._slots.give_back(room - len(claimed))
                self._notice_idle()
            for stored in claimed:
                self._start(stored, now)
            if len(claimed) < room:
                self._backlog = False
                return
        self._backlog = True

    async def _heartbeat_loop(self) -> None:
        while True:
            await asyncio.sleep(self._settings.lease_seconds / 3)
            await self._guarded(self._extend())

    async def _extend(self) -> None:
        held = dict(self.running)
        for signal in await self.leases.extend([execution.lease for execution in held.values()]):
            execution = held[signal.task_id]
            # It may be over, and the task run here again by another one.
            if self.running.get(signal.task_id) is not execution or execution.turn_ended:
                continue
            if signal.lost:
                self._count_lost_lease()
                execution.stop("lost")
            elif signal.cancel_requested:
                self._signal_cancel(execution)

    async def _watch_cancels(self) -> None:
        """Pass on cancels that were requested in other processes."""
        if self.running:
            for task_id in await self._engine.wanted_canceled(self.leases.worker_id):
                self.request_cancel(task_id)

    async def _sweep_loop(self) -> None:
        while True:
            await asyncio.sleep(self._settings.sweep_interval)
            await self._guarded(self._engine.sweep(every=self._settings.sweep_interval))
            for call in self._on_sweep:
                await self._guarded(call())

    async def _expiry_loop(self) -> None:
        """End tasks that take or wait too long: a short `task_timeout` is not exceeded by more than a tenth."""
        interval, timeout = self._settings.sweep_interval, self._settings.task_timeout
        if timeout is not None:
            interval = min(interval, max(timeout / 10, self._settings.poll_interval))
        while True:
            await asyncio.sleep(interval)
            for call in self._on_expiry:
                if not self.draining:
                    await self._guarded(call())

    async def _guarded(self, call: Awaitable[Any]) -> None:
        try:
            await call
        except errors.StorageError as error:
            logger.warning("the store did not answer; trying again: %s", error)
        except Exception:
            logger.exception("unexpected error in the background; trying again")


async def _begin(journal: Journal, stored: StoredTask) -> StoredTask:
    """Commit that a leased task is at work, and return it so."""
    now = journal.now()
    events = Batch()
    events.add("status", status_update(stored.task.id, stored.task.context_id or "", WORKING, now))
    change = Change(
        task_id=stored.task.id,
        scope=stored.scope,
        events=events.drafts,
        fence=stored.head.attempt,
        at=now,
        state=WORKING,
    )
    head = await journal.commit(change)
    if head.version != stored.version + 1:
        return await journal.engine.load(stored.task.id, stored.scope)
    task = lifecycle.fold_updates(stored.task, events.updates)
    return StoredTask(task=task, head=head, scope=stored.scope)


async def _cancel_by_force(execution: Execution) -> None:
    # The log first: the task is canceled even when the handler suppresses its cancellation.
    try:
        if execution.turn is not None and not execution.turn.ended:
            await execution.turn.cancel_by_force()
    except errors.ErrandsError as error:
        logger.info("task %s was not canceled by force: %s", execution.task_id, error)
    execution.stop("force")
