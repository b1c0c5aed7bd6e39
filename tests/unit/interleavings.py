"""Random interleavings of senders, workers, cancels, crashes, the reaper and subscribers.

Whatever the order: no illegal transition, no lost or duplicated event, and the folded log is the snapshot.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from typing import Any

import msgspec
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from errands import lifecycle
from errands.engines.base import Engine
from errands.engines.memory import MemoryEngine
from errands.engines.subscriptions import Subscription
from errands.errors import ErrandsError
from errands.model.core import PAUSED_STATES, TERMINAL_STATES, Message, Part, Role, StreamResponse, TaskState
from errands.model.log import Event, Scope, StoredTask
from errands.model.requests import CancelTaskRequest, SendMessageConfiguration, SendMessageRequest
from errands.runtime.call import CallContext
from errands.runtime.context import TaskContext
from errands.runtime.handler import Handler
from errands.runtime.journal import Journal, new_id
from errands.runtime.pool import WorkerPool
from errands.runtime.settings import Settings
from errands.runtime.task_manager import TaskManager
from errands.runtime.worker import Worker
from errands.testing import ManualClock

SCOPE = Scope("", "alice", "agent")
LEASE_S = 30.0
ENDINGS = ("complete", "respond", "fail", "reject", "request_input", "request_auth")

#: The settings of every run.
common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

decode = msgspec.json.Decoder(StreamResponse).decode


class Scripted(Worker):
    """Does what the test says, one command at a time."""

    def __init__(self) -> None:
        self.turns: dict[str, tuple[TaskContext, asyncio.Queue[tuple[str, Any, asyncio.Future[Any]]]]] = {}

    async def handle(self, ctx: TaskContext) -> None:
        inbox: asyncio.Queue[tuple[str, Any, asyncio.Future[Any]]] = asyncio.Queue()
        self.turns[ctx.task_id] = (ctx, inbox)
        try:
            while True:
                command, argument, done = await inbox.get()
                if command == "return":
                    done.set_result(None)
                    return
                if command == "raise":
                    done.set_result(None)
                    raise RuntimeError("the handler breaks")
                try:
                    await getattr(ctx, command)(**argument)
                except ErrandsError as error:
                    done.set_result(error)
                    raise
                done.set_result(None)
                if command in ENDINGS:
                    return
        finally:
            if self.turns.get(ctx.task_id, (None,))[0] is ctx:
                del self.turns[ctx.task_id]


class Reader:
    """A subscriber that notes everything it is shown."""

    def __init__(self, task_id: str, after: int, subscription: Subscription) -> None:
        self.task_id = task_id
        self.after = after
        self.seen: list[Event] = []
        self.subscription = subscription
        self.task = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for events in self.subscription:
            self.seen += [event for event in events if event.version]  # a sign of life has no place in the log


class Lifecycle(RuleBasedStateMachine):
    def make_engine(self) -> Engine:
        return MemoryEngine(clock=self.clock)

    reopens = False

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.tasks: list[str] = []
        self.readers: list[Reader] = []
        self.durable_chunks: dict[str, list[str]] = {}
        self.open_chunks: dict[str, list[str]] = {}
        self.cancels: list[asyncio.Task[Any]] = []
        self.engine = self.make_engine()
        self.run(self.engine.open())
        self.run(self.boot())

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    async def boot(self) -> None:
        """A fresh process on the same store."""
        self.worker = Scripted()
        settings = Settings(lease_seconds=LEASE_S, poll_interval=3600, cancel_force_timeout=3600, max_attempts=1000)
        self.journal = Journal(self.engine)
        self.pool = WorkerPool(self.engine, settings)
        self.pool.add(Handler("agent", self.worker, self.journal, settings))
        self.stack = AsyncExitStack()
        await self.stack.enter_async_context(self.pool)
        self.manager = TaskManager(self.pool, "agent", input_modes=[], settings=settings)
        await self.settle()

    async def die(self) -> None:
        """The process is gone: nothing more is written, leases stay as they are."""
        for execution in list(self.pool.running.values()):
            execution.stop("lost")
        while self.pool.running:
            await asyncio.sleep(0)
        await self.stack.aclose()
        self.open_chunks.clear()

    async def settle(self) -> None:
        """Lets everything happen that can: until each running turn waits for its next command."""
        while True:
            for _ in range(10):
                await asyncio.sleep(0)
            if all(self._waits(task_id) for task_id in self.pool.running):
                return
            await self.engine.running()

    def _waits(self, task_id: str) -> bool:
        turn = self.worker.turns.get(task_id)
        return turn is not None and turn[0]._turn._flusher is None

    # What can happen. No rule has a precondition: threads decide when a turn begins, and what is drawn must not depend
    # on that.

    @rule()
    def send(self) -> None:
        self.run(self._send(None))

    @rule(pick=st.integers(0, 99))
    def follow_up(self, pick: int) -> None:
        if self.tasks:
            self.run(self._send(self.tasks[pick % len(self.tasks)]))

    async def _send(self, task_id: str | None) -> None:
        self.clock.advance(ms=1)
        message = Message(message_id=new_id(), role=Role.USER, parts=[Part(text="hi")], task_id=task_id)
        request = SendMessageRequest(message=message, configuration=SendMessageConfiguration(return_immediately=True))
        try:
            answer = await self.manager.send_message(request, CallContext(scope=SCOPE))
        except ErrandsError:
            assert task_id is not None
            assert (await self.engine.load(task_id, SCOPE)).state in TERMINAL_STATES
            return
        assert answer.task is not None
        if task_id is None:
            self.tasks.append(answer.task.id)
        await self.settle()

    @rule(pick=st.integers(0, 99), text=st.text("abc", min_size=1, max_size=3), append=st.booleans())
    def chunk(self, pick: int, text: str, append: bool) -> None:
        task_id = self._running(pick)
        if task_id is None:
            return
        result = self.run(self._command(task_id, "emit_text_artifact", {"text": text, "append": append}))
        if result is None:
            chunks = self.open_chunks.setdefault(task_id, [])
            chunks.append(text)

    @rule(pick=st.integers(0, 99), message=st.none() | st.just("half way"))
    def progress(self, pick: int, message: str | None) -> None:
        if (task_id := self._running(pick)) is not None:
            self.run(self._command(task_id, "send_status", {"message": message}))

    @rule(pick=st.integers(0, 99), ending=st.sampled_from([*ENDINGS, "return", "raise"]))
    def end_turn(self, pick: int, ending: str) -> None:
        task_id = self._running(pick)
        if task_id is None:
            return
        arguments: dict[str, dict[str, Any]] = {"fail": {"reason": "no"}, "request_input": {"question": "what?"}}
        result = self.run(self._command(task_id, ending, arguments.get(ending, {})))
        if result is None and ending in ENDINGS:
            self.durable_chunks.setdefault(task_id, []).extend(self.open_chunks.pop(task_id, []))

    def _running(self, pick: int) -> str | None:
        # In the order of their creation: ids are random, and a run must be repeatable.
        running = [task_id for task_id in self.tasks if task_id in self.worker.turns]
        return running[pick % len(running)] if running else None

    async def _command(self, task_id: str, command: str, argument: dict[str, Any]) -> Any:
        self.clock.advance(ms=1)
        done = asyncio.get_running_loop().create_future()
        self.worker.turns[task_id][1].put_nowait((command, argument, done))
        result = await done
        await self.settle()
        return result

    @rule(pick=st.integers(0, 99))
    def cancel(self, pick: int) -> None:
        if self.tasks:
            self.run(self._cancel(self.tasks[pick % len(self.tasks)]))

    async def _cancel(self, task_id: str) -> None:
        self.clock.advance(ms=1)
        request = CancelTaskRequest(id=task_id)
        cancel = asyncio.ensure_future(self.manager.cancel_task(request, CallContext(scope=SCOPE)))
        self.cancels.append(cancel)
        while not cancel.done() and not (await self.engine.load(task_id, SCOPE)).head.cancel_requested:
            await asyncio.sleep(0)
        await self.settle()

    @rule()
    def crash(self) -> None:
        self.run(self._crash())

    async def _crash(self) -> None:
        await self._abandon_cancels()
        await self.die()
        if self.reopens:
            await self.close_readers()
            await self.engine.close()
            self.engine = self.make_engine()
            await self.engine.open()
        await self.boot()

    async def _abandon_cancels(self) -> None:
        for cancel in self.cancels:
            cancel.cancel()
        await asyncio.gather(*self.cancels, return_exceptions=True)
        self.cancels.clear()

    @rule()
    def reap(self) -> None:
        """Leases run out; whoever still holds one is alive and extends it first."""
        self.run(self._reap())

    async def _reap(self) -> None:
        self.clock.advance(seconds=LEASE_S * 2)
        await self.pool._extend()
        await self.pool.poll()
        await self.settle()

    @rule(pick=st.integers(0, 99), back=st.integers(0, 5))
    def subscribe(self, pick: int, back: int) -> None:
        if self.tasks:
            self.run(self._subscribe(self.tasks[pick % len(self.tasks)], back))

    async def _subscribe(self, task_id: str, back: int) -> None:
        stored = await self.engine.load(task_id, SCOPE)
        after = max(0, stored.version - back)
        self.readers.append(Reader(task_id, after, self.engine.subscribe(task_id, SCOPE, after)))
        await self.settle()

    async def close_readers(self) -> None:
        await self.settle()
        for reader in self.readers:
            await self._check_reader(reader)
            reader.subscription.close()
            await reader.task
        self.readers.clear()

    # What must always be true

    @invariant()
    def every_log_tells_a_legal_story_that_folds_into_the_snapshot(self) -> None:
        self.run(self._check_logs())

    async def _check_logs(self) -> None:
        for task_id in self.tasks:
            stored, log = await self._look(task_id)
            assert [event.version for event in log] == list(range(1, stored.version + 1))
            assert lifecycle.fold(None, log) == stored.task
            assert stored.task.status.state is stored.state
            self._check_transitions(log)
            self._check_chunks(task_id, log)

    async def _look(self, task_id: str) -> tuple[StoredTask, list[Event]]:
        """The task and its log of one moment: a turn may begin between the two looks."""
        while True:
            stored = await self.engine.load(task_id, SCOPE)
            log = (await self.engine.read(task_id, SCOPE, 0)).events
            if log[-1].version == stored.version:
                return stored, log

    def _check_transitions(self, log: list[Event]) -> None:
        state = TaskState.UNSPECIFIED
        for event in log:
            response = decode(event.data) if event.kind in ("task", "status") else StreamResponse()
            status = response.task.status if response.task else None
            if response.status_update is not None:
                status = response.status_update.status
            if status is None:
                continue
            assert status.state in lifecycle.TRANSITIONS.get(state, frozenset()), (state, status.state)
            state = status.state

    def _check_chunks(self, task_id: str, log: list[Event]) -> None:
        """What a finished turn had emitted is in the log, each piece once, in order."""
        written = [
            update.artifact.parts[0].text
            for event in log
            if event.kind == "artifact" and (update := decode(event.data).artifact_update) is not None
        ]
        remaining = iter(written)
        for text in self.durable_chunks.get(task_id, []):
            assert text in remaining, (text, written)

    @invariant()
    def every_reader_has_seen_everything_once_in_order(self) -> None:
        for reader in self.readers:
            self.run(self._check_reader(reader))

    async def _check_reader(self, reader: Reader) -> None:
        log = (await self.engine.read(reader.task_id, SCOPE, reader.after)).events
        await self.settle()
        both = min(len(reader.seen), len(log))  # it may have seen more since the log was read
        assert reader.seen[:both] == log[:both]
        if not reader.task.done():
            while len(reader.seen) < len(log):
                await asyncio.sleep(0)
            assert reader.seen[: len(log)] == log

    def teardown(self) -> None:
        try:
            self.run(self._finish())
        finally:
            self.runner.close()
            self.folder.cleanup()

    async def _finish(self) -> None:
        """Nothing is stuck: given working processes, every task comes to an end or waits for its user."""
        await self._reap()
        while (running := self._running(0)) is not None:
            await self._command(running, "complete", {})
        for task_id in self.tasks:
            state = (await self.engine.load(task_id, SCOPE)).state
            assert state in TERMINAL_STATES | PAUSED_STATES, state
        await self._abandon_cancels()
        await self.close_readers()
        await self.stack.aclose()
        await self.engine.close()
