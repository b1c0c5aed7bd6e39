"""What one caller may use: each limit has its own error on every dialect, and other callers do not notice."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from errands import (
    A2AMiddleware,
    A2AServer,
    ApiKeyAuth,
    BearerTokenMiddleware,
    Caller,
    RequestEnvelope,
    Settings,
    TaskContext,
    Worker,
)
from errands.client import StreamInterruptedError
from errands.engines.base import Engine
from errands.engines.urls import engine_from_url
from errands.errors import (
    QuotaError,
    StorageError,
    TooManyBytesError,
    TooManyRequestsError,
    TooManyStreamsError,
    TooManyTasksError,
)
from errands.runtime.quotas import MAX_CALLERS, OpenStreams, RequestRate
from errands.server.asgi import HttpExchange
from errands.server.request_guard import client_network
from errands.testing import ManualClock, connect, http_client, serve
from tests.cells import every_engine, one_engine
from tests.interaction.agents import Asks, Echo, Gated, Patient
from tests.interaction.conftest import Connect, one_dialect
from tests.interaction.wire import message, rpc
from tests.waiting import until

pytestmark = pytest.mark.anyio

PATIENCE = {"max_retries": 0}
#: So slow that no bucket fills while a test runs.
SLOW = {"caller_rate": 0.001}


async def verify(token: str) -> dict[str, Any] | None:
    return {"sub": token} if token in ("ada", "alan", "grace") else None


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


# Requests


@one_engine
async def test_a_caller_that_sends_too_fast_is_refused(connected: Connect) -> None:
    async with connected(Echo(), client=PATIENCE, caller_burst=3, **SLOW) as client:
        for _ in range(3):
            assert (await client.send("hi")).state == "completed"
        with pytest.raises(TooManyRequestsError, match=r"0\.001 requests per second, and 3 at once") as refused:
            await client.send("hi")
        assert 0 < refused.value.retry_after <= 1000
        with pytest.raises(TooManyRequestsError):
            await anext(client.stream("hi"))


async def test_the_refusal_is_a_429_with_the_time_to_come_back() -> None:
    async with serve(Echo(), caller_burst=1, **SLOW) as server, http_client(server) as http:
        assert (await http.get("/tasks")).status_code == 200
        body = rpc("SendMessage", {"message": message()})
        answers = [
            await http.get("/tasks"),
            await http.post("/", json=body),
            await http.post("/a2a", json=rpc("tasks/get", {"id": "x"})),
            await http.get("/v1/tasks/x"),
        ]
        assert [answer.status_code for answer in answers] == [429] * 4
        assert all(0 < int(answer.headers["retry-after"]) <= 1000 for answer in answers)
        assert answers[0].json()["error"]["status"] == "RESOURCE_EXHAUSTED"
        error = answers[1].json()["error"]
        assert (error["code"], error["data"][0]["reason"]) == (-32094, "TOO_MANY_REQUESTS")
        # What proxies and monitors ask for is never refused.
        assert (await http.get("/health/ready")).status_code == 200
        assert (await http.get("/.well-known/agent-card.json")).status_code == 200


async def test_each_owner_has_its_own_requests_and_tokens_cannot_be_guessed_faster() -> None:
    server = serve(Echo(), middlewares=[BearerTokenMiddleware(verify)], caller_burst=2, **SLOW)
    async with server, http_client(server) as http:

        async def statuses(name: str) -> list[int]:
            return [(await http.get("/tasks", headers=bearer(name))).status_code for _ in range(3)]

        assert await statuses("ada") == [200, 200, 429]
        assert await statuses("grace") == [200, 200, 429]
        assert await statuses("guess") == [401, 401, 429]
        # A right guess after too many wrong ones.
        assert await statuses("alan") == [429, 429, 429]


async def test_a_large_body_of_a_caller_that_sends_too_fast_is_not_read() -> None:
    async with serve(Echo(), caller_burst=1, **SLOW) as server, http_client(server) as http:
        await http.get("/tasks")
        assert (await http.post("/", content=b"[" * 1000)).status_code == 429


def test_a_bucket_fills_as_time_passes_and_never_beyond_the_burst() -> None:
    now = 0.0
    rate = RequestRate(2.0, 3, lambda: now)

    def taken() -> int:
        for count in range(100):
            try:
                rate.take("caller")
            except TooManyRequestsError:
                return count
        return 100

    assert taken() == 3
    now += 0.49
    assert taken() == 0
    now += 0.01
    assert taken() == 1
    now += 1000
    assert taken() == 3
    with pytest.raises(TooManyRequestsError) as refused:
        rate.take("caller")
    assert refused.value.retry_after == 1
    rate.take("another")


async def test_a_large_request_counts_as_several() -> None:
    async with serve(Echo(), caller_burst=10, **SLOW) as server, http_client(server) as http:
        for expected in (200, 200, 429):
            sent = await http.post("/message:send", json={"message": message("x" * 6 * 65536)})
            assert sent.status_code == expected


def test_the_callers_that_are_remembered_are_bounded() -> None:
    rate = RequestRate(1.0, 1, lambda: 0.0)
    for number in range(MAX_CALLERS + 10):
        rate.take(str(number))
    assert len(rate._full_at) == MAX_CALLERS
    with pytest.raises(TooManyRequestsError):
        rate.take(str(MAX_CALLERS + 9))


# Addresses


def address(client: str | None, *forwarded: str, **settings: Any) -> str:
    headers = [(b"x-forwarded-for", value.encode()) for value in forwarded]
    scope = {"type": "http", "headers": headers, "client": None if client is None else (client, 5)}
    unused: Any = None
    return client_network(HttpExchange(scope, unused, unused, Settings()), Settings(**settings))


@pytest.mark.parametrize(
    ("client", "known"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
        (None, ""),
    ],
)
def test_a_caller_without_a_name_is_known_by_its_address(client: str | None, known: str) -> None:
    assert address(client) == known
    assert address(client, "198.51.100.1") == known  # anyone can write that


@pytest.mark.parametrize(
    ("forwarded", "proxies", "known"),
    [
        (["198.51.100.1"], 1, "198.51.100.1"),
        (["6.6.6.6, 198.51.100.1"], 1, "198.51.100.1"),
        (["6.6.6.6", "198.51.100.1"], 1, "198.51.100.1"),
        (["6.6.6.6, 198.51.100.1, 10.0.0.2"], 2, "198.51.100.1"),
        (["198.51.100.1:4711"], 1, "198.51.100.1"),
        (["[2001:db8::1]:4711"], 1, "2001:db8::/64"),
        (["198.51.100.1"], 2, "10.0.0.1"),
        (["unknown"], 1, "10.0.0.1"),
        ([], 1, "10.0.0.1"),
    ],
)
def test_behind_trusted_proxies_it_is_the_address_that_they_have_added(
    forwarded: list[str], proxies: int, known: str
) -> None:
    assert address("10.0.0.1", *forwarded, trust_forwarded=True, forwarded_proxies=proxies) == known


# Streams


@one_engine
async def test_a_caller_with_too_many_open_streams_is_refused_another(connected: Connect) -> None:
    worker = Gated()
    async with connected(worker, client=PATIENCE, caller_max_streams=2) as client:
        first, second = client.stream("one"), client.stream("two")
        task = (await anext(first)).task_id
        await anext(second)
        with pytest.raises(TooManyStreamsError, match="has 2 streams open"):
            await anext(client.stream("three"))
        with pytest.raises(StreamInterruptedError, match="has 2 streams open"):
            await anext(client.subscribe(task or ""))
        assert (await client.send("no stream", blocking=False)).state in ("submitted", "working")
        worker.gate.set()
        assert [event.state async for event in first][-1] == "completed"
        assert [event.state async for event in second][-1] == "completed"
        assert [event.state async for event in client.stream("four")][-1] == "completed"


async def test_a_stream_whose_client_goes_away_no_longer_counts() -> None:
    worker = Gated()
    async with serve(worker, caller_max_streams=1) as server, http_client(server) as http:
        body = {"message": message()}
        for _ in range(3):
            async with http.stream("POST", "/message:stream", json=body) as answer:
                assert answer.status_code == 200
                assert (await http.post("/message:stream", json={"message": message()})).status_code == 429
            streams = server.dispatcher._streams
            assert streams is not None
            await until(lambda streams=streams: not streams._open)
            body = {"message": message()}
        worker.gate.set()


async def test_a_stream_that_is_refused_does_not_count() -> None:
    async with serve(Echo(), caller_max_streams=1) as server, http_client(server) as http:
        for _ in range(3):
            assert (await http.get("/tasks/none:subscribe")).status_code == 404
        assert (await http.post("/message:stream", json={"message": message()})).status_code == 200


async def test_each_owner_has_its_own_streams() -> None:
    server = serve(Gated(), middlewares=[BearerTokenMiddleware(verify)], caller_max_streams=1, drain_timeout=0.0)
    async with server, http_client(server) as http:

        async def opened(name: str) -> int:
            request = http.build_request("POST", "/message:stream", json={"message": message()}, headers=bearer(name))
            return (await http.send(request, stream=True)).status_code

        assert [await opened(name) for name in ("ada", "ada", "alan")] == [200, 429, 200]


def test_closing_a_stream_twice_counts_once() -> None:
    streams = OpenStreams(2)
    close = streams.open("caller")
    streams.open("caller")
    close()
    close()
    streams.open("caller")
    with pytest.raises(TooManyStreamsError):
        streams.open("caller")


# Tasks and bytes, which the store counts


class Stores:
    """A server on a store whose clock the test moves."""

    def __init__(self, storage: str, worker: Worker, clock: ManualClock | None = None, **settings: Any) -> None:
        self.clock = clock or ManualClock()
        engine: Engine = engine_from_url(storage)
        engine.clock = self.clock
        wishes = {"grpc_port": 0, "drain_timeout": 0.01, "poll_interval": 0.02, **settings}
        self.server: A2AServer = serve(worker, storage=engine, settings=Settings(**wishes))


async def test_a_caller_with_too_many_live_tasks_is_refused_another(connected: Connect, storage: str) -> None:
    at = Stores(storage, Asks(), caller_max_tasks=2)
    async with connected(at.server, client=PATIENCE) as client:
        first = await client.send("one")
        assert first.state == "input-required"
        again = await client.send("two", message_id="two")
        with pytest.raises(TooManyTasksError, match="has 2 tasks that have not ended, and may have 2"):
            await client.send("three")
        # What is there goes on, and a message that was accepted before finds its task.
        assert (await client.send("two", message_id="two")).task_id == again.task_id
        assert (await client.send("French", task_id=first.task_id)).state == "completed"
        at.clock.advance(seconds=600)
        assert (await client.send("four")).state == "input-required"


@one_dialect
async def test_a_caller_that_never_has_many_tasks_at_once_is_never_refused(connected: Connect, storage: str) -> None:
    at = Stores(storage, Echo(), caller_max_tasks=2)
    async with connected(at.server, client=PATIENCE) as client:
        for _ in range(10):
            assert (await client.send("hi")).state == "completed"


@one_dialect
async def test_tasks_that_are_sent_at_the_same_moment_count_too(connected: Connect, storage: str) -> None:
    at = Stores(storage, Patient(), caller_max_tasks=5, cancel_force_timeout=0.0)
    async with connected(at.server, client=PATIENCE) as client:
        sent = [client.send(f"{number}", blocking=False) for number in range(30)]
        answers = await asyncio.gather(*sent, return_exceptions=True)
        assert sum(not isinstance(answer, QuotaError) for answer in answers) == 5
        assert await at.server.engine.count_live(at.server.scope()) == 5


@pytest.mark.parametrize("storage", ["sqlite", "postgresql", "redis"], indirect=True)
async def test_the_live_tasks_of_all_processes_and_of_former_ones_count(storage: str) -> None:
    clock = ManualClock()
    async with connect(Stores(storage, Asks(), clock, caller_max_tasks=3).server, client=PATIENCE) as client:
        await client.send("before a restart")
    first, second = (Stores(storage, Asks(), clock, caller_max_tasks=3).server for _ in range(2))
    async with connect(first, client=PATIENCE) as one, connect(second, client=PATIENCE) as two:
        await one.send("one")
        await two.send("two")
        clock.advance(seconds=600)
        for client in (one, two):
            with pytest.raises(TooManyTasksError):
                await client.send("three")


async def test_each_owner_has_its_own_tasks() -> None:
    server = serve(Asks(), middlewares=[BearerTokenMiddleware(verify)], caller_max_tasks=1)
    async with server, http_client(server) as http:

        async def send(name: str) -> httpx.Response:
            return await http.post("/message:send", json={"message": message()}, headers=bearer(name))

        assert [(await send(name)).status_code for name in ("ada", "ada", "alan")] == [200, 429, 200]


@every_engine
async def test_a_caller_gains_no_tasks_by_naming_other_tenants(storage: str) -> None:
    at = Stores(storage, Asks(), caller_max_tasks=2)
    async with at.server as server, http_client(server) as http:

        async def send(tenant: str) -> int:
            return (await http.post(f"/{tenant}/message:send", json={"message": message()})).status_code

        assert [await send(tenant) for tenant in ("t1", "t2", "t3", "t1")] == [200, 200, 429, 429]
        at.clock.advance(seconds=600)  # then the store is asked
        assert await send("t4") == 429
        assert (await http.post("/message:send", json={"message": message()})).status_code == 429


@every_engine
async def test_tasks_without_a_tenant_count_for_a_caller_that_names_one_later(storage: str) -> None:
    at = Stores(storage, Asks(), caller_max_tasks=2)
    async with at.server as server, http_client(server) as http:
        paths = ["/message:send", "/message:send", "/t1/message:send", "/message:send"]
        answers = [await http.post(path, json={"message": message()}) for path in paths]
        assert [answer.status_code for answer in answers] == [200, 200, 429, 429]


async def test_a_tenant_that_is_given_to_a_caller_has_tasks_of_its_own() -> None:
    keys = {"a": Caller(owner="ada", tenant="t1"), "b": Caller(owner="ada", tenant="t2"), "c": Caller(owner="ada")}
    server = serve(Asks(), auth=[ApiKeyAuth(keys)], caller_max_tasks=1, caller_burst=6, **SLOW)
    async with server, http_client(server) as http:

        async def send(key: str, tenant: str) -> int:
            headers = {"X-API-Key": key}
            path = f"/{tenant}/message:send"
            return (await http.post(path, json={"message": message()}, headers=headers)).status_code

        assert [await send("a", "t1"), await send("b", "t2")] == [200, 200]
        assert [await send(key, tenant) for key, tenant in (("a", "t1"), ("b", "t2"))] == [429, 429]
        # This caller may name any tenant: the tasks of its owner in all of them count.
        assert [await send("c", tenant) for tenant in ("t1", "t3", "t4")] == [429, 429, 429]


@every_engine
async def test_a_caller_gains_no_bytes_by_naming_other_tenants(storage: str) -> None:
    at = Stores(storage, Large(), caller_max_bytes=150_000)
    async with at.server as server, http_client(server) as http:

        async def send(tenant: str) -> int:
            return (await http.post(f"/{tenant}/message:send", json={"message": message()})).status_code

        assert [await send("t1"), await send("t2")] == [200, 200]
        at.clock.advance(seconds=6000)
        await send("t3")  # the answer counts from the next request on
        quotas = at.server.task_manager._submitter._quotas
        assert quotas is not None
        bound = quotas._bytes
        assert bound is not None
        await until(lambda: not bound._background)
        assert await send("t4") == 429


async def test_a_caller_gains_no_requests_by_naming_other_tenants() -> None:
    class NeedsBody(A2AMiddleware):
        async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
            envelope.owner = "ada"

    async with serve(Echo(), middlewares=[NeedsBody()], caller_burst=2, **SLOW) as server, http_client(server) as http:
        statuses = [(await http.get(f"/t{number}/tasks")).status_code for number in range(3)]
        assert statuses == [200, 200, 429]


class Large(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        if ctx.user_text == "ask":
            await ctx.request_input("which?")
        else:
            await ctx.complete("x" * 100_000)


@one_dialect
@every_engine
async def test_a_caller_whose_tasks_take_too_many_bytes_is_refused(connected: Connect, storage: str) -> None:
    at = Stores(storage, Large(), caller_max_bytes=150_000)
    async with connected(at.server, client=PATIENCE) as client:
        waiting = await client.send("ask")
        for _ in range(2):
            assert (await client.send("hi", message_id="one")).state == "completed"
        await client.send("hi")
        at.clock.advance(seconds=6000)
        await client.send("the answer counts from the next request on")
        store = at.server.engine
        assert await store.stored_bytes(at.server.scope()) > 150_000
        quotas = at.server.task_manager._submitter._quotas
        assert quotas is not None
        bound = quotas._bytes
        assert bound is not None
        await until(lambda: not bound._background)
        with pytest.raises(TooManyBytesError, match="bytes in the store, and may take 150000"):
            await client.send("hi")
        with pytest.raises(TooManyBytesError):
            await client.send("French", task_id=waiting.task_id)
        assert (await client.send("hi", message_id="one")).state == "completed"
        assert (await client.get_task(waiting.task_id)).state == "input-required"


async def test_what_this_process_accepts_counts_at_once() -> None:
    async with connect(Echo(), client=PATIENCE, caller_max_bytes=100_000) as client:
        await client.send("x" * 60_000)
        with pytest.raises(TooManyBytesError):
            await client.send("x" * 60_000)
        assert (await client.send("small")).state == "completed"


async def test_a_store_that_does_not_answer_is_not_a_refusal(caplog: pytest.LogCaptureFixture) -> None:
    server = serve(Echo(), caller_max_tasks=1)

    async def fails(scope: object, reach: object) -> int:
        raise StorageError("no answer")

    async with connect(server, client=PATIENCE) as client:
        bound = server.task_manager._submitter._quotas
        assert bound is not None
        assert bound._tasks is not None
        bound._tasks._ask = fails
        assert (await client.send("hi")).state == "completed"
    assert "its last answer is used: no answer" in caplog.text


async def test_the_log_says_which_setting_refuses_and_does_not_repeat_it(caplog: pytest.LogCaptureFixture) -> None:
    async with serve(Echo(), caller_burst=1, **SLOW) as server, http_client(server) as http:
        for _ in range(5):
            await http.get("/tasks")
    warnings = [record.message for record in caplog.records if "caller_rate" in record.message]
    assert warnings == ["requests of caller '127.0.0.1' are refused: the limit of caller_rate is reached"]
