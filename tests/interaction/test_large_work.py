"""Large requests and answers: they take turns, are counted before they are read, and leave small ones alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from errands import A2AServer, Settings, TaskContext, Worker
from errands.engines.memory import MemoryEngine
from errands.errors import OverloadedError, UnavailableError
from errands.model.log import Scope, StoredTask
from errands.server import large_work
from errands.server.asgi import HttpExchange
from errands.server.large_work import LargeWork
from errands.testing import serve
from tests.interaction.wire import http, message, rpc

pytestmark = pytest.mark.anyio

LARGE = 2_000_000
SOON = 20.0


class Sizes(Worker):
    """Answers with as many letters as the message says; it asks for more first if the message says so."""

    async def handle(self, ctx: TaskContext) -> None:
        words = ctx.user_text.split()
        text = "x" * int(words[0]) if words[0].isdigit() else "ok"
        await (ctx.request_input(text) if "pauses" in words else ctx.complete(text))


class Watched(MemoryEngine):
    """Takes its time for a task that is loaded whole, and counts how many are at once."""

    now = most = times = 0

    async def load(self, task_id: str, scope: Scope | None) -> StoredTask:
        self.now += 1
        self.times += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(0.001)
            return await super().load(task_id, scope)
        finally:
            self.now -= 1


class Large:
    """A server with a task that is large."""

    def __init__(self, server: A2AServer, client: httpx.AsyncClient, task_id: str) -> None:
        self.server, self.client, self.task_id = server, client, task_id

    async def small(self) -> None:
        answer = await self.client.post("/", json=rpc("SendMessage", {"message": message("1")}))
        assert answer.json()["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@asynccontextmanager
async def large(engine: MemoryEngine | None = None, text: str = f"{LARGE} pauses") -> AsyncIterator[Large]:
    server = serve(Sizes(), storage=engine or MemoryEngine(), settings=Settings())
    async with http(server) as client:
        sent = await client.post("/message:send", json={"message": message(text)})
        yield Large(server, client, sent.json()["task"]["id"])


Ask = Callable[[Large], Awaitable[httpx.Response]]


def get(path: str) -> Ask:
    return lambda large: large.client.get(path.replace("ID", large.task_id))


def post(path: str, method: str, **params: Any) -> Ask:
    def ask(large: Large) -> Awaitable[httpx.Response]:
        return large.client.post(path, json=rpc(method, {"id": large.task_id, **params}))

    return ask


def subscribe(large: Large) -> Awaitable[httpx.Response]:
    async def first_event() -> httpx.Response:
        async with large.client.stream("GET", f"/tasks/{large.task_id}:subscribe") as answer:
            if answer.status_code != 200:
                await answer.aread()
                return answer
            async for _ in answer.aiter_bytes():
                break
            return answer

    return first_event()


def continue_task(large: Large) -> Awaitable[httpx.Response]:
    return large.client.post("/message:send", json={"message": message("1", taskId=large.task_id)})


#: Requests that read the large task, in every binding.
ASKS: dict[str, Ask] = {
    "HTTP+JSON": get("/tasks/ID"),
    "HTTP+JSON 0.3": get("/v1/tasks/ID"),
    "JSON-RPC": post("/", "GetTask"),
    "JSON-RPC 0.3": post("/", "tasks/get"),
    "PraisonAI": post("/a2a", "tasks/get"),
    "a list": get("/tasks?pageSize=1&includeArtifacts=true"),
    "a cancel": post("/", "CancelTask"),
    "a stream": subscribe,
    "a message": continue_task,
}


@pytest.mark.parametrize("ask", [pytest.param(ask, id=name) for name, ask in ASKS.items()])
async def test_a_large_answer_is_refused_before_it_is_read_if_there_is_no_room(ask: Ask) -> None:
    engine = Watched()
    async with large(engine) as it:
        budget, times = it.server.large_work.budget, engine.times
        budget.reserve(budget.most)
        answer = await ask(it)
        assert answer.status_code == 503
        assert "max_buffered_bytes" in answer.text
        assert engine.times == times
        await it.small()
        budget.give_back(budget.most)
        assert (await ask(it)).status_code == 200
        assert engine.times > times or ask is ASKS["a list"]
        while budget.total:
            await asyncio.sleep(0)


async def test_large_answers_are_read_one_after_another() -> None:
    engine = Watched()
    async with large(engine) as it:
        asked = [asyncio.ensure_future(get("/tasks/ID")(it)) for _ in range(20)]
        await it.small()
        assert {len(answer.content) > LARGE for answer in await asyncio.gather(*asked)} == {True}
        assert engine.most == 1


async def test_a_large_request_waits_for_its_turn_and_a_small_one_does_not() -> None:
    async with large() as it, asyncio.timeout(SOON):
        text = f"1 {'y' * LARGE}"
        async with it.server.large_work.one_at_a_time(0):
            sent = asyncio.ensure_future(it.client.post("/", json=rpc("SendMessage", {"message": message(text)})))
            while it.server.large_work.budget.total < LARGE:
                await asyncio.sleep(0)
            await it.small()
            assert not sent.done()
        assert (await sent).json()["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_large_requests_that_wait_are_counted_and_refused_when_they_are_too_many() -> None:
    async with large() as it, asyncio.timeout(SOON):
        it.server.large_work.budget.most = 3 * LARGE
        body = rpc("SendMessage", {"message": message(f"1 {'y' * LARGE}")})
        async with it.server.large_work.one_at_a_time(0):
            sent = [asyncio.ensure_future(it.client.post("/", json=body)) for _ in range(5)]
            while sum(each.done() for each in sent) < 3:
                await asyncio.sleep(0)
            refused = [each.result() for each in sent if each.done()]
            assert {answer.status_code for answer in refused} == {503}
            assert {"retry-after" in answer.headers for answer in refused} == {True}
        assert [each.status_code for each in await asyncio.gather(*sent)].count(200) == 2


async def test_a_large_event_of_a_stream_waits_for_its_turn() -> None:
    async with large(text="1 pauses") as it, asyncio.timeout(SOON):
        stream = it.client.stream("POST", "/message:stream", json={"message": message(f"{LARGE}")})
        async with it.server.large_work.one_at_a_time(0):
            seen: list[bytes] = []

            async def read() -> None:
                async with stream as answer:
                    seen.extend([chunk async for chunk in answer.aiter_bytes()])

            reading = asyncio.ensure_future(read())
            while it.server.large_work.budget.total < LARGE:
                await asyncio.sleep(0)
            assert not reading.done()
        await reading
        assert sum(map(len, seen)) > LARGE


# The queue itself


async def test_others_get_most_of_the_loop_after_a_turn() -> None:
    work = LargeWork(1000)
    async with work.one_at_a_time(10):
        time.sleep(0.1)  # noqa: ASYNC251 - work that holds the loop
    await asyncio.sleep(0)
    began = time.monotonic()
    busy = asyncio.ensure_future(keep_busy())
    async with work.one_at_a_time(10):
        waited = time.monotonic() - began
    busy.cancel()
    assert waited >= large_work.REST * 0.1 - 0.05
    assert work.budget.total == 10


async def keep_busy() -> None:
    while True:
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass
        await asyncio.sleep(0)


async def test_an_idle_loop_does_not_rest() -> None:
    work = LargeWork(1000)
    async with work.one_at_a_time(10):
        time.sleep(1)  # noqa: ASYNC251 - work that holds the loop
    began = time.monotonic()
    async with work.one_at_a_time(10):
        assert time.monotonic() - began < large_work.REST


async def test_a_rest_that_an_idle_loop_has_ended_is_not_made_up_for_later() -> None:
    work = LargeWork(1000)
    for _ in range(10):
        async with work.one_at_a_time(10):
            time.sleep(0.05)  # noqa: ASYNC251 - work that holds the loop
    await asyncio.sleep(0)
    began = time.monotonic()
    busy = asyncio.ensure_future(keep_busy())
    async with work.one_at_a_time(10):
        waited = time.monotonic() - began
    busy.cancel()
    assert waited < 4 * large_work.REST * 0.05


async def test_a_turn_includes_what_is_done_with_what_was_read() -> None:
    work = LargeWork(1000)
    async with work.one_at_a_time(10):
        pass
    assert work.budget.total == 10
    await asyncio.sleep(0)
    assert work.budget.total == 0


async def test_of_too_many_that_wait_the_last_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_work, "MOST_WAITING", 2)
    work = LargeWork(1000)

    async def take() -> None:
        async with work.one_at_a_time(1):
            pass

    async with work.one_at_a_time(1):
        waiting = [asyncio.ensure_future(take()) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await take()
    await asyncio.gather(*waiting)


async def test_whoever_is_canceled_leaves_nothing_behind() -> None:
    work = LargeWork(1000)
    async with work.one_at_a_time(1):
        for is_held in (True, False):
            waiting = asyncio.ensure_future(work.one_at_a_time(500, is_held=is_held).__aenter__())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
    await asyncio.sleep(0)
    assert work.budget.total == 0
    async with asyncio.timeout(SOON), work.one_at_a_time(1):
        pass


async def test_nothing_is_read_for_a_client_that_has_gone_while_it_waited() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(_: Any) -> None:
        return None

    exchange = HttpExchange({"headers": []}, receive, send, Settings())
    exchange.large_work = LargeWork(1000)
    with pytest.raises(UnavailableError):
        async with exchange.one_at_a_time(10):
            pytest.fail("it is not to be read")
