"""`ctx.reference_task_ids` and `ctx.message_extensions`: what the message points to."""

from __future__ import annotations

import pytest

from errands import Message, Part, Role, TaskContext
from tests.unit.support import running

pytestmark = pytest.mark.anyio


async def test_the_worker_sees_which_tasks_and_extensions_the_message_names(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.complete_json([ctx.reference_task_ids, ctx.message_extensions])

    async with running(handle, storage) as client:
        message = Message(
            message_id="m", role=Role.USER, parts=[Part(text="hi")], reference_task_ids=["t1"], extensions=["urn:x"]
        )
        assert (await client.send(message)).data == [["t1"], ["urn:x"]]
        plain = Message(message_id="n", role=Role.USER, parts=[Part(text="hi")])
        assert (await client.send(plain)).data == [[], []]
