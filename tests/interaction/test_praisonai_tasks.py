"""PraisonAI's dialect: tasks are listed, got and cancelled, by clients and by the program that serves them."""

from __future__ import annotations

import asyncio
import json

import pytest

from errands import BearerTokenMiddleware, TaskContext, TaskNotCancelableError, TaskNotFoundError, TaskState, Worker
from errands.model.core import Task, TaskStatus
from errands.testing import serve
from errands.wire.praisonai import MOST_LISTED, write_tasks
from tests.interaction.agents import Asks, Echo
from tests.interaction.praisonai import praison, say, verify

pytestmark = pytest.mark.anyio


async def test_tasks_are_listed_as_a_bare_array(storage: str) -> None:
    async with praison(Echo(), storage=storage) as client:
        first = await client.send("one", contextId="c-1")
        second = await client.send("two", contextId="c-1")
        other = await client.send("three", contextId="c-2")
        assert {task["id"] for task in await client.result("tasks/list")} == {first["id"], second["id"], other["id"]}
        for key in ("contextId", "context_id"):
            listed = {task["id"]: task for task in await client.result("tasks/list", {key: "c-1"})}
            assert listed == {first["id"]: first, second["id"]: second}
        assert await client.result("tasks/list", {"contextId": "nobody"}) == []
        assert len(await client.result("tasks/list", {"contextId": None})) == 3


async def test_a_listing_begins_with_the_oldest_task() -> None:
    newest, oldest = (Task(id=name, status=TaskStatus(state=TaskState.WORKING)) for name in ("newest", "oldest"))
    assert [task["id"] for task in json.loads(write_tasks([newest, oldest]))] == ["oldest", "newest"]


async def test_a_listing_holds_more_than_a_page(storage: str) -> None:
    async with praison(Echo(), storage=storage) as client:
        for number in range(120):
            await client.send(str(number), contextId="c")
        assert MOST_LISTED > 120
        assert len(await client.result("tasks/list", {"contextId": "c"})) == 120


async def test_a_cancel_stops_the_work_and_the_task_stays_cancelled(storage: str) -> None:
    stopped = asyncio.Event()

    class Stubborn(Worker):
        def __init__(self) -> None:
            self.started = asyncio.Event()

        async def handle(self, ctx: TaskContext) -> None:
            self.started.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()
                await ctx.complete("too late")

    worker = Stubborn()
    async with praison(worker, storage=storage, cancel_force_timeout=0.01) as client:
        task = await client.send(configuration={"returnImmediately": True})
        await worker.started.wait()
        cancelled = await client.result("tasks/cancel", {"id": task["id"]})
        assert (cancelled["id"], cancelled["status"]["state"]) == (task["id"], "cancelled")
        await stopped.wait()
        assert (await client.result("tasks/get", {"id": task["id"]}))["status"]["state"] == "cancelled"
        assert await client.result("tasks/cancel", {"id": task["id"]}) == cancelled


async def test_cancelling_a_finished_task_answers_with_it_and_changes_nothing() -> None:
    async with praison(Echo()) as client:
        task = await client.send()
        assert await client.result("tasks/cancel", {"id": task["id"]}) == task
        assert await client.result("tasks/get", {"id": task["id"]}) == task


async def test_a_program_lists_gets_and_cancels_the_tasks_of_its_server(storage: str) -> None:
    server = serve(Asks(), storage=storage)
    async with praison(server) as client:
        first = await client.send("one", contextId="c-1")
        await client.send("two", contextId="c-2")
        assert [task.id for task in await server.tasks.list(context_id="c-1")] == [first["id"]]
        assert len(await server.tasks.list()) == 2
        assert len(await server.tasks.list(limit=1)) == 1
        assert await server.tasks.list(state=TaskState.COMPLETED) == []
        assert (await server.tasks.get(first["id"])).status.state is TaskState.INPUT_REQUIRED
        assert (await server.tasks.cancel(first["id"])).status.state is TaskState.CANCELED
        assert (await client.result("tasks/get", {"id": first["id"]}))["status"]["state"] == "cancelled"
        with pytest.raises(TaskNotCancelableError):
            await server.tasks.cancel(first["id"])
        with pytest.raises(TaskNotFoundError):
            await server.tasks.get("nothing")


async def test_a_program_sees_all_pages_and_each_owners_tasks_alone() -> None:
    server = serve(Echo(), middlewares=[BearerTokenMiddleware(verify)])
    async with praison(server) as client:
        for number in range(101):
            await client.result("message/send", {"message": say(str(number))}, Authorization="Bearer ada")
        assert len(await server.tasks.of("ada").list()) == 101
        assert len(await server.tasks.of("ada").list(limit=100)) == 100
        assert await server.tasks.list() == []
        assert await server.tasks.of("ada", tenant="acme").list() == []
