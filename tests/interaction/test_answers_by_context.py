"""A message that names only its conversation: at `/a2a`, or with the setting, it answers the task that waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

import pytest

from errands import (
    A2AServer,
    AgentExecutor,
    BearerTokenMiddleware,
    EventQueue,
    RequestContext,
    Settings,
    TaskContext,
    TaskUpdater,
    Worker,
)
from errands.model.core import text_of
from errands.testing import http_client, serve
from tests.cells import one_engine
from tests.interaction.agents import Asks, Executes
from tests.interaction.conftest import Connect
from tests.interaction.praisonai import PraisonClient, verify
from tests.interaction.wire import message, rpc
from tests.unit.reviews.support import Reviewed, reviewed_server

pytestmark = pytest.mark.anyio


class Said(NamedTuple):
    task_id: str
    context_id: str
    state: str


Send = Callable[..., Any]
Open = Callable[..., AbstractAsyncContextManager[Send]]


class Waits(Worker):
    """Waits for what it is told to wait for, and completes with the answer."""

    async def handle(self, ctx: TaskContext) -> None:
        if ctx.user_text == "ask again":
            await ctx.request_input("Which?")
        elif ctx.history:
            await ctx.complete(ctx.user_text)
        elif ctx.user_text == "auth":
            await ctx.request_auth("Who are you?")
        elif ctx.user_text == "nothing":
            await ctx.complete()
        else:
            await ctx.request_input("Which?")


@pytest.fixture(params=["/a2a", "setting"])
def opened(request: pytest.FixtureRequest, storage: str) -> Open:
    """`async with opened(agent) as send`: sends over PraisonAI's dialect, and over 1.0 with the setting."""
    settings = Settings(storage=storage, answer_by_context=request.param == "setting")

    @asynccontextmanager
    async def opening(agent: Any, **options: Any) -> AsyncIterator[Send]:
        server = agent if isinstance(agent, A2AServer) else serve(agent, storage=storage, settings=settings, **options)
        if isinstance(agent, A2AServer):
            server.settings.answer_by_context = settings.answer_by_context

        async def send(text: str, context_id: str | None = None, user: str = "", **fields: Any) -> Said:
            headers = {"Authorization": f"Bearer {user}"} if user else {}
            if request.param == "/a2a":
                params = {"message": {"role": "user", "parts": [{"text": text}], "contextId": context_id, **fields}}
                task = await PraisonClient(http).result("message/send", params, **headers)
                return Said(task["id"], task["contextId"], task["status"]["state"].replace("_", "-"))
            place = {} if context_id is None else {"contextId": context_id}
            body = rpc("SendMessage", {"message": message(text, **place, **fields)})
            task = (await http.post("/", json=body, headers=headers)).json()["result"]["task"]
            state = task["status"]["state"].removeprefix("TASK_STATE_").lower().replace("_", "-")
            return Said(task["id"], task["contextId"], state)

        async with server, http_client(server) as http:
            yield send

    return opening


async def test_it_answers_the_task_that_waits(opened: Open) -> None:
    async with opened(Waits()) as send:
        asked = await send("begin")
        assert asked.state == "input-required"
        assert await send("answer", asked.context_id) == (asked.task_id, asked.context_id, "completed")


async def test_it_answers_an_executor_as_soon_as_that_has_asked(opened: Open) -> None:
    async with opened(Executes()) as send:
        asked = await send("begin")
        assert await send("French", asked.context_id) == (asked.task_id, asked.context_id, "completed")


class Lingers(AgentExecutor):
    """Asks, and does not return before the answer has come."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        if context.get_user_input() == "answer":
            await updater.complete()
            return
        await updater.requires_input()
        while not await self._is_answered(context):
            await asyncio.sleep(0.001)

    async def _is_answered(self, context: RequestContext) -> bool:
        task = await context.call_context.get_task(context.task_id or "")
        return task is not None and any(text_of(said.parts) == "answer" for said in task.history or ())

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None: ...


async def test_it_waits_for_the_turn_of_its_message_while_the_executor_that_asked_still_runs(opened: Open) -> None:
    async with opened(Lingers()) as send:
        asked = await send("begin")
        assert asked.state == "input-required"
        assert await send("answer", asked.context_id) == (asked.task_id, asked.context_id, "completed")


async def test_where_nothing_waits_it_begins_a_task(opened: Open) -> None:
    async with opened(Waits()) as send:
        ended = await send("nothing")
        asked = await send("begin", ended.context_id)
        assert asked.task_id != ended.task_id
        assert (await send("answer", ended.context_id)).task_id == asked.task_id
        assert (await send("nothing", ended.context_id)).task_id not in (asked.task_id, ended.task_id)


async def test_where_two_wait_it_begins_a_task(opened: Open) -> None:
    async with opened(Waits()) as send:
        first = await send("auth")
        second = await send("begin", first.context_id)
        assert (await send("ask again", first.context_id, taskId=first.task_id)).state == "input-required"
        third = await send("answer", first.context_id)
        assert len({first.task_id, second.task_id, third.task_id}) == 3
        assert third.state == "input-required"


async def test_a_task_that_waits_for_credentials_is_not_answered(opened: Open) -> None:
    async with opened(Waits()) as send:
        asked = await send("auth")
        assert asked.state == "auth-required"
        other = await send("my secret", asked.context_id)
        assert (other.task_id != asked.task_id, other.state) == (True, "input-required")
        assert await send("answer", asked.context_id) == (other.task_id, asked.context_id, "completed")


async def test_a_task_that_waits_for_a_review_is_not_answered(opened: Open, storage: str) -> None:
    async with opened(reviewed_server(Reviewed(), storage)) as send:
        asked = await send("pay 500", user="alice")
        assert asked.state == "input-required"
        assert (await send("approve", asked.context_id, user="alice")).task_id != asked.task_id


async def test_of_two_messages_at_a_time_one_is_the_answer(opened: Open) -> None:
    async with opened(Waits()) as send:
        asked = await send("begin")
        said = await asyncio.gather(*(send(f"answer {number}", asked.context_id) for number in range(4)))
        # Those that came too late for the question began tasks, which wait and may have been answered in turn.
        assert [one.task_id for one in said].count(asked.task_id) == 1
        assert all(one.state in ("completed", "input-required") for one in said)


async def test_a_message_that_is_sent_again_finds_the_task_that_it_has_answered(opened: Open) -> None:
    async with opened(Waits()) as send:
        asked = await send("begin")
        first = await send("answer", asked.context_id, messageId="m")
        assert await send("answer", asked.context_id, messageId="m") == first


async def test_the_context_of_somebody_else_is_another_one(opened: Open) -> None:
    async with opened(Waits(), middlewares=[BearerTokenMiddleware(verify)]) as send:
        asked = await send("begin", user="ada")
        other = await send("answer", asked.context_id, user="alan")
        assert (other.task_id != asked.task_id, other.state) == (True, "input-required")
        assert await send("answer", asked.context_id, user="ada") == (asked.task_id, asked.context_id, "completed")


async def test_a_stream_shows_the_answered_task(storage: str) -> None:
    server = serve(Waits(), settings=Settings(storage=storage))
    async with server, http_client(server) as http:
        client = PraisonClient(http)
        asked = await client.send("begin")
        events = await client.stream("answer", contextId=asked["contextId"])
        assert {event.event for event in events} >= {"task.status", "done"}
        assert (await client.result("tasks/get", {"id": asked["id"]}))["status"]["state"] == "completed"


@one_engine
async def test_elsewhere_it_begins_a_task_unless_the_setting_says_otherwise(connected: Connect) -> None:
    async with connected(Asks()) as client:
        asked = await client.send("poem")
        other = await client.send("French", context_id=asked.context_id)
        assert (other.task_id != asked.task_id, other.context_id) == (True, asked.context_id)
        assert (await client.get_task(asked.task_id)).input_required


@one_engine
async def test_with_the_setting_it_answers_over_every_dialect(connected: Connect, storage: str) -> None:
    async with connected(Asks(), settings=Settings(storage=storage, answer_by_context=True)) as client:
        asked = await client.send("poem")
        answered = await client.send("French", context_id=asked.context_id)
        assert (answered.task_id, answered.text) == (asked.task_id, "poem in French")
