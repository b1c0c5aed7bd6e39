"""working: the worker is actively processing the task."""

from __future__ import annotations

import asyncio

import pytest

from errands import Settings, TaskContext
from errands.engines.urls import engine_from_url
from errands.testing import ManualClock, connect, serve
from tests.unit.support import LIFECYCLE, Agent, Gate, reaches, running, stream

pytestmark = pytest.mark.anyio


async def test_a_task_is_working_while_its_handler_runs(storage: str) -> None:
    gate = Gate()

    async def handle(ctx: TaskContext) -> None:
        await gate()
        await ctx.complete()

    async with running(handle, storage) as client:
        task = await client.send("hi", blocking=False)
        await gate.reached.wait()
        assert (await client.get_task(task.task_id)).state == "working"
        gate.open()
        assert (await reaches(client, task.task_id, "completed")).completed


async def test_status_updates_and_artifacts_can_be_emitted_and_the_task_stays_working(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status("one")
        await ctx.emit_text_artifact("two", artifact_id="text")
        await ctx.emit_data_artifact({"n": 3}, artifact_id="data")
        await ctx.send_status("four")
        await ctx.complete()

    events = await stream(handle, storage=storage)
    assert [(event.kind, event.state) for event in events] == [
        ("task", "submitted"),
        ("status", "working"),
        ("status", "working"),
        ("artifact", None),
        ("artifact", None),
        ("status", "working"),
        ("status", "completed"),
    ]


@pytest.mark.parametrize("method", LIFECYCLE)
async def test_a_working_task_can_go_to_any_terminal_or_paused_state(method: str, storage: str) -> None:
    call, state = LIFECYCLE[method]
    events = await stream(call, storage=storage)
    assert [event.state for event in events if event.state] == ["submitted", "working", state]


async def test_a_working_task_can_be_canceled(storage: str) -> None:
    gate = Gate()

    async def handle(ctx: TaskContext) -> None:
        await gate()

    async with running(handle, storage, cancel_force_timeout=0.05) as client:
        task = await client.send("hi", blocking=False)
        assert (await client.cancel(task.task_id)).canceled


async def test_the_work_goes_on_when_the_client_that_sent_the_message_goes_away(storage: str) -> None:
    gate = Gate()

    async def handle(ctx: TaskContext) -> None:
        await gate()
        await ctx.complete("done all the same")

    async with running(handle, storage) as client:
        events = client.stream("hi")
        task_id = (await anext(events)).task_id or ""
        await events.aclose()
        gate.open()
        assert (await reaches(client, task_id, "completed")).text == "done all the same"


async def test_no_more_than_max_concurrent_tasks_run_at_the_same_time(storage: str) -> None:
    at_once = most = 0
    full = asyncio.Event()

    async def handle(ctx: TaskContext) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if at_once == 3:
            full.set()
        await full.wait()
        at_once -= 1
        await ctx.complete(ctx.user_text)

    async with running(handle, storage, max_concurrent_tasks=3) as client:
        results = await asyncio.gather(*(client.send(str(number)) for number in range(30)))
    assert most == 3
    assert [result.text for result in results] == [str(number) for number in range(30)]


async def test_follow_ups_count_as_running_tasks_too(storage: str) -> None:
    at_once = most = 0
    full = asyncio.Event()

    async def handle(ctx: TaskContext) -> None:
        nonlocal at_once, most
        if not ctx.history:
            await ctx.request_input("more?")
            return
        at_once += 1
        most = max(most, at_once)
        if at_once == 2:
            full.set()
        await full.wait()
        at_once -= 1
        await ctx.complete()

    async with running(handle, storage, max_concurrent_tasks=2) as client:
        paused = [await client.send(str(number)) for number in range(8)]
        results = await asyncio.gather(*(client.send("go on", task_id=task.task_id) for task in paused))
    assert most == 2
    assert all(result.completed for result in results)


async def test_a_place_that_becomes_free_is_given_to_a_waiting_task_at_once(storage: str) -> None:
    gates = {text: Gate() for text in ("a", "b", "c")}

    async def handle(ctx: TaskContext) -> None:
        await gates[ctx.user_text]()
        await ctx.complete()

    async with running(handle, storage, max_concurrent_tasks=2) as client:
        tasks = {"a": await client.send("a", blocking=False), "b": await client.send("b", blocking=False)}
        await gates["a"].reached.wait()
        await gates["b"].reached.wait()
        tasks["c"] = await client.send("c", blocking=False)
        assert tasks["c"].state == "submitted"
        assert not gates["c"].reached.is_set()
        gates["b"].open()
        await gates["c"].reached.wait()
        assert (await client.get_task(tasks["a"].task_id)).state == "working"
        gates["a"].open()
        gates["c"].open()
        for task in tasks.values():
            await reaches(client, task.task_id, "completed")


async def test_a_turn_that_does_not_finish_in_time_at_shutdown_is_given_back_and_run_again(storage: str) -> None:
    seen: list[int] = []
    begun = asyncio.Event()

    async def endless(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("half")
        begun.set()
        await asyncio.Event().wait()

    async def finishing(ctx: TaskContext) -> None:
        seen.append(ctx.attempt)
        await ctx.complete("whole")

    engine = engine_from_url(storage)
    async with connect(Agent(endless), storage=engine, settings=Settings(drain_timeout=0.05)) as client:
        task = await client.send("hi", blocking=False)
        await begun.wait()
    async with connect(Agent(finishing), storage=engine) as client:
        result = await reaches(client, task.task_id, "completed")
    assert seen == [2]
    assert [artifact.text for artifact in result.artifacts] == ["half", "whole"]


async def test_a_process_that_stood_still_for_longer_than_a_lease_goes_on_with_what_nobody_took_over(
    storage: str,
) -> None:
    begun: list[int] = []
    gate = Gate()

    async def handle(ctx: TaskContext) -> None:
        begun.append(ctx.attempt)
        await gate()
        await ctx.complete()

    clock = ManualClock()
    engine = engine_from_url(storage)
    engine.clock = clock
    server = serve(Agent(handle), storage=engine)
    async with connect(server) as client:
        [claims] = [task for task in asyncio.all_tasks() if task.get_name() == "errands-claims"]
        claims.cancel()
        task = await client.send("hi", blocking=False)
        await gate.reached.wait()
        await server.pool.poll()
        clock.advance(seconds=server.settings.lease_seconds)
        await server.pool.poll()
        gate.open()
        await reaches(client, task.task_id, "completed")
    assert begun == [1]
