"""Between the queue and a worker: claims tasks, runs turns, keeps leases alive, cancels, drains.

A turn belongs to the adapter, never to the request that caused it: whoever disconnects, the work goes on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager, suppress
from itertools import islice
from typing import Any

from errands.errors import (
    ConcurrencyError,
    DamagedTaskError,
    ErrandsError,
    LeaseLostError,
    StorageError,
    TaskNotFoundError,
    TaskTerminalStateError,
)
from errands.model.core import WORKING
from errands.model.log import RequestOptions, Scope, StoredTask
from errands.runtime.active import ActiveTask
from errands.runtime.context import TaskContext
from errands.runtime.dependencies import DependencyContainer
from errands.runtime.execution import Execution
from errands.runtime.expiry import Expiry
from errands.runtime.handler import Handler
from errands.runtime.journal import Journal
from errands.runtime.leasing import begin, lease
from errands.runtime.oversight import Oversight
from errands.runtime.places import Awaited, Places
from errands.runtime.settings import ServerRole, Settings
from errands.runtime.stopping import Stopper
from errands.runtime.turn import Turn
from errands.runtime.waiting import WaitingContexts, current_message_id, stored_options
from errands.runtime.worker import Worker

logger = logging.getLogger(__name__)

#: Tasks that another server waits for and that are looked at in one poll.
_MOST_TOLD = 100


class WorkerAdapter:
    """Runs one worker's turns in this process. An async context manager: leaving it drains."""

    def __init__(
        self,
        worker: Worker,
        journal: Journal,
        *,
        agent: str,
        deps: DependencyContainer,
        settings: Settings,
        oversight: Oversight | None = None,
    ) -> None:
        self._journal = journal
        self._engine = journal.engine
        self.agent = agent
        self._deps = deps
        self._settings = settings
        self._oversight = oversight
        self._handler = Handler(worker, max_attempts=settings.max_attempts, threads=settings.max_concurrent_tasks)
        #: See `Worker.chooses_reply`.
        self.chooses_reply = worker.chooses_reply
        #: See `Worker.hears_cancel`.
        self.hears_cancel = worker.hears_cancel or worker.chooses_reply
        #: Names this process among all that share the store.
        self.worker_id = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.running: dict[str, Execution] = {}
        self.draining = False
        #: While draining: turns are no longer waited for.
        self._out_of_time = False
        self._wake = asyncio.Event()
        self.waiting = WaitingContexts()
        self._runs_turns = settings.role is not ServerRole.API
        #: Tasks may wait in the queue: new ones have to stand behind them. Where no turns are run, all of them wait.
        self._backlog = not self._runs_turns
        self._places = Places(self.running, settings.max_concurrent_tasks)
        #: Tasks of this agent that somebody waits for, by who does.
        self._awaited: dict[object, Awaited] = {}
        #: Which paused tasks have waited too long.
        self.expiry = Expiry(settings.paused_timeout, oversight)
        #: Ends those, beside every sweep; set by whoever can.
        self.end_abandoned: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.stopper = Stopper(self.running, force_timeout=settings.cancel_force_timeout)
        self._lease_ms = int(settings.lease_seconds * 1000)
        #: No lease of a turn that runs here ends before this moment.
        self._held_until = 0
        #: While draining: set when nothing runs any more.
        self._idle = asyncio.Event()

    # Starting and stopping

    async def __aenter__(self) -> WorkerAdapter:
        async with AsyncExitStack() as stack:
            stack.callback(self._handler.close)
            self._loop = asyncio.get_running_loop()
            background = await stack.enter_async_context(asyncio.TaskGroup())
            loops = {"errands-sweep": self._sweep_loop}
            if self._runs_turns:
                loops |= {"errands-claims": self._claim_loop, "errands-heartbeat": self._heartbeat_loop}
                self._engine.on_work(self._wake.set)
            for name, loop in loops.items():
                stack.callback(background.create_task(loop(), name=name).cancel)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.drain()
        await self._stack.aclose()

    async def drain(self) -> None:
        """Takes nothing new, lets running turns finish until the deadline, gives the rest back to the queue."""
        self.draining = True
        self._notice_idle()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_timeout):
                await self._idle.wait()
        self._out_of_time = True
        for execution in list(self.running.values()):
            self._give_back_soon(execution)
        with suppress(TimeoutError):
            # A handler that does not let itself be canceled must not keep the process from ending.
            async with asyncio.timeout(5.0):
                await self._idle.wait()

    def _give_back_soon(self, execution: Execution) -> None:
        # Not at once: a turn that has not begun to run would never learn of it.
        self._loop.call_soon(execution.stop, "drain")

    def _notice_idle(self) -> None:
        if self.draining and not self.running and not self._places.reserved:
            self._idle.set()

    @property
    def has_capacity(self) -> bool:
        return not self.draining and self._places.has_room()

    def reserve(self, *, awaited: bool = False) -> bool:
        """Whether a new task may be leased in the commit that creates it; then `start` or `release` must follow.

        One that another task waits for (`awaited`) does not stand behind others.
        """
        if not self._runs_turns or self.draining or (self._backlog and not awaited):
            return False
        if not (self._places.has_room_for_awaited() if awaited else self._places.has_room()):
            return False
        self._places.reserved += 1
        return True

    def release(self) -> None:
        """Gives a reserved place back: the commit was refused."""
        self._places.reserved -= 1
        if self._backlog:
            self._wake.set()
        self._notice_idle()

    def lease_until(self, now: int) -> int:
        """Until when a lease that is taken now lasts, unless it is extended."""
        return now + self._lease_ms

    def start(
        self,
        stored: StoredTask,
        now: int,
        *,
        options: RequestOptions | None = None,
        request_context: dict[str, Any] | None = None,
    ) -> None:
        """Runs a task that the caller has just leased to this adapter, in the place reserved for it."""
        self._places.reserved -= 1
        execution = Execution(stored, now)
        if (former := self.running.get(execution.task_id)) is not None:
            former.stop("lost")
        self.running[execution.task_id] = execution
        # Held in `running` until it is over, and waited for in `drain`.
        execution.task = self._loop.create_task(self._run(execution, stored, options, request_context))
        if self._out_of_time:
            self._give_back_soon(execution)

    @contextmanager
    def waiting_turn(self, task_id: str) -> Iterator[None]:
        """While a turn of this agent waits for a task that it has handed down, here or to another server."""
        execution = self.running.get(task_id)
        if execution is None:
            yield
            return
        execution.waits_for += 1
        if self._awaited:
            self._wake.set()
        try:
            yield
        finally:
            execution.waits_for -= 1

    @contextmanager
    def awaiting(self, task_id: str, scope: Scope, told_depth: int | None = None) -> Iterator[None]:
        """While a turn waits for this task: it is taken up whenever nobody holds it, though there is no room.

        When it is another server's turn, `told_depth` is how often the work was handed down, as that one says.
        """
        waiter = object()
        self._awaited[waiter] = Awaited(task_id, scope, told_depth)
        if not self._places.has_room():
            self._wake.set()
        try:
            yield
        finally:
            del self._awaited[waiter]

    async def active_tasks(self) -> list[ActiveTask]:
        """What is running of this agent, here and in other processes."""
        now = self._journal.now()
        active: list[ActiveTask] = []
        for running in await self._engine.running():
            if running.scope.agent == self.agent:
                mine = self.running.get(running.task_id) if running.head.worker == self.worker_id else None
                active.append(ActiveTask.of(running, now, None if mine is None else mine.started_at))
        return active

    def queueing(self, task_id: str, message_id: str, request_context: dict[str, Any]) -> AbstractContextManager[None]:
        """For the commit that puts a task into the queue: those that come now stand behind it."""
        self._backlog = True
        return self.keeping(task_id, message_id, request_context)

    def keeping(self, task_id: str, message_id: str, request_context: dict[str, Any]) -> AbstractContextManager[None]:
        """For the commit that lets a message wait for a turn: its request context waits in this process's memory."""
        return self.waiting.keeping(task_id, message_id, request_context if self._runs_turns else {})

    # Running turns

    async def _run(
        self,
        execution: Execution,
        stored: StoredTask,
        options: RequestOptions | None,
        request_context: dict[str, Any] | None,
    ) -> None:
        try:
            while True:
                if stored.damage:
                    raise DamagedTaskError(stored.damage)
                if options is None:
                    options = await stored_options(self._engine, stored)
                execution.depth = options.depth
                if request_context is None:
                    request_context = self.waiting.take(execution.task_id, current_message_id(stored))
                # Of the pause that ends now: beginning the turn ends it.
                expired = self.expiry.judge(stored, self._journal.now()) if stored.head.cancel_requested else None
                if stored.head.state is not WORKING and not self.chooses_reply:
                    stored = await begin(self._journal, stored)
                execution.ctx = TaskContext(
                    self._journal,
                    stored,
                    deps=self._deps,
                    options=options,
                    request_context=request_context,
                    oversight=self._oversight,
                )
                if expired is not None:
                    execution.ctx._turn.expired = expired
                # It may have been wanted canceled before there was a context that could be told.
                if stored.head.cancel_requested or execution.cancel_requested:
                    self.stopper.signal(execution)
                if not await self._handler.run(execution, execution.ctx):
                    return
                stored = await self._engine.load(execution.task_id, stored.scope)
                options = request_context = None
        except (LeaseLostError, TaskTerminalStateError) as error:
            logger.info("task %s is no longer ours: %s", execution.task_id, error)
            self.waiting.forget(execution.task_id)
        except DamagedTaskError as error:
            logger.error("task %s cannot go on, and ends as failed: %s", execution.task_id, error)
            self.waiting.forget(execution.task_id)
            await self._guarded(self._engine.set_aside(stored, self.worker_id))
        except StorageError:
            logger.exception("task %s could not be written; its lease will run out", execution.task_id)
        except asyncio.CancelledError:
            if execution.stopped == "drain":
                # Before the handler was called, or between two calls.
                with suppress(ErrandsError):
                    await Turn(self._journal, stored).give_back()
        except Exception:
            logger.exception("task %s could not be run; its lease will run out", execution.task_id)
        finally:
            self._finished(execution)

    def _finished(self, execution: Execution) -> None:
        if execution.force_timer is not None:
            execution.force_timer.cancel()
        if self.running.get(execution.task_id) is execution:
            del self.running[execution.task_id]
        if execution.ctx is not None and execution.ctx._turn.ends_task:
            self.waiting.forget(execution.task_id)
        if self._backlog:
            self._wake.set()
        if self.draining:
            self._notice_idle()

    # Loops

    async def _claim_loop(self) -> None:
        """Takes up due tasks: at a sign, and every poll interval in case a sign was missed."""
        while True:
            self._wake.clear()
            if not self.draining:
                # Cancels first: somebody waits for them.
                await self._guarded(self._watch_cancels())
                await self._guarded(self.poll())
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.poll_interval):
                    await self._wake.wait()

    async def poll(self) -> None:
        """Takes up due tasks as long as there is room."""
        if self._journal.now() >= self._held_until:
            # This process stood still: what nobody has taken over meanwhile goes on, and is not begun again.
            await self._extend()
        while self.has_capacity:
            left = self._places.left
            room = 100 if left is None else min(left, 100)
            claimed: list[StoredTask] = []
            self._places.reserved += room
            now = self._journal.now()
            try:
                claimed = await self._engine.claim(self.worker_id, [self.agent], room, self.lease_until(now))
            finally:
                self._places.reserved -= room - len(claimed)
                self._notice_idle()
            for stored in claimed:
                self.start(stored, now)
            if len(claimed) < room:
                self._backlog = False
                return
        self._backlog = True
        if not self.draining:
            await self._take_up_awaited()

    async def _take_up_awaited(self) -> None:
        # Strangers can wait for any number of tasks: each has its turn to be looked at, after those of our own turns.
        told = list(islice((w for w, awaited in self._awaited.items() if awaited.told_depth is not None), _MOST_TOLD))
        for waiter in [w for w, awaited in self._awaited.items() if awaited.told_depth is None] + told:
            if waiter not in self._awaited:
                continue
            awaited = self._awaited[waiter] = self._awaited.pop(waiter)
            if awaited.task_id in self.running or not self._places.has_room_for(awaited):
                continue
            with suppress(TaskNotFoundError, ConcurrencyError, LeaseLostError, TaskTerminalStateError):
                stored = await self._engine.load(awaited.task_id, awaited.scope)
                if not self.draining:
                    await self._take_up(stored)

    async def _take_up(self, stored: StoredTask) -> None:
        """Leases a task that is due."""
        now = self._journal.now()
        if stored.damage or stored.head.due_at is None or stored.head.due_at > now:
            return
        self._places.reserved += 1
        try:
            leased = await lease(self._journal, stored, self.worker_id, now, self.lease_until(now))
        except BaseException:
            self._places.reserved -= 1
            self._notice_idle()
            raise
        self.start(leased, now)

    async def _heartbeat_loop(self) -> None:
        while True:
            await asyncio.sleep(self._settings.lease_seconds / 3)
            await self._guarded(self._extend())

    async def _watch_cancels(self) -> None:
        """Cancels that were asked for in other processes."""
        if not self.running:
            return
        for task_id in await self._engine.wanted_canceled(self.worker_id):
            self.stopper.request(task_id)

    async def _extend(self) -> None:
        until = self.lease_until(self._journal.now())
        held = dict(self.running)
        leases = [execution.lease for execution in held.values()]
        for signal in await self._engine.extend(self.worker_id, leases, until) if leases else ():
            execution = held[signal.task_id]
            # It may be over, and the task run here again by another one.
            if self.running.get(signal.task_id) is not execution or execution.turn_ended:
                continue
            if signal.lost:
                execution.stop("lost")
            elif signal.cancel_requested:
                self.stopper.signal(execution)
        self._held_until = until

    async def _sweep_loop(self) -> None:
        while True:
            await asyncio.sleep(self._settings.sweep_interval)
            await self._guarded(self._engine.sweep(every=self._settings.sweep_interval))
            if self.end_abandoned is not None and self._runs_turns and not self.draining:
                await self._guarded(self.end_abandoned())

    async def _guarded(self, call: Any) -> None:
        try:
            await call
        except StorageError as error:
            logger.warning("the store did not answer; trying again: %s", error)
        except Exception:
            logger.exception("something went wrong beside the tasks; trying again")
