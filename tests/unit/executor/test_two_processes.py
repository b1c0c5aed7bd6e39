"""Two servers on one file: what is asked of one reaches the execution of the other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from errands import EventQueue, RequestContext
from errands.testing import connect
from tests.unit.executor.agents import Executor, Never, updater_of, words
from tests.unit.support import Gate, heard, said

pytestmark = pytest.mark.anyio


async def unused(context: RequestContext, queue: EventQueue) -> None:
    raise AssertionError("this server is only asked")


@pytest.fixture
def file(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'tasks.db'}"


async def test_a_cancel_asked_of_one_interrupts_what_waits_for_a_provider_in_the_other(file: str) -> None:
    provider = Never()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await updater_of(context, queue).requires_auth()
        await provider()

    async def cancel(context: RequestContext, queue: EventQueue) -> None:
        await updater_of(context, queue).cancel(words("stopped here"))

    async with (
        connect(Executor(execute, cancel), storage=file, cancel_force_timeout=3600) as here,
        connect(Executor(unused), storage=file, cancel_force_timeout=3600) as there,
    ):
        task_id = (await here.send("hi")).task_id
        await provider.awaited.wait()
        # By force it would take an hour.
        assert said(await there.cancel(task_id)) == "stopped here"
    assert provider.interrupted


async def test_a_message_sent_to_one_waits_for_the_execution_of_the_other(file: str) -> None:
    provider = Gate()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        updater = updater_of(context, queue)
        if context.current_task is None:
            await updater.requires_auth()
            await provider()
        await updater.complete(words(context.get_user_input()))

    async with (
        connect(Executor(execute), storage=file) as here,
        connect(Executor(unused), storage=file) as there,
    ):
        task_id = (await here.send("hi")).task_id
        await provider.reached.wait()
        sending = asyncio.create_task(there.send("second", task_id=task_id))
        await heard(there, task_id, "second")
        stream = there.stream("third", task_id=task_id)
        assert (await anext(stream)).state == "auth-required"
        provider.open()
        assert (await sending).state == "completed"
        assert [event.state async for event in stream][-1] == "completed"


async def test_what_one_cancels_in_a_pause_needs_the_other_no_more(file: str) -> None:
    executor = Executor(lambda context, queue: updater_of(context, queue).requires_input())
    other = Executor(unused)
    async with connect(executor, storage=file) as here, connect(other, storage=file) as there:
        task_id = (await here.send("hi")).task_id
        assert (await there.cancel(task_id)).state == "canceled"
    assert executor.canceled + other.canceled == 1
