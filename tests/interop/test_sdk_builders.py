"""Request context builders of the official SDK, unchanged, under `errands serve`, in both generations."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from errands import A2AClient, Message, Part, Role
from tests.interop.sdks import SDKS, Sdk, interpreter, serving_executor

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]  # the first test of all makes the environments


@pytest.fixture(params=list(SDKS.values()), ids=list(SDKS))
async def client(request: pytest.FixtureRequest) -> AsyncIterator[A2AClient]:
    sdk: Sdk = request.param
    interpreter(sdk)
    with serving_executor(sdk, "builders.py", cancel_force_timeout="5") as agent:
        async with A2AClient(agent.url, headers={"X-User": "ana"}) as connected:
            yield connected


async def test_a_builder_makes_the_context_finds_tasks_and_chooses_ids(client: A2AClient) -> None:
    before = await client.send("task before")
    assert (before.task_id, before.context_id, before.text) == ("task-1", "context-1", "Echo: before")
    # The builder's store has every task as it was when it was built, this server has them as they are.
    message = Message(
        message_id="m", role=Role.USER, parts=[Part(text="seen")], reference_task_ids=["task-1", "task-2", "nowhere"]
    )
    assert (await client.send(message)).text == "built for ana: task-2 context-2 ['task-1', 'task-2']"


async def test_a_canceled_executor_has_its_context_all_the_same(client: A2AClient) -> None:
    held = await client.send("hold", blocking=False)
    assert (await client.cancel(held.task_id)).state == "canceled"
