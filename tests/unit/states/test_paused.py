"""Paused states: waiting for the user; a follow-up re-submits the task."""

from __future__ import annotations

import pytest

from errands import TaskContext
from errands.engines.urls import engine_from_url
from errands.testing import connect, http_client, serve
from tests.unit.support import ANYBODY, LIFECYCLE, Agent, run, running, spoken

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("pause", ["request_input", "request_auth"])]


class Asking:
    """A handler that pauses in its first turn and finishes in its second."""

    def __init__(self, pause: str) -> None:
        self._pause = LIFECYCLE[pause][0]
        self.state = LIFECYCLE[pause][1]

    async def __call__(self, ctx: TaskContext) -> None:
        await (ctx.complete(f"with {ctx.user_text}") if ctx.history else self._pause(ctx))


async def test_a_paused_task_has_not_ended(pause: str, storage: str) -> None:
    assert not (await run(LIFECYCLE[pause][0], storage=storage)).is_terminal


async def test_the_follow_up_is_the_message_of_the_next_turn_and_joins_the_history(pause: str, storage: str) -> None:
    async with running(Asking(pause), storage) as client:
        paused = await client.send("do it")
        done = await client.send("that", task_id=paused.task_id)
    assert done.text == "with that"
    assert spoken(done) == [*spoken(paused), "that"]


async def test_only_messages_of_the_user_role_are_received(pause: str, storage: str) -> None:
    handle = Asking(pause)
    server = serve(Agent(handle), storage=storage)
    message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "do it"}]}
    async with server, http_client(server) as http:
        task_id = (await http.post("/message:send", json={"message": message})).json()["task"]["id"]
        agent = {**message, "messageId": "m2", "role": "ROLE_AGENT", "taskId": task_id}
        refused = await http.post("/message:send", json={"message": agent})
        stored = await server.engine.load(task_id, ANYBODY)
    assert refused.status_code == 400
    assert refused.json()["error"]["details"][1]["fieldViolations"][0]["field"] == "message.role"
    assert stored.state.short == handle.state


async def test_a_paused_task_survives_a_restart_and_goes_on(pause: str, storage: str) -> None:
    handle = Asking(pause)
    engine = engine_from_url(storage)
    async with connect(Agent(handle), storage=engine) as client:
        task_id = (await client.send("do it")).task_id
    async with connect(Agent(handle), storage=engine) as client:
        assert (await client.get_task(task_id)).state == handle.state
        assert (await client.send("that", task_id=task_id)).text == "with that"


async def test_a_task_may_pause_again_and_again(pause: str, storage: str) -> None:
    call, state = LIFECYCLE[pause]

    async def handle(ctx: TaskContext) -> None:
        await (ctx.complete() if len(ctx.history) >= 4 else call(ctx))

    async with running(handle, storage) as client:
        task_id = (await client.send("one")).task_id
        assert (await client.send("two", task_id=task_id)).state == state
        assert (await client.send("three", task_id=task_id)).completed


async def test_a_paused_task_keeps_its_artifacts_and_later_turns_may_go_on_with_them(pause: str, storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        if ctx.history:
            await ctx.emit_text_artifact(" and the rest", append=True)
            await ctx.complete()
            return
        await ctx.emit_text_artifact("the beginning")
        await LIFECYCLE[pause][0](ctx)

    async with running(handle, storage) as client:
        paused = await client.send("one")
        done = await client.send("yes", task_id=paused.task_id)
    assert paused.artifacts[0].text == "the beginning"
    assert done.artifacts[0].text == "the beginning and the rest"


async def test_a_stream_of_the_follow_up_shows_the_turn_that_it_causes(pause: str, storage: str) -> None:
    async with running(Asking(pause), storage) as client:
        task_id = (await client.send("do it")).task_id
        events = [event async for event in client.stream("that", task_id=task_id)]
    assert events[0].kind == "task"
    assert [event.text for event in events if event.kind == "artifact"] == ["with that"]
    assert events[-1].state == "completed"


async def test_no_worker_is_held_while_a_task_is_paused(pause: str, storage: str) -> None:
    async with running(Asking(pause), storage, max_concurrent_tasks=1) as client:
        paused = [await client.send("do it") for _ in range(3)]
        for task in paused:
            assert (await client.send("that", task_id=task.task_id)).completed
