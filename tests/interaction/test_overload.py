"""A queue that is too far behind: new tasks are refused with a time to come back, over every dialect and engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from errands import A2AClient, A2AServer, Settings
from errands.engines.memory import MemoryEngine
from errands.engines.urls import engine_from_url
from errands.errors import OverloadedError
from errands.testing import ManualClock, connect, http_client, serve
from tests.cells import one_engine
from tests.interaction.agents import Gated
from tests.interaction.conftest import Connect, one_dialect

pytestmark = pytest.mark.anyio

PATIENCE = {"max_retries": 0}


class Busy:
    """A server that runs one task at a time, with one at work and one that waits."""

    def __init__(self, storage: str, **settings: Any) -> None:
        self.clock = ManualClock()
        self.worker = Gated()
        engine = engine_from_url(storage)
        engine.clock = self.clock
        wishes = {"max_concurrent_tasks": 1, "max_queue_age": 60.0, "grpc_port": 0, "drain_timeout": 0.01, **settings}
        self.server: A2AServer = serve(self.worker, storage=engine, settings=Settings(**wishes))

    async def fill(self, client: A2AClient) -> str:
        """The id of the task that waits."""
        await client.send("runs", blocking=False)
        await self.worker.started.wait()
        waits = await client.send("waits", blocking=False, message_id="waits")
        assert waits.state == "submitted"
        return waits.task_id


@pytest.fixture
def busy(storage: str) -> Busy:
    return Busy(storage)


async def test_a_new_task_is_refused_when_one_has_waited_too_long(connected: Connect, busy: Busy) -> None:
    async with connected(busy.server, client=PATIENCE) as client:
        await busy.fill(client)
        busy.clock.advance(seconds=60)
        await client.send("not yet too long", blocking=False)
        busy.clock.advance(seconds=8)
        with pytest.raises(OverloadedError, match="have waited for 68 s") as refused:
            await client.send("too long")
        assert refused.value.retry_after == 8
        with pytest.raises(OverloadedError):
            await anext(client.stream("too long"))
        assert len(await busy.server.tasks.list()) == 3


@one_dialect
async def test_live_tasks_take_messages_whatever_the_queue(connected: Connect, busy: Busy) -> None:
    async with connected(busy.server, client=PATIENCE) as client:
        waits = await busy.fill(client)
        busy.clock.advance(seconds=3600)
        more = await client.send("more", task_id=waits, blocking=False)
        assert more.task_id == waits
        assert (await client.cancel(waits)).state == "canceled"


@one_dialect
async def test_a_message_that_was_accepted_before_finds_its_task(connected: Connect, busy: Busy) -> None:
    async with connected(busy.server, client=PATIENCE) as client:
        waits = await busy.fill(client)
        busy.clock.advance(seconds=3600)
        again = await client.send("waits", blocking=False, message_id="waits")
        assert again.task_id == waits


@one_dialect
async def test_new_tasks_are_taken_again_when_the_queue_is_short(connected: Connect, busy: Busy) -> None:
    async with connected(busy.server, client=PATIENCE) as client:
        waits = await busy.fill(client)
        busy.clock.advance(seconds=3600)
        with pytest.raises(OverloadedError) as refused:
            await client.send("too long")
        assert refused.value.retry_after == 30
        busy.worker.gate.set()
        _ = [event async for event in client.subscribe(waits)]
        busy.clock.advance(seconds=1)
        assert (await client.send("now")).state == "completed"


async def test_without_a_bound_everything_may_wait(storage: str) -> None:
    busy = Busy(storage, max_queue_age=None, grpc_port=None)
    async with connect(busy.server) as client:
        await busy.fill(client)
        busy.clock.advance(seconds=10**6)
        assert (await client.send("waits, too", blocking=False)).state == "submitted"


@one_engine
async def test_the_client_comes_back_when_it_was_told_to(connected: Connect, busy: Busy) -> None:
    async with connected(busy.server) as client:
        waits = await busy.fill(client)
        busy.clock.advance(seconds=65)
        waited: list[float] = []

        async def until_done(seconds: float) -> None:
            waited.append(seconds)
            busy.worker.gate.set()
            _ = [event async for event in client.subscribe(waits)]
            busy.clock.advance(seconds=seconds)

        client._retry.sleep = until_done
        client._retry.uniform = lambda low, high: low
        assert (await client.send("patient")).state == "completed"
        assert waited == [5]


# On the wire


@asynccontextmanager
async def overloaded() -> AsyncIterator[httpx.AsyncClient]:
    busy = Busy("memory", grpc_port=None)
    async with connect(busy.server) as client, http_client(busy.server) as http:
        await busy.fill(client)
        busy.clock.advance(seconds=63)
        yield http


def message(text: str = "new") -> dict[str, Any]:
    return {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}]}


RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3s"}


async def test_over_http_it_is_503_with_retry_after() -> None:
    async with overloaded() as http:
        refused = await http.post("/message:send", json={"message": message()}, headers={"A2A-Version": "1.0"})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "3")
    error = refused.json()["error"]
    assert (error["code"], error["status"]) == (503, "UNAVAILABLE")
    assert error["details"][0]["reason"] == "OVERLOADED"
    assert error["details"][1] == RETRY


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
async def test_over_json_rpc_it_has_a_code_of_its_own(method: str) -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message()}}
    async with overloaded() as http:
        refused = await http.post("/", json=call, headers={"A2A-Version": "1.0"})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "3")
    error = refused.json()["error"]
    assert (error["code"], error["data"][0]["reason"], error["data"][1]) == (-32095, "OVERLOADED", RETRY)


async def test_over_praisonais_dialect_it_has_the_same_code() -> None:
    parts = [{"text": "new"}]
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "message/send",
        "params": {"message": {"messageId": "new", "role": "user", "parts": parts}},
    }
    async with overloaded() as http:
        refused = await http.post("/a2a", json=call)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "3")
    assert refused.json()["error"]["code"] == -32095


async def test_the_store_is_asked_once_a_second_and_only_for_tasks_that_would_wait() -> None:
    class Asked(MemoryEngine):
        times = 0

        async def queue_age(self, agents: Sequence[str]) -> int | None:
            self.times += 1
            return await super().queue_age(agents)

    clock, worker = ManualClock(), Gated()
    engine = Asked(clock=clock)
    server = serve(
        worker,
        storage=engine,
        settings=Settings(max_concurrent_tasks=1, max_queue_age=60.0, drain_timeout=0.01, metrics=False),
    )
    async with connect(server, client=PATIENCE) as client:
        await client.send("runs", blocking=False)
        assert engine.times == 0
        await asyncio.gather(*(client.send("waits", blocking=False) for _ in range(20)))
        assert engine.times == 1
        clock.advance(seconds=1)
        await asyncio.gather(*(client.send("waits", blocking=False) for _ in range(20)))
        assert engine.times == 2


async def test_the_log_says_once_that_new_tasks_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    busy = Busy("memory", grpc_port=None)
    async with connect(busy.server, client=PATIENCE) as client:
        await busy.fill(client)
        busy.clock.advance(seconds=100)
        for _ in range(3):
            with pytest.raises(OverloadedError):
                await client.send("too long")
        assert caplog.text.count("new ones are refused: start more workers") == 1
