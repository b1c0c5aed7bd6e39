"""Optimistic concurrency control: concurrent writers cannot corrupt a task."""

from __future__ import annotations

import asyncio

import pytest

from errands import ConcurrencyError, TaskContext
from errands.engines.urls import engine_from_url
from errands.errors import TaskTerminalStateError
from errands.model.core import TaskState
from errands.model.log import Draft
from errands.testing import connect, http_client, serve
from tests.cells import every_engine
from tests.contract.changes import versions
from tests.unit.support import (
    ANYBODY,
    Agent,
    Gate,
    bring,
    log_of,
    opening,
    reaches,
    running,
    spoken,
    status_draft,
    step,
)

pytestmark = [pytest.mark.anyio, every_engine]


async def test_the_version_is_incremented_on_every_write(storage: str) -> None:
    async with engine_from_url(storage) as engine:
        versions = [
            (await engine.commit(opening())).version,
            (await engine.commit(step("t1", TaskState.WORKING))).version,
            (await engine.commit(step("t1", TaskState.COMPLETED))).version,
        ]
        assert versions == [1, 2, 3]
        assert (await engine.load("t1", ANYBODY)).version == 3


async def test_the_version_is_the_position_of_the_last_event_in_the_log(storage: str) -> None:
    async with engine_from_url(storage) as engine:
        await bring(engine, TaskState.WORKING)
        three = (status_draft("t1", TaskState.WORKING),) * 3
        assert (await engine.commit(step("t1", TaskState.WORKING, events=three))).version == 5
        assert [event.version for event in await log_of(engine, "t1")] == [1, 2, 3, 4, 5]


async def test_the_version_is_the_id_a_stream_gives_its_events(storage: str) -> None:
    server = serve(Agent(lambda ctx: ctx.complete("done")), storage=storage)
    async with connect(server) as client:
        events = [event async for event in client.stream("hi")]
        version = (await server.engine.load(events[0].task_id or "", ANYBODY)).version
    assert [event.event_id for event in events] == ["1", "2", "3", "4"]
    assert version == 4


async def test_a_caller_that_expects_the_current_version_may_write(storage: str) -> None:
    async with engine_from_url(storage) as engine:
        stored = await bring(engine, TaskState.WORKING)
        await engine.commit(step("t1", TaskState.COMPLETED, expected=stored.version))
        assert (await engine.load("t1", ANYBODY)).state is TaskState.COMPLETED


@pytest.mark.parametrize("off", [-1, 1], ids=["older", "newer"])
async def test_any_other_expected_version_raises_concurrency_error_and_nothing_is_written(
    off: int, storage: str
) -> None:
    async with engine_from_url(storage) as engine:
        before = await bring(engine, TaskState.WORKING)
        with pytest.raises(ConcurrencyError):
            await engine.commit(step("t1", TaskState.COMPLETED, expected=before.version + off))
        assert await engine.load("t1", ANYBODY) == before
        assert len(await log_of(engine, "t1")) == before.version


async def test_a_task_that_must_not_exist_yet_cannot_be_created_twice(storage: str) -> None:
    async with engine_from_url(storage) as engine:
        await engine.commit(opening(text="first"))
        with pytest.raises(ConcurrencyError):
            await engine.commit(opening(text="second"))
        assert (await engine.load("t1", ANYBODY)).version == 1


async def test_a_task_that_does_not_exist_cannot_be_changed(storage: str) -> None:
    async with engine_from_url(storage) as engine:
        with pytest.raises(ConcurrencyError):
            await engine.commit(step("nobody", TaskState.WORKING, expected=1))


async def test_of_many_writers_at_one_version_exactly_one_wins(storage: str) -> None:
    async with engine_from_url(storage) as engine:
        stored = await bring(engine, TaskState.WORKING)
        change = step("t1", TaskState.WORKING, expected=stored.version)
        outcomes = await asyncio.gather(*(engine.commit(change) for _ in range(20)), return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["ConcurrencyError"] * 19 + ["Head"]
        assert (await engine.load("t1", ANYBODY)).version == stored.version + 1


@pytest.mark.parametrize("first", [TaskState.COMPLETED, TaskState.CANCELED])
async def test_a_worker_that_completes_while_a_cancel_is_forced_does_not_corrupt_the_task(
    first: TaskState, storage: str
) -> None:
    second = TaskState.CANCELED if first is TaskState.COMPLETED else TaskState.COMPLETED
    async with engine_from_url(storage) as engine:
        stored = await bring(engine, TaskState.WORKING)
        outcomes = await asyncio.gather(
            engine.commit(step("t1", first, expected=stored.version)),
            engine.commit(step("t1", second, expected=stored.version)),
            return_exceptions=True,
        )
        assert versions(outcomes[:1]) == [stored.version + 1]
        assert isinstance(outcomes[1], ConcurrencyError | TaskTerminalStateError)
        assert (await engine.load("t1", ANYBODY)).state is first


async def test_two_follow_up_messages_at_the_same_time_are_both_dealt_with_one_after_the_other(storage: str) -> None:
    turns: list[str] = []
    at_once = 0

    async def handle(ctx: TaskContext) -> None:
        nonlocal at_once
        at_once += 1
        assert at_once == 1
        turns.append(ctx.user_text)
        await ctx.send_status(f"on {ctx.user_text}")
        at_once -= 1
        await ctx.request_input("more?")

    async with running(handle, storage) as client:
        task_id = (await client.send("first")).task_id
        results = await asyncio.gather(*(client.send(text, task_id=task_id) for text in ("left", "right")))
        task = await client.get_task(task_id)
    assert all(result.input_required for result in results)
    assert turns[0] == "first"
    assert sorted(turns[1:]) == ["left", "right"]
    assert sorted(text for text in spoken(task) if text != "more?") == ["first", "left", "right"]


async def test_many_messages_at_the_same_time_are_each_dealt_with_exactly_once(storage: str) -> None:
    turns: list[str] = []
    texts = [f"message {number}" for number in range(20)]

    async def handle(ctx: TaskContext) -> None:
        turns.append(ctx.user_text)
        await ctx.request_input("more?")

    async with running(handle, storage) as client:
        task_id = (await client.send("first")).task_id
        await asyncio.gather(*(client.send(text, task_id=task_id) for text in texts))
    assert sorted(turns[1:]) == sorted(texts)


async def test_the_context_manages_versions_by_itself_when_a_message_comes_in_between(storage: str) -> None:
    gate = Gate()

    async def handle(ctx: TaskContext) -> None:
        if ctx.user_text == "one":
            await ctx.emit_text_artifact("before ")
            await gate()
            await ctx.emit_text_artifact("after", append=True)
        await ctx.respond(f"to {ctx.user_text}")

    async with running(handle, storage) as client:
        task_id = (await client.send("one", blocking=False)).task_id
        await client.send("two", task_id=task_id, blocking=False)
        gate.open()
        result = await reaches(client, task_id, "completed")
    assert result.artifacts[0].text == "before after"
    assert spoken(result) == ["one", "two", "to one", "to two"]


async def test_the_context_manages_versions_by_itself_when_another_writer_changes_the_log(storage: str) -> None:
    gate = Gate()

    async def handle(ctx: TaskContext) -> None:
        await gate()
        await ctx.complete("done")

    server = serve(Agent(handle), storage=storage)
    async with connect(server) as client:
        task_id = (await client.send("hi", blocking=False)).task_id
        for _ in range(3):
            note = step(task_id, TaskState.WORKING, state=None, events=(Draft("request", b"{}"),))
            await server.engine.commit(note)
        gate.open()
        assert (await reaches(client, task_id, "completed")).text == "done"


async def test_a_concurrency_error_is_never_shown_to_a_client(storage: str) -> None:
    server = serve(Agent(lambda ctx: ctx.request_input("more?")), storage=storage)
    message = {"role": "ROLE_USER", "parts": [{"text": "hi"}]}
    async with server, http_client(server) as http:
        first = await http.post("/message:send", json={"message": {**message, "messageId": "m0"}})
        task_id = first.json()["task"]["id"]
        answers = await asyncio.gather(
            *(
                http.post("/message:send", json={"message": {**message, "messageId": f"m{n}", "taskId": task_id}})
                for n in range(1, 11)
            )
        )
    assert [answer.status_code for answer in answers] == [200] * 10
