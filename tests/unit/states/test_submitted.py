"""submitted: the task has been created and enqueued for processing."""

from __future__ import annotations

import pytest

from errands import TaskContext
from errands.engines.urls import engine_from_url
from errands.testing import ManualClock, connect, http_client, serve
from tests.unit.support import LIFECYCLE, Agent, Gate, log_of, opening, reaches, running, stream

pytestmark = pytest.mark.anyio


async def test_a_stream_begins_with_the_submitted_task(storage: str) -> None:
    events = await stream(lambda ctx: ctx.complete(), storage=storage)
    assert (events[0].kind, events[0].state) == ("task", "submitted")


async def test_a_send_creates_a_submitted_task_and_the_worker_then_takes_it_to_working(storage: str) -> None:
    server = serve(Agent(lambda ctx: ctx.complete()), storage=storage)
    async with connect(server) as client:
        task = await client.send("hi")
        log = await log_of(server.engine, task.task_id)
    assert [event.kind for event in log] == ["task", "status", "status"]
    assert b"TASK_STATE_SUBMITTED" in log[0].data
    assert b"TASK_STATE_WORKING" in log[1].data
    assert b"TASK_STATE_COMPLETED" in log[2].data


async def test_a_task_waits_in_submitted_until_a_worker_is_free(storage: str) -> None:
    gate = Gate()

    async def handle(ctx: TaskContext) -> None:
        await gate()
        await ctx.complete()

    async with running(handle, storage, max_concurrent_tasks=1) as client:
        await client.send("in front", blocking=False)
        await gate.reached.wait()
        behind = await client.send("behind", blocking=False)
        assert behind.state == "submitted"
        assert (await client.get_task(behind.task_id)).state == "submitted"
        gate.open()
        assert (await reaches(client, behind.task_id, "completed")).completed


async def test_submitted_tasks_are_taken_up_in_the_order_they_came(storage: str) -> None:
    gate, clock = Gate(), ManualClock()
    order: list[str] = []
    texts = [str(number) for number in range(5)]
    engine = engine_from_url(storage)
    engine.clock = clock

    async def handle(ctx: TaskContext) -> None:
        await gate()
        order.append(ctx.user_text)
        await ctx.complete()

    async with connect(Agent(handle), storage=engine, max_concurrent_tasks=1) as client:
        await client.send("in front", blocking=False)
        await gate.reached.wait()
        tasks = []
        for text in texts:
            tasks.append(await client.send(text, blocking=False))
            clock.advance(ms=1)
        gate.open()
        for task in tasks:
            await reaches(client, task.task_id, "completed")
    assert order == ["in front", *texts]


async def test_a_task_cannot_be_created_without_being_enqueued(storage: str) -> None:
    engine = engine_from_url(storage)
    async with engine:
        await engine.commit(opening())
        (claimed,) = await engine.claim("somebody", ["Test agent"], 10, 2**50)
    assert claimed.task.id == "t1"


async def test_a_submitted_task_is_taken_up_after_a_restart(storage: str) -> None:
    engine = engine_from_url(storage)
    async with engine:
        await engine.commit(opening())
    async with connect(Agent(lambda ctx: ctx.complete(ctx.user_text)), storage=engine) as client:
        assert (await reaches(client, "t1", "completed")).text == "hi"


@pytest.mark.parametrize("pause", ["request_input", "request_auth"])
async def test_a_follow_up_returns_a_paused_task_to_submitted_and_enqueues_it_again(pause: str, storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await (ctx.complete() if ctx.history else LIFECYCLE[pause][0](ctx))

    server = serve(Agent(handle), storage=storage)
    async with connect(server) as client:
        task_id = (await client.send("one")).task_id
        await client.send("two", task_id=task_id)
        log = await log_of(server.engine, task_id)
    assert [event.kind for event in log] == ["task", "status", "status", "status", "message", "status", "status"]
    assert b"TASK_STATE_SUBMITTED" in log[3].data
    assert b"TASK_STATE_WORKING" in log[5].data


@pytest.mark.parametrize("pause", ["request_input", "request_auth"])
async def test_a_resubmitted_task_waits_for_a_worker_like_a_new_one(pause: str, storage: str) -> None:
    gate = Gate()

    async def handle(ctx: TaskContext) -> None:
        if ctx.user_text == "busy":
            await gate()
        await (ctx.complete(ctx.user_text) if ctx.history or ctx.user_text == "busy" else LIFECYCLE[pause][0](ctx))

    async with running(handle, storage, max_concurrent_tasks=1) as client:
        paused = await client.send("one")
        await client.send("busy", blocking=False)
        await gate.reached.wait()
        waiting = await client.send("two", task_id=paused.task_id, blocking=False)
        assert waiting.state == "submitted"
        gate.open()
        assert (await reaches(client, paused.task_id, "completed")).text == "two"


async def test_a_cancel_before_a_worker_picks_it_up_is_at_once_and_the_worker_never_sees_it(storage: str) -> None:
    gate = Gate()
    seen: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(ctx.user_text)
        await gate()
        await ctx.complete()

    async with running(handle, storage, max_concurrent_tasks=1) as client:
        in_front = await client.send("in front", blocking=False)
        await gate.reached.wait()
        behind = await client.send("behind", blocking=False)
        canceled = await client.cancel(behind.task_id)
        gate.open()
        await reaches(client, in_front.task_id, "completed")
        last = await client.send("last")
        assert (await client.get_task(behind.task_id)).canceled
    assert canceled.canceled
    assert last.completed
    assert seen == ["in front", "last"]


async def test_a_message_to_a_submitted_task_waits_with_it(storage: str) -> None:
    gate = Gate()
    seen: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        await gate()
        seen.append(ctx.user_text)
        await ctx.complete()

    async with running(handle, storage, max_concurrent_tasks=1) as client:
        await client.send("in front", blocking=False)
        await gate.reached.wait()
        behind = await client.send("behind", blocking=False)
        more = await client.send("more", task_id=behind.task_id, blocking=False)
        assert more.state == "submitted"
        gate.open()
        await reaches(client, behind.task_id, "completed")
    assert seen == ["in front", "behind", "more"]


async def test_the_wire_says_task_state_submitted(storage: str) -> None:
    gate = Gate()

    async def handle(ctx: TaskContext) -> None:
        await gate()
        await ctx.complete()

    server = serve(Agent(handle), storage=storage, max_concurrent_tasks=1)
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "behind"}]}
    body = {"message": message, "configuration": {"returnImmediately": True}}
    async with connect(server) as client, http_client(server) as http:
        await client.send("in front", blocking=False)
        await gate.reached.wait()
        task = (await http.post("/message:send", json=body)).json()["task"]
        gate.open()
        await reaches(client, task["id"], "completed")
    assert task["status"]["state"] == "TASK_STATE_SUBMITTED"
