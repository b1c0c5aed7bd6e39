"""auth_required: the agent needs authentication credentials."""

from __future__ import annotations

import pytest

from errands import Part, TaskContext
from tests.unit.support import run, running, said

pytestmark = pytest.mark.anyio


async def test_auth_required_is_reached_via_request_auth(storage: str) -> None:
    result = await run(lambda ctx: ctx.request_auth("A token, please"), storage=storage)
    assert result.auth_required
    assert said(result) == "A token, please"


async def test_the_clients_credentials_in_a_follow_up_transition_the_task_back_to_submitted(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        if not ctx.data_parts:
            await ctx.request_auth("A token, please", schemes=["Bearer"])
            return
        await ctx.complete(f"{len(ctx.data_parts[0]['token'])} characters")

    async with running(handle, storage) as client:
        task_id = (await client.send("my repositories")).task_id
        following = client.subscribe(task_id)
        assert (await anext(following)).state == "auth-required"
        done = await client.send([Part(data={"token": "abc"})], task_id=task_id)
        states = [event.state async for event in following if event.state]
    assert states == ["submitted", "working", "completed"]
    assert done.text == "3 characters"
