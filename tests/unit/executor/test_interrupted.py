"""Interrupted workflows: input-required, and auth-required within the conversation and outside of it."""

from __future__ import annotations

import asyncio

import pytest

from errands import EventQueue, LifecycleHooks, Message, RequestContext, Settings, TaskState
from errands.testing import connect, serve
from tests.unit.executor.agents import Executor, Never, executing, updater_of, words
from tests.unit.support import Gate, heard, reaches, spoken
from tests.waiting import until

pytestmark = pytest.mark.anyio


async def test_input_required_returns_and_the_request_resumes_once_input_is_provided(storage: str) -> None:
    seen: list[tuple[str, str | None]] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        task = context.current_task
        seen.append((context.get_user_input(), None if task is None else task.status.state.short))
        updater = updater_of(context, queue)
        if task is None:
            await updater.requires_input(words("how many?"))
            return
        await updater.start_work()
        await updater.complete(words(f"{len(task.history or [])} messages"))

    server = serve(Executor(execute), storage=storage)
    async with connect(server) as client:
        asked = await client.send("tickets")
        assert (asked.state, asked.text) == ("input-required", "how many?")
        # Before execute has returned the task would stay at work: see below.
        await until(lambda: not server.pool.running)
        done = await client.send("two", task_id=asked.task_id)
    assert (done.state, done.text) == ("completed", "3 messages")
    assert seen == [("tickets", None), ("two", "submitted")]
    assert spoken(done) == ["tickets", "how many?", "two", "3 messages"]


async def test_in_bound_auth_returns_and_execute_is_called_again_with_the_response(storage: str) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        updater = updater_of(context, queue)
        if context.current_task is None:
            await updater.requires_auth(words("a token, please"))
        else:
            await updater.complete(words(f"thanks for {context.get_user_input()}"))

    async with executing(execute, storage) as client:
        asked = await client.send("hi")
        assert (asked.state, asked.text) == ("auth-required", "a token, please")
        assert (await client.send("abc", task_id=asked.task_id)).text == "thanks for abc"


async def test_out_of_bound_auth_goes_on_while_the_caller_has_the_auth_required_answer(storage: str) -> None:
    provider = Gate()
    calls: list[str] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        calls.append(context.get_user_input())
        updater = updater_of(context, queue)
        await updater.requires_auth(words("log in at the provider"))
        await provider()
        await updater.start_work()
        await updater.complete(words("done"))

    async with executing(execute, storage) as client:
        asked = await client.send("hi")
        assert asked.state == "auth-required"
        following = client.subscribe(asked.task_id)
        assert (await anext(following)).state == "auth-required"
        provider.open()
        assert [event.state async for event in following] == ["working", "completed"]
        done = await client.get_task(asked.task_id)
    assert calls == ["hi"]
    assert spoken(done) == ["hi", "log in at the provider", "done"]


async def test_out_of_bound_auth_that_was_quick_was_shown_all_the_same(storage: str) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        updater = updater_of(context, queue)
        await updater.requires_auth()
        await updater.complete()

    async with executing(execute, storage) as client:
        states = [event.state async for event in client.stream("hi")]
    assert states[:2] == ["submitted", "auth-required"]


async def test_a_stream_ends_at_out_of_bound_auth(storage: str) -> None:
    provider = Gate()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await updater_of(context, queue).requires_auth()
        await provider()
        await updater_of(context, queue).complete()

    async with executing(execute, storage) as client:
        events = [event async for event in client.stream("hi")]
        assert [event.state for event in events] == ["submitted", "auth-required"]
        provider.open()
        await reaches(client, events[0].task_id or "", "completed")


async def test_a_message_to_a_task_that_waits_for_a_provider_is_for_the_next_execution(storage: str) -> None:
    provider = Gate()
    calls: list[str] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        calls.append(context.get_user_input())
        updater = updater_of(context, queue)
        if len(calls) == 1:
            await updater.requires_auth()
            await provider()
        await updater.complete(words(f"did {context.get_user_input()}"))

    async with executing(execute, storage) as client:
        task_id = (await client.send("one")).task_id
        queued = await client.send("two", task_id=task_id, blocking=False)
        assert queued.state == "auth-required"
        sending = asyncio.create_task(client.send("three", task_id=task_id))
        await heard(client, task_id, "three")
        streaming = client.stream("four", task_id=task_id)
        assert (await anext(streaming)).state == "auth-required"
        provider.open()
        assert (await sending).text == "did four"
        assert [event.state async for event in streaming][-1] == "completed"
    assert calls == ["one", "two", "three", "four"]


async def test_a_message_that_comes_before_execute_has_returned_from_a_pause_is_not_lost(storage: str) -> None:
    returning = Gate()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        updater = updater_of(context, queue)
        if context.current_task is None:
            await updater.requires_input(words("how many?"))
            await returning()
        else:
            await updater.complete(words(context.get_user_input()))

    async with executing(execute, storage) as client:
        task_id = (await client.send("hi")).task_id
        sending = asyncio.create_task(client.send("two", task_id=task_id))
        await returning.reached.wait()
        await heard(client, task_id, "two")
        returning.open()
        assert (await sending).text == "two"


async def test_cancel_reaches_a_task_that_waits_for_a_provider(storage: str) -> None:
    provider = Never()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await updater_of(context, queue).requires_auth()
        await provider()

    executor = Executor(execute)
    async with connect(executor, storage=storage) as client:
        task_id = (await client.send("hi")).task_id
        await provider.awaited.wait()
        assert (await client.cancel(task_id)).state == "canceled"
    assert provider.interrupted
    assert executor.canceled == 1


async def test_a_task_that_waits_for_a_provider_is_run_again_when_its_server_stops(storage: str) -> None:
    if storage == "memory":
        pytest.skip("tasks in memory end with their server")
    provider = Never()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        updater = updater_of(context, queue)
        if context.attempt == 1:
            await updater.requires_auth(words("log in"))
            await provider()
        await updater.complete(words(f"attempt {context.attempt}"))

    async with executing(execute, storage, settings=Settings(drain_timeout=0.01)) as client:
        task_id = (await client.send("hi")).task_id
        await provider.awaited.wait()
    async with executing(execute, storage) as client:
        assert (await reaches(client, task_id, "completed")).text == "attempt 2"


async def test_hooks_hear_of_every_state_once_and_of_progress(storage: str) -> None:
    heard: list[str] = []
    provider = Gate()

    async def hear(task_id: str, state: TaskState, message: Message | None) -> None:
        heard.append(state.short)

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        updater = updater_of(context, queue)
        if context.get_user_input() == "two":
            await updater.complete()
            return
        await updater.start_work()
        await updater.start_work(words("progress"))
        await updater.requires_auth()
        await provider()
        await updater.start_work()
        await updater.requires_input()

    async with executing(execute, storage, hooks=LifecycleHooks(on_state_change=hear)) as client:
        task_id = (await client.send("one")).task_id
        provider.open()
        await reaches(client, task_id, "input-required")
        await client.send("two", task_id=task_id)
    assert (
        heard
        == [
            "submitted",
            "working",
            "working",  # with the progress report
            "auth-required",
            "working",
            "input-required",
            "submitted",
            *(["working"] if heard[7:8] == ["working"] else []),  # the message came before execute had returned
            "completed",
        ]
    )
