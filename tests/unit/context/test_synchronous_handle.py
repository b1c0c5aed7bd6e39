"""A `handle` that is a plain `def` runs in a thread, with a context whose methods block."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from errands import Part, TaskTerminalStateError, TurnError
from errands.testing import connect
from tests.unit.support import LIFECYCLE, ThreadedAgent, reaches, said

pytestmark = pytest.mark.anyio


async def test_the_handler_runs_in_a_thread_of_its_own(storage: str) -> None:
    threads: list[threading.Thread] = []

    def handle(ctx: Any) -> None:
        threads.append(threading.current_thread())
        ctx.complete(f"Echo: {ctx.user_text}")

    async with connect(ThreadedAgent(handle), storage=storage) as client:
        assert (await client.send("hi")).text == "Echo: hi"
    assert threads[0] is not threading.current_thread()


async def test_the_event_loop_goes_on_while_the_handler_blocks(storage: str) -> None:
    begun, release = threading.Event(), threading.Event()

    def handle(ctx: Any) -> None:
        if ctx.user_text == "slow":
            begun.set()
            assert release.wait(timeout=170)
        ctx.complete(ctx.user_text)

    async with connect(ThreadedAgent(handle), storage=storage) as client:
        slow = await client.send("slow", blocking=False)
        await asyncio.to_thread(begun.wait)
        assert (await client.send("fast")).text == "fast"
        assert (await client.get_task(slow.task_id)).state == "working"
        release.set()
        assert (await reaches(client, slow.task_id, "completed")).text == "slow"


@pytest.mark.parametrize("method", LIFECYCLE)
async def test_every_lifecycle_method_blocks_until_it_is_done(method: str, storage: str) -> None:
    arguments = {"complete_json": ({"n": 1},)}.get(method, ("words",))
    ended: list[bool] = []

    def handle(ctx: Any) -> None:
        getattr(ctx, method)(*arguments)
        ended.append(ctx.turn_ended)

    async with connect(ThreadedAgent(handle), storage=storage) as client:
        assert (await client.send("hi")).state == LIFECYCLE[method][1]
    assert ended == [True]


async def test_the_members_are_those_of_the_other_context(storage: str) -> None:
    seen: dict[str, Any] = {}

    def handle(ctx: Any) -> None:
        for name in ("task_id", "context_id", "message_id", "user_text", "parts", "metadata", "files", "data_parts"):
            seen[name] = getattr(ctx, name)
        seen["accepts"] = ctx.accepts("text/plain")
        seen["history"] = ctx.history
        ctx.update_context({"kept": 1})
        seen["context"] = ctx.load_context()
        ctx.complete()

    async with connect(ThreadedAgent(handle), storage=storage) as client:
        result = await client.send([Part(text="hi"), Part(data={"n": 1})], message_id="m", metadata={"k": "v"})
    assert seen == {
        "task_id": result.task_id,
        "context_id": result.context_id,
        "message_id": "m",
        "user_text": "hi",
        "parts": [Part(text="hi"), Part(data={"n": 1})],
        "metadata": {"k": "v"},
        "files": [],
        "data_parts": [{"n": 1}],
        "accepts": True,
        "history": [],
        "context": {"kept": 1},
    }


async def test_emitting_and_writing_artifacts_works_from_the_thread(storage: str) -> None:
    def handle(ctx: Any) -> None:
        ctx.send_status("on it")
        ctx.emit_text_artifact("a", artifact_id="text")
        ctx.emit_data_artifact({"n": 1}, artifact_id="data")
        ctx.emit_artifact(artifact_id="file", file_bytes=b"x")
        with ctx.artifact("written") as artifact:
            artifact.write("once ")
            artifact.write("upon")
        ctx.complete()

    async with connect(ThreadedAgent(handle), storage=storage) as client:
        events = [event async for event in client.stream("hi")]
        result = await client.get_task(events[0].task_id or "")
    assert "on it" in [event.text for event in events]
    assert [artifact.artifact_id for artifact in result.artifacts] == ["text", "data", "file", "written"]
    assert result.artifacts[-1].text == "once upon"


async def test_a_second_lifecycle_call_raises_turn_error_in_the_thread(storage: str) -> None:
    errors: list[TurnError] = []

    def handle(ctx: Any) -> None:
        ctx.complete("first")
        try:
            ctx.fail("second")
        except TurnError as error:
            errors.append(error)

    async with connect(ThreadedAgent(handle), storage=storage) as client:
        assert (await client.send("hi")).text == "first"
    assert len(errors) == 1


async def test_returning_without_a_lifecycle_call_fails_the_task(storage: str) -> None:
    async with connect(ThreadedAgent(lambda ctx: None), storage=storage) as client:
        result = await client.send("hi")
    assert result.failed
    assert "returned without finishing" in (said(result) or "")


@pytest.mark.parametrize("error", [RuntimeError, StopIteration, KeyError, SystemError])
async def test_an_exception_fails_the_task_and_only_the_log_knows_why(
    error: type[Exception], storage: str, caplog: pytest.LogCaptureFixture
) -> None:
    def handle(ctx: Any) -> None:
        raise error("inside")

    async with connect(ThreadedAgent(handle), storage=storage) as client:
        result = await client.send("hi")
    assert result.failed
    assert "inside" not in (said(result) or "")
    assert "inside" in caplog.text


async def test_a_cancel_is_seen_in_the_thread(storage: str) -> None:
    begun = threading.Event()

    def handle(ctx: Any) -> None:
        begun.set()
        pause = threading.Event()
        while not ctx.is_cancelled:
            pause.wait(0.001)
        ctx.fail("stopped")

    async with connect(ThreadedAgent(handle), storage=storage) as client:
        task = await client.send("hi", blocking=False)
        result = await client.cancel(task.task_id)
    assert begun.is_set()
    assert result.canceled
    assert said(result) == "stopped"


async def test_a_thread_that_does_not_react_is_canceled_by_force_and_can_write_no_more(storage: str) -> None:
    begun, release, over = threading.Event(), threading.Event(), threading.Event()
    errors: list[Exception] = []

    def handle(ctx: Any) -> None:
        begun.set()
        assert release.wait(timeout=170)
        try:
            ctx.complete("too late")
        except TaskTerminalStateError as error:
            errors.append(error)
        over.set()

    async with connect(ThreadedAgent(handle), storage=storage, cancel_force_timeout=0.05) as client:
        task = await client.send("hi", blocking=False)
        await asyncio.to_thread(begun.wait)
        canceled = await client.cancel(task.task_id)
        release.set()
        while not over.is_set():
            assert (await client.get_task(task.task_id)).canceled
        final = await client.get_task(task.task_id)
    assert canceled.canceled
    assert final.canceled
    assert final.artifacts == []
    assert len(errors) == 1
