"""auth_required: the agent needs authentication credentials."""

from __future__ import annotations

import pytest

from errands import TaskContext
from errands.engines.urls import engine_from_url
from errands.model.core import TaskState
from errands.model.log import Scope
from errands.testing import connect, http_client, serve
from tests.unit.support import Agent, first, run, running, said, spoken

pytestmark = pytest.mark.anyio


async def ask_then_finish(ctx: TaskContext) -> None:
    await (ctx.complete(f"with {ctx.user_text}") if ctx.history else ctx.request_auth("with what?"))


async def test_auth_required_is_reached_via_request_auth(storage: str) -> None:
    result = await run(lambda ctx: ctx.request_auth("with what?"), storage=storage)
    assert result.auth_required
    assert said(result) == "with what?"


async def test_auth_required_is_paused_and_not_terminal(storage: str) -> None:
    assert not (await run(lambda ctx: ctx.request_auth("with what?"), storage=storage)).is_terminal


async def test_a_follow_up_message_takes_the_task_back_to_submitted_and_on(storage: str) -> None:
    async with running(ask_then_finish, storage) as client:
        task_id = (await client.send("do it")).task_id
        following = client.subscribe(task_id)
        assert (await anext(following)).state == "auth-required"
        done = await client.send("that", task_id=task_id)
        states = [event.state async for event in following if event.state]
    assert states == ["submitted", "working", "completed"]
    assert done.text == "with that"


async def test_the_follow_up_is_the_message_of_the_next_turn_and_joins_the_history(storage: str) -> None:
    async with running(ask_then_finish, storage) as client:
        task_id = (await client.send("do it")).task_id
        done = await client.send("that", task_id=task_id)
    assert spoken(done) == ["do it", "with what?", "that"]


async def test_only_the_user_can_answer(storage: str) -> None:
    server = serve(Agent(ask_then_finish), storage=storage)
    message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "do it"}]}
    async with server, http_client(server) as http:
        task_id = (await http.post("/message:send", json={"message": message})).json()["task"]["id"]
        agent = {**message, "messageId": "m2", "role": "ROLE_AGENT", "taskId": task_id}
        refused = await http.post("/message:send", json={"message": agent})
        stored = await server.engine.load(task_id, Scope())
    assert refused.status_code == 400
    assert refused.json()["error"]["details"][1]["fieldViolations"][0]["field"] == "message.role"
    assert stored.state is TaskState.parse("auth-required")


async def test_a_paused_task_survives_a_restart_and_goes_on(storage: str) -> None:
    engine = engine_from_url(storage)
    async with connect(Agent(ask_then_finish), storage=engine) as client:
        task_id = (await client.send("do it")).task_id
    async with connect(Agent(ask_then_finish), storage=engine) as client:
        assert (await client.get_task(task_id)).auth_required
        assert (await client.send("that", task_id=task_id)).text == "with that"


async def test_a_paused_task_may_pause_again(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await (ctx.complete() if len(ctx.history) >= 4 else ctx.request_auth("and now?"))

    async with running(handle, storage) as client:
        task_id = (await client.send("one")).task_id
        assert (await client.send("two", task_id=task_id)).auth_required
        assert (await client.send("three", task_id=task_id)).completed


async def test_a_paused_task_keeps_its_artifacts(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        if ctx.history:
            await ctx.emit_text_artifact(" and the rest", append=True)
            await ctx.complete()
            return
        await ctx.emit_text_artifact("the beginning")
        await ctx.request_auth("go on?")

    async with running(handle, storage) as client:
        paused = await client.send("one")
        done = await client.send("yes", task_id=paused.task_id)
    assert paused.artifacts[0].text == "the beginning"
    assert done.artifacts[0].text == "the beginning and the rest"


async def test_a_stream_of_the_follow_up_shows_the_turn_that_it_causes(storage: str) -> None:
    async with running(ask_then_finish, storage) as client:
        task_id = (await client.send("do it")).task_id
        events = [event async for event in client.stream("that", task_id=task_id)]
    assert events[0].kind == "task"
    assert [event.text for event in events if event.kind == "artifact"] == ["with that"]
    assert events[-1].state == "completed"


async def test_no_worker_is_held_while_the_task_is_paused(storage: str) -> None:
    async with running(ask_then_finish, storage, max_concurrent_tasks=1) as client:
        paused = [await client.send("do it") for _ in range(3)]
        for task in paused:
            assert (await client.send("that", task_id=task.task_id)).completed


async def test_a_subscriber_stays_over_the_pause(storage: str) -> None:
    async with running(ask_then_finish, storage) as client:
        task_id = (await client.send("do it")).task_id
        following = client.subscribe(task_id)
        await anext(following)
        await client.send("that", task_id=task_id)
        ending = await first(following, lambda event: event.kind == "status" and event.is_final)
    assert ending.state == "completed"
