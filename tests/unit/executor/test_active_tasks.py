"""What is running where, with its lease, attempt and age."""

from __future__ import annotations

import pytest

from errands import EventQueue, RequestContext
from errands.testing import connect, serve
from tests.unit.executor.agents import Executor, updater_of
from tests.unit.support import Gate, reaches

pytestmark = pytest.mark.anyio


async def test_a_running_execution_is_active_until_it_is_over(storage: str) -> None:
    gate = Gate()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await updater_of(context, queue).requires_auth()
        await gate()
        await updater_of(context, queue).complete()

    server = serve(Executor(execute), storage=storage)
    async with connect(server) as client:
        assert await server.active_tasks() == []
        asked = await client.send("hi", context_id="talk")
        await gate.reached.wait()
        [active] = await server.active_tasks()
        assert (active.task_id, active.context_id, active.state.short) == (asked.task_id, "talk", "auth-required")
        assert (active.agent, active.worker, active.attempt) == ("Test agent", server.pool.leases.worker_id, 1)
        assert (active.owner, active.tenant, active.cancel_requested) == ("", "", False)
        now = server.engine.clock()
        assert now < active.lease_until <= now + 30_000
        assert active.age >= 0
        assert active.running_for is not None
        gate.open()
        await reaches(client, asked.task_id, "completed")
        assert await server.active_tasks() == []


async def test_what_another_process_runs_is_active_too(storage: str) -> None:
    if storage == "memory":
        pytest.skip("memory is not shared")
    gate = Gate()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await updater_of(context, queue).start_work()
        await gate()
        await updater_of(context, queue).complete()

    here, there = (serve(Executor(execute), storage=storage) for _ in range(2))
    async with connect(here) as client, there:
        task = await client.send("hi", blocking=False)
        await gate.reached.wait()
        [active] = await there.active_tasks()
        assert (active.task_id, active.worker, active.running_for) == (task.task_id, here.pool.leases.worker_id, None)
        gate.open()
