"""The random interleavings of `interleavings.py` with an executor: held pauses, cancels with `cancel`, and all.

Beyond what holds for every worker: `execute` never runs twice at a time for a task, and no caller is told of a race.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from errands import AgentExecutor, EventQueue, ExecutorWorker, IDGenerator, IDGeneratorContext, RequestContext
from errands.engines.base import Engine
from errands.engines.sqlite import SQLiteEngine
from errands.errors import A2AError, ErrandsError, TaskNotFoundError
from errands.model.core import TERMINAL_STATES, Message, Part, Role, TaskState
from errands.model.log import Event
from errands.model.requests import SendMessageConfiguration, SendMessageRequest
from errands.runtime.call import CallContext
from errands.runtime.executor import Identifiers
from errands.runtime.handler import Handler
from errands.runtime.journal import Journal, new_id
from errands.runtime.pool import WorkerPool
from errands.runtime.settings import Settings
from errands.runtime.task_manager import TaskManager
from tests.soak import examples
from tests.unit.executor.agents import new_task, updater_of, words
from tests.unit.interleavings import LEASE_S, SCOPE, Lifecycle, common, decode

ENDS = ("complete", "failed", "reject")
PAUSES = ("requires_input", "requires_auth")


class Scripted(AgentExecutor):
    """Publishes what the test says, one command at a time."""

    def __init__(self) -> None:
        self.turns: dict[str, tuple[Any, asyncio.Queue[tuple[str, Any, asyncio.Future[Any]]]]] = {}

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None
        assert context.task_id not in self.turns, "executed twice at a time"
        inbox: asyncio.Queue[tuple[str, Any, asyncio.Future[Any]]] = asyncio.Queue()
        self.turns[context.task_id] = (event_queue, inbox)
        try:
            while True:
                command, argument, done = await inbox.get()
                if command in ("return", "raise"):
                    done.set_result(None)
                    break
                try:
                    await self._publish(context, event_queue, command, argument)
                except BaseException as error:
                    done.set_result(error)
                    raise
                done.set_result(None)
        finally:
            del self.turns[context.task_id]
        if command == "raise":
            raise RuntimeError("the executor breaks")

    async def _publish(self, context: RequestContext, queue: EventQueue, command: str, argument: Any) -> None:
        if command == "task":
            await queue.enqueue_event(new_task(context, TaskState.WORKING, metadata={"again": new_id()}))
        elif command == "message":
            await queue.enqueue_event(words("whole"))
        else:
            await getattr(updater_of(context, queue), command)(**argument)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id not in self.turns, "cancel is called when execute is over"
        await asyncio.sleep(0)


class Counting(IDGenerator):
    def __init__(self) -> None:
        self.given: list[str] = []

    def generate(self, context: IDGeneratorContext) -> str:
        self.given.append(f"t{len(self.given)}")
        return self.given[-1]


class Executions(Lifecycle):
    def __init__(self) -> None:
        self.ids = Counting()
        super().__init__()

    async def boot(self) -> None:
        self.worker: Any = Scripted()
        options = Settings(lease_seconds=LEASE_S, poll_interval=3600, cancel_force_timeout=3600, max_attempts=1000)
        self.journal = Journal(self.engine)
        self.pool = WorkerPool(self.engine, options)
        self.pool.add(Handler("agent", ExecutorWorker(self.worker), self.journal, options))
        self.stack = AsyncExitStack()
        await self.stack.enter_async_context(self.pool)
        self.manager = TaskManager(
            self.pool, "agent", input_modes=[], settings=options, identifiers=Identifiers(tasks=self.ids)
        )
        await self.settle()

    @rule(blocking=st.booleans())
    def send(self, blocking: bool = False) -> None:
        self.run(self._request(None, blocking))

    @rule(pick=st.integers(0, 99), blocking=st.booleans())
    def follow_up(self, pick: int, blocking: bool = False) -> None:
        if self.tasks:
            self.run(self._request(self.tasks[pick % len(self.tasks)], blocking))

    async def _request(self, task_id: str | None, blocking: bool) -> None:
        """Sends, and does not wait for the answer: it may depend on what the executor publishes later."""
        self.clock.advance(ms=1)
        message = Message(message_id=new_id(), role=Role.USER, parts=[Part(text="hi")], task_id=task_id)
        configuration = SendMessageConfiguration(return_immediately=not blocking)
        accepted = asyncio.Event()
        call = CallContext(scope=SCOPE, on_accepted=accepted.set)
        sending = asyncio.ensure_future(
            self.manager.send_message(SendMessageRequest(message=message, configuration=configuration), call)
        )
        sending.add_done_callback(lambda _: accepted.set())
        self.cancels.append(sending)
        await accepted.wait()
        if task_id is None:
            self.tasks.append(self.ids.given[-1])
        await self.settle()

    @rule(pick=st.integers(0, 99), text=st.text("abc", min_size=1, max_size=3), append=st.booleans())
    def chunk(self, pick: int, text: str, append: bool) -> None:
        if (task_id := self._running(pick)) is not None:
            argument = {"parts": [Part(text=text)], "artifact_id": "a", "append": append}
            if self.run(self._command(task_id, "add_artifact", argument)) is None:
                # Once everybody waits it is in the log.
                self.durable_chunks.setdefault(task_id, []).append(text)

    @rule(pick=st.integers(0, 99), command=st.sampled_from(["start_work", "submit", "task", "message"]))
    def progress(self, pick: int, command: str) -> None:
        if (task_id := self._running(pick)) is not None:
            self.run(self._command(task_id, command, {}))

    @rule(pick=st.integers(0, 99), pause=st.sampled_from(PAUSES))
    def pause(self, pick: int, pause: str) -> None:
        if (task_id := self._running(pick)) is not None:
            self.run(self._command(task_id, pause, {}))

    @rule(pick=st.integers(0, 99), ending=st.sampled_from([*ENDS, "return", "return", "raise"]))
    def end_turn(self, pick: int, ending: str) -> None:
        if (task_id := self._running(pick)) is not None:
            self.run(self._command(task_id, ending, {}))

    def _check_transitions(self, log: list[Event]) -> None:
        state = TaskState.UNSPECIFIED
        for event in log:
            if event.kind in ("task", "status"):
                response = decode(event.data)
                changed = response.task or response.status_update
                assert changed is not None
                assert state not in TERMINAL_STATES
                state = changed.status.state

    @invariant()
    def no_caller_is_told_of_a_race(self) -> None:
        for call in self.cancels:
            if call.done() and not call.cancelled() and (error := call.exception()) is not None:
                assert isinstance(error, A2AError), error
                assert not isinstance(error, TaskNotFoundError), error

    async def _finish(self) -> None:
        await self._reap()
        while (running := self._running(0)) is not None:
            done = await self._command(running, "complete", {})
            assert done is None or isinstance(done, ErrandsError | asyncio.CancelledError)
            if running in self.worker.turns:
                await self._command(running, "return", {})
        for task_id in self.tasks:
            assert (await self.engine.load(task_id, SCOPE)).head.worker == "", "let go of"
        if self.cancels:
            _, waiting = await asyncio.wait(self.cancels, timeout=60)
            assert not waiting, "whoever asked has an answer"
        await super()._finish()


class ExecutionsInSQLite(Executions):
    reopens = True

    def make_engine(self) -> Engine:
        return SQLiteEngine(Path(self.folder.name) / "tasks.db", clock=self.clock)


TestExecutionsInMemory = pytest.mark.timeout(240)(Executions.TestCase)
TestExecutionsInMemory.settings = settings(max_examples=examples(100), stateful_step_count=40, **common)  # type: ignore[arg-type]
TestExecutionsInSQLite = pytest.mark.timeout(240)(ExecutionsInSQLite.TestCase)
TestExecutionsInSQLite.settings = settings(max_examples=examples(25), stateful_step_count=40, **common)  # type: ignore[arg-type]
