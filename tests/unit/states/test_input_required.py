"""input_required: the agent needs more information from the user."""

from __future__ import annotations

import pytest

from errands import TaskContext
from tests.unit.support import run, running, said

pytestmark = pytest.mark.anyio


async def test_input_required_is_reached_via_request_input(storage: str) -> None:
    result = await run(lambda ctx: ctx.request_input("Which city?"), storage=storage)
    assert result.input_required
    assert said(result) == "Which city?"


async def test_the_clients_follow_up_message_transitions_the_task_back_to_submitted(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await (ctx.complete(f"Sunny in {ctx.user_text}") if ctx.history else ctx.request_input("Which city?"))

    async with running(handle, storage) as client:
        task_id = (await client.send("weather")).task_id
        following = client.subscribe(task_id)
        assert (await anext(following)).state == "input-required"
        done = await client.send("Rome", task_id=task_id)
        states = [event.state async for event in following if event.state]
    assert states == ["submitted", "working", "completed"]
    assert done.text == "Sunny in Rome"
