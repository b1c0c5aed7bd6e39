"""Tasks whose stored data cannot be read, as their owners meet them: failed, and in nobody's way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from errands import A2AClient, A2AServer, Settings, TaskContext, Worker
from errands.clock import system_clock
from errands.engines.base import Engine
from errands.engines.damage import EXPLANATION
from errands.engines.memory import MemoryEngine
from errands.engines.urls import engine_from_url
from errands.errors import TaskNotCancelableError, UnsupportedOperationError
from errands.model.base import encode
from errands.model.core import Message, Part, Role, StreamResponse, Task, TaskState, TaskStatus, text_of
from errands.model.log import Change, Draft
from errands.testing import connect, serve
from tests.conftest import STORAGES
from tests.damage import GARBAGE, MISFIT, damage_event, damage_head
from tests.interaction.agents import Asks, Echo, Gated
from tests.interaction.conftest import Dialect
from tests.waiting import SOON

pytestmark = pytest.mark.anyio

Damage = Callable[[Engine, str], Awaitable[None]]


async def damage_log(engine: Engine, task_id: str) -> None:
    await damage_event(engine, task_id, 2)


async def damage_content(engine: Engine, task_id: str) -> None:
    """Damages what a task that rests is read from: its snapshot, or in memory its log."""
    await damage_event(engine, task_id, 1 if isinstance(engine, MemoryEngine) else 0, GARBAGE)


async def lose_messages(engine: Engine, task_id: str) -> None:
    """Leaves a task that can be read, and in which nobody has said anything."""
    task = Task(id=task_id, status=TaskStatus(state=TaskState.SUBMITTED))
    await damage_event(engine, task_id, 1, encode(StreamResponse(task=task)))


async def mix_up(engine: Engine, task_id: str) -> None:
    """Puts the beginning of another task into the log."""
    said = Message(message_id="m", role=Role.USER, parts=[Part(text="hi")])
    task = Task(id="another", status=TaskStatus(state=TaskState.SUBMITTED), history=[said])
    await damage_event(engine, task_id, 1, encode(StreamResponse(task=task)))


@pytest.fixture(params=[name for name in STORAGES if name != "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A storage URL of each engine that outlives a server."""
    return STORAGES[request.param](tmp_path)


async def refused(client: A2AClient, task_id: str) -> None:
    """The task has failed, whatever its owner tries."""
    found = await client.get_task(task_id)
    assert found.state == "failed"
    assert found.raw_task is not None
    assert found.raw_task.status.message is not None
    assert text_of(found.raw_task.status.message.parts) == EXPLANATION
    with pytest.raises(TaskNotCancelableError, match="already failed"):
        await client.cancel(task_id)
    with pytest.raises(UnsupportedOperationError, match="already failed"):
        await client.send("and now?", task_id=task_id)
    async with asyncio.timeout(SOON):
        for last_event_id in (None, "0", "1"):
            events = [event async for event in client.subscribe(task_id, last_event_id=last_event_id)]
            assert events[-1].state == "failed"


@pytest.mark.parametrize("damage", [damage_log, damage_head, lose_messages, mix_up])
async def test_after_a_restart_a_damaged_task_has_failed_and_those_beside_it_complete(
    store: str, damage: Damage
) -> None:
    settings = Settings(drain_timeout=0.01)
    worker = Gated()
    async with connect(worker, storage=store, settings=settings) as client:
        ids = [(await client.send("go", blocking=False)).task_id for _ in range(5)]
        await worker.started.wait()
    bad = ids.pop(2)
    async with engine_from_url(store) as engine:
        await damage(engine, bad)
    worker = Gated()
    worker.gate.set()
    async with connect(worker, storage=store, settings=settings) as client, asyncio.timeout(SOON):
        for task_id in ids:
            async for _ in client.subscribe(task_id):
                pass
            assert (await client.get_task(task_id)).state == "completed"
        states = {task.task_id: task.state async for task in client.list_tasks()}
        assert states == {**dict.fromkeys(ids, "completed"), bad: "failed"}
        await refused(client, bad)
        assert (await client.send("another")).completed


async def test_a_completed_task_that_was_damaged_has_failed(storage: str) -> None:
    server = serve(Echo(), storage=storage)
    async with connect(server) as client:
        good, bad = [await client.send(word) for word in ("good", "bad")]
        await damage_content(server.engine, bad.task_id)
        await refused(client, bad.task_id)
        states = {task.task_id: task.state async for task in client.list_tasks()}
        assert states == {good.task_id: "completed", bad.task_id: "failed"}
        assert [task.task_id async for task in client.list_tasks(status="completed")] == [good.task_id]


async def test_a_paused_task_that_was_damaged_ends_when_its_owner_answers(storage: str) -> None:
    server = serve(Asks(), storage=storage)
    async with connect(server) as client:
        asked = await client.send("say hello")
        await damage_content(server.engine, asked.task_id)
        await refused(client, asked.task_id)
        assert [task.task_id async for task in client.list_tasks(status="failed")] == [asked.task_id]


class Chatty(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        for number in range(4):
            await ctx.emit_text_artifact(f"{number} ", append=bool(number))
        await ctx.complete("done")


@asynccontextmanager
async def speaking(dialect: Dialect, server: A2AServer) -> AsyncIterator[A2AClient]:
    async with connect(server, client={"protocol": dialect.binding, "version": dialect.version}) as client:
        yield client


async def test_a_stream_passes_over_an_event_that_cannot_be_read(dialect: Dialect, tmp_path: Path) -> None:
    """The snapshot has what the event said, so the task is shown as it is."""
    server = serve(Chatty(), storage=STORAGES["sqlite"](tmp_path), grpc_port=0)
    async with speaking(dialect, server) as client, asyncio.timeout(SOON):
        task = await client.send("go")
        await damage_event(server.engine, task.task_id, 4, GARBAGE)
        (shown,) = [event async for event in client.subscribe(task.task_id, last_event_id="1")]
        assert (shown.kind, shown.state) == ("task", "completed")


async def test_a_reader_is_told_when_what_was_just_written_cannot_be_read(dialect: Dialect) -> None:
    worker = Gated()
    server = serve(worker, grpc_port=0)
    async with speaking(dialect, server) as client, asyncio.timeout(SOON):
        task = await client.send("go", blocking=False)
        await worker.started.wait()
        events = client.subscribe(task.task_id)
        await anext(events)
        engine = server.engine
        await engine.commit(
            Change(
                task_id=task.task_id,
                scope=server.scope(),
                events=(Draft("status", MISFIT),),
                fence=1,
                at=engine.clock(),
            )
        )
        assert [event.state async for event in events][-1] == "failed"
        worker.gate.set()


async def test_a_task_whose_request_cannot_be_read_fails_and_is_not_tried_for_ever(store: str) -> None:
    settings = Settings(drain_timeout=0.01)
    worker = Gated()
    async with connect(worker, storage=store, settings=settings) as client:
        task = await client.send("go", blocking=False, accepted_output_modes=["text/plain"])
        await worker.started.wait()
    server = serve(worker, storage=store, settings=settings)
    scope = server.scope()
    async with engine_from_url(store) as engine:
        (request,) = [event for event in (await engine.read(task.task_id, scope, 0)).events if event.kind == "request"]
        await damage_event(engine, task.task_id, request.version, GARBAGE)
        assert not (await engine.load(task.task_id, scope)).damage
    async with connect(server) as client, asyncio.timeout(SOON):
        async for _ in client.subscribe(task.task_id):
            pass
        found = await client.get_task(task.task_id)
        assert found.state == "failed"
        assert found.raw_task is not None
        assert found.raw_task.status.message is not None
        assert text_of(found.raw_task.status.message.parts) == EXPLANATION


class Records(Worker):
    """Records a call of a capability in every turn."""

    async def handle(self, ctx: TaskContext) -> None:
        async with ctx.capability("search"):
            pass
        await ctx.request_input("And now?")


async def test_a_task_whose_records_cannot_be_read_fails_in_its_next_turn(storage: str) -> None:
    server = serve(Records(), storage=storage)
    async with connect(server) as client, asyncio.timeout(SOON):
        task = await client.send("go")
        assert task.input_required
        record = (await server.engine.records(task.task_id, server.scope()))[-1]
        await damage_event(server.engine, task.task_id, record.version, GARBAGE)
        assert (await client.send("again", task_id=task.task_id)).state == "failed"


class Remembers(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        known = await ctx.load_context()
        await ctx.update_context({"said": ctx.user_text})
        await ctx.complete(str(known))


async def test_a_conversation_goes_on_without_what_cannot_be_read(
    storage: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(Remembers(), storage=storage)
    async with connect(server) as client:
        task = await client.send("one", context_id="c")
        change = Change(task_id=task.task_id, scope=server.scope(), context_id="c", context=GARBAGE, at=system_clock())
        await server.engine.commit(change)
        assert (await client.send("two", context_id="c")).text == "None"
        assert "context c cannot be read" in caplog.text
        assert (await client.send("three", context_id="c")).text == "{'said': 'two'}"
