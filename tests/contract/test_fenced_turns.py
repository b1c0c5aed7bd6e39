"""What a handler or an executor can still do when its task is no longer its own: read, and write nothing."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from errands import AgentExecutor, EventQueue, RequestContext, TaskContext, TaskUpdater
from errands.engines.base import Engine
from errands.errors import LeaseLostError, TaskTerminalStateError, TurnError
from errands.model.core import Message, Part, Role, Task, TaskState, TaskStatus
from errands.model.log import StoredTask
from errands.policy.agent_oversight import AgentOversight
from errands.policy.document import CompiledPolicy, compile_policy
from errands.runtime.executor import ServerCallContext, turn_overseer
from errands.runtime.executor_worker import TurnQueue
from errands.runtime.journal import Journal
from errands.runtime.turn import Turn
from tests.contract.changes import AGENT, LEASE_MS, ME, Changes, ManualClock, context_of, log_of
from tests.unit.oversight.support import after

pytestmark = pytest.mark.anyio


async def write_artifact(ctx: TaskContext) -> None:
    await ctx.artifact("report").write("text")


async def seal_artifact(ctx: TaskContext) -> None:
    await ctx.artifact("report").seal()


async def call_capability(ctx: TaskContext | RequestContext) -> None:
    async with ctx.capability("search"):
        pass


Write = Callable[[Any], Awaitable[object]]
CONTEXT_WRITES: dict[str, list[Write]] = {
    "complete": [lambda ctx: ctx.complete(), lambda ctx: ctx.complete("text")],
    "complete_json": [lambda ctx: ctx.complete_json({})],
    "respond": [lambda ctx: ctx.respond(), lambda ctx: ctx.respond("text")],
    "reply_directly": [lambda ctx: ctx.reply_directly("text")],
    "fail": [lambda ctx: ctx.fail("reason")],
    "reject": [lambda ctx: ctx.reject(), lambda ctx: ctx.reject("reason")],
    "request_input": [lambda ctx: ctx.request_input("which?")],
    "request_auth": [lambda ctx: ctx.request_auth(), lambda ctx: ctx.request_auth("who?")],
    "send_status": [lambda ctx: ctx.send_status("half way")],
    "emit_artifact": [lambda ctx: ctx.emit_artifact(artifact_id="a", text="text")],
    "emit_text_artifact": [lambda ctx: ctx.emit_text_artifact("text")],
    "emit_data_artifact": [lambda ctx: ctx.emit_data_artifact({})],
    "artifact": [write_artifact, seal_artifact],
    "update_context": [lambda ctx: ctx.update_context({"changed": True})],
    "record_llm": [lambda ctx: ctx.record_llm("model")],
    "capability": [call_capability],
}
CONTEXT_READS = {
    *("accepts", "answer", "attempt", "context_id", "data_parts", "deps", "files", "history", "is_cancelled"),
    *(
        "json_values",
        "load_context",
        "message",
        "message_extensions",
        "message_id",
        "metadata",
        "owner",
        "parts",
        "policy_context",
    ),
    *("previous_artifacts", "reference_task_ids", "request_context", "request_metadata", "requested_extensions"),
    *("task_id", "tenant", "turn_ended", "user_text"),
    # Files beside the log: what is stored changes nothing until an event refers to it.
    *("read_file", "store_file"),
}

UPDATER_WRITES: dict[str, list[Write]] = {
    "update_status": [lambda updater: updater.update_status(TaskState.WORKING)],
    "add_artifact": [lambda updater: updater.add_artifact([Part(text="text")])],
    **{
        name: [operator.methodcaller(name)]
        for name in (
            *("submit", "start_work", "complete", "failed", "fail", "reject", "cancel"),
            *("requires_input", "requires_auth"),
        )
    },
}
UPDATER_READS = {"new_agent_message"}

QUEUE_WRITES: dict[str, list[Write]] = {
    "enqueue_event": [
        lambda queue: queue.enqueue_event(Task(id="", status=TaskStatus(state=TaskState.WORKING))),
        lambda queue: queue.enqueue_event(Message(message_id="m", role=Role.AGENT, parts=[Part(text="text")])),
    ],
}
QUEUE_READS = {"is_closed", "close"}

REQUEST_WRITES: dict[str, list[Write]] = {
    "record_llm": [lambda context: context.record_llm("model")],
    "capability": [call_capability],
}
REQUEST_READS = {
    *("attach_related_task", "attempt", "call_context", "configuration", "context_id", "get_user_input", "message"),
    *("metadata", "policy_context", "related_tasks", "requested_extensions", "task_id", "tenant"),
}


@pytest.mark.parametrize(
    ("cls", "known"),
    [
        (TaskContext, {*CONTEXT_WRITES, *CONTEXT_READS}),
        (TaskUpdater, {*UPDATER_WRITES, *UPDATER_READS}),
        (EventQueue, {*QUEUE_WRITES, *QUEUE_READS}),
        (RequestContext, {*REQUEST_WRITES, *REQUEST_READS}),
        (AgentExecutor, {"execute", "cancel", "on_interrupted"}),
    ],
)
def test_every_member_is_known_to_these_tests(cls: type, known: set[str]) -> None:
    members = {name for each in cls.__mro__ for name in (*vars(each), *inspect.get_annotations(each))}
    assert {name for name in members if not name.startswith("_")} == known


async def written(ctx: TaskContext, write: Write, on: object) -> None:
    """Writes and waits until it is durable: a chunk that is refused is told by the next call, or by the turn's end."""
    await write(on)
    await ctx._turn.catch_up()


class Turns:
    """Turns of tasks, each in the same situation."""

    def __init__(self, engine: Engine, changes: Changes, clock: ManualClock) -> None:
        self.engine = engine
        self._changes = changes
        self._clock = clock
        self._count = 0

    async def begun(self, policy: CompiledPolicy | None = None) -> TaskContext:
        """The context of a turn that is under way, of a task of its own."""
        self._count += 1
        task_id = f"t{self._count}"
        await self.engine.commit(self._changes.start(task_id, context=b'"kept"'))
        stored: StoredTask = await self.engine.load(task_id, ME)
        turn = Turn(Journal(self.engine), stored, oversight=AgentOversight(policy))
        if policy is not None:
            turn.overseen()
        return TaskContext(turn)

    async def put(self, ctx: TaskContext, situation: str) -> None:
        if situation == "forced":
            await ctx._turn.cancel_by_force()
        elif situation == "ended":
            await ctx.complete("done")
        else:
            self._clock.advance(LEASE_MS)
            claimed = await self.engine.claim("another worker", [AGENT], 100, self._clock() + LEASE_MS)
            assert ctx.task_id in [stored.task.id for stored in claimed]

    async def refused(self, ctx: TaskContext, write: Write, on: object, situation: str) -> None:
        """Writes, and finds that it was refused and has left nothing behind."""
        before = await log_of(self.engine, ctx.task_id)
        with pytest.raises(SITUATIONS[situation]) as refusal:
            await (written(ctx, write, on) if situation == "lost" else write(on))
        assert type(refusal.value) is SITUATIONS[situation]
        assert await log_of(self.engine, ctx.task_id) == before
        assert await self.engine.load_context(ME, context_of(ctx.task_id)) == b'"kept"'


@pytest.fixture
def turns(engine: Engine, changes: Changes, clock: ManualClock) -> Turns:
    return Turns(engine, changes, clock)


#: What has become of the turn, and how writing is refused then.
SITUATIONS = {"forced": TaskTerminalStateError, "lost": LeaseLostError, "ended": TurnError}
situations = pytest.mark.parametrize("situation", SITUATIONS)


@situations
async def test_a_handler_can_write_nothing(turns: Turns, situation: str) -> None:
    for writes in CONTEXT_WRITES.values():
        for write in writes:
            ctx = await turns.begun()
            await turns.put(ctx, situation)
            await turns.refused(ctx, write, ctx, situation)


@situations
async def test_a_handler_that_had_streamed_before_can_write_nothing_either(turns: Turns, situation: str) -> None:
    for writes in CONTEXT_WRITES.values():
        for write in writes:
            ctx = await turns.begun()
            await ctx.emit_text_artifact("before")
            await ctx._turn.catch_up()
            await turns.put(ctx, situation)
            await turns.refused(ctx, write, ctx, situation)


@pytest.mark.parametrize("situation", ["forced", "ended"])
async def test_a_handler_whose_words_are_held_back_can_write_nothing(turns: Turns, situation: str) -> None:
    guarded = compile_policy(after({"assert": "true"}))
    for writes in CONTEXT_WRITES.values():
        for write in writes:
            ctx = await turns.begun(policy=guarded)
            await turns.put(ctx, situation)
            await turns.refused(ctx, write, ctx, situation)


@situations
async def test_a_handler_can_still_read(turns: Turns, situation: str) -> None:
    ctx = await turns.begun()
    await turns.put(ctx, situation)
    assert await ctx.load_context() == "kept"
    assert (ctx.user_text, ctx.turn_ended, ctx.answer(str)) == ("hello", situation != "lost", None)


@situations
async def test_an_executor_can_publish_nothing(turns: Turns, situation: str) -> None:
    for table, makes in ((UPDATER_WRITES, updater_of), (QUEUE_WRITES, queue_of)):
        for writes in table.values():
            for write in writes:
                ctx = await turns.begun()
                queue = queue_of(ctx)
                await turns.put(ctx, situation)
                if situation == "ended":
                    await queue.close()
                await turns.refused(ctx, write, makes(ctx, queue), situation)


@situations
async def test_the_queue_of_an_executor_says_that_it_is_closed(turns: Turns, situation: str) -> None:
    ctx = await turns.begun()
    queue = queue_of(ctx)
    assert not queue.is_closed()
    await turns.put(ctx, situation)
    if situation == "ended":
        await queue.close()
    elif situation == "lost":
        with pytest.raises(LeaseLostError):
            await written(ctx, UPDATER_WRITES["start_work"][0], updater_of(ctx, queue))
    assert queue.is_closed()


@situations
async def test_an_executor_can_record_nothing(turns: Turns, situation: str) -> None:
    for writes in REQUEST_WRITES.values():
        for write in writes:
            ctx = await turns.begun()
            context = RequestContext(ServerCallContext(), None, ctx.task_id, ctx.context_id)
            turn_overseer.set(ctx._turn.overseen)
            await turns.put(ctx, situation)
            await turns.refused(ctx, write, context, situation)


def queue_of(ctx: TaskContext, queue: EventQueue | None = None) -> EventQueue:
    return queue or TurnQueue(ctx._turn, task_known=False)


def updater_of(ctx: TaskContext, queue: EventQueue) -> TaskUpdater:
    return TaskUpdater(queue, ctx.task_id, ctx.context_id)
