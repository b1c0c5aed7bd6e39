"""One server takes requests, another runs the tasks: every way to ask, over every store that they can share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from errands import (
    A2AClient,
    A2AServer,
    AgentExecutor,
    BearerTokenMiddleware,
    EventQueue,
    RequestContext,
    Settings,
    TaskContext,
    Worker,
)
from errands.errors import ConfigurationError
from errands.runtime.settings import ServerRole
from errands.testing import connect, http_client, serve
from tests.conftest import STORAGES
from tests.interaction.agents import Asks, Direct, Echo, Executes, Gated, Patient, Replies, card

pytestmark = pytest.mark.anyio

Split = Callable[[Worker | AgentExecutor], AbstractAsyncContextManager[A2AClient]]


@pytest.fixture(params=[name for name in STORAGES if name != "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A storage URL of each engine that processes can share."""
    return STORAGES[request.param](tmp_path)


class Idle(Worker):
    """What the server that takes requests must never call."""

    async def handle(self, ctx: TaskContext) -> None:
        raise AssertionError("a turn in a process that runs none")


class IdleExecutor(Executes):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise AssertionError("a turn in a process that runs none")


@pytest.fixture
def split(store: str) -> Split:
    """`async with split(agent) as client`: a client of an `api`, beside a `worker` that runs the agent."""

    @asynccontextmanager
    async def connected(agent: Worker | AgentExecutor) -> AsyncIterator[A2AClient]:
        idle = IdleExecutor() if isinstance(agent, AgentExecutor) else Idle()
        api = serve(idle, storage=store, agent_card=card(), role="api", cancel_force_timeout=3600)
        worker = serve(agent, storage=store, agent_card=card(), role="worker", cancel_force_timeout=3600)
        async with worker, connect(api) as client:
            yield client

    return connected


async def test_a_blocking_send_waits_for_the_worker(split: Split) -> None:
    async with split(Echo()) as client:
        answers = await asyncio.gather(*(client.send(f"{number}") for number in range(20)))
        assert [answer.text for answer in answers] == [f"Echo: {number}" for number in range(20)]


async def test_a_send_that_does_not_wait_is_answered_at_once(split: Split) -> None:
    worker = Gated()
    async with split(worker) as client:
        task = await client.send("go", blocking=False)
        assert task.state == "submitted"
        await worker.started.wait()
        worker.gate.set()


async def test_a_stream_shows_what_the_worker_does(split: Split) -> None:
    worker = Gated()
    worker.gate.set()
    async with split(worker) as client:
        events = [event.text or event.state async for event in client.stream("go")]
        assert events == ["submitted", "working", "first ", "second", "completed"]


async def test_a_subscriber_sees_the_rest_of_a_task(split: Split) -> None:
    worker = Gated()
    async with split(worker) as client:
        task = await client.send("go", blocking=False)
        await worker.started.wait()
        events = client.subscribe(task.task_id)
        assert (await anext(events)).text == "first "
        worker.gate.set()
        assert [event.text or event.state async for event in events] == ["second", "completed"]


async def test_a_cancel_reaches_the_worker(split: Split) -> None:
    worker = Patient()
    async with split(worker) as client:
        task = await client.send("go", blocking=False)
        await worker.started.wait()
        # By force it would take an hour.
        assert (await client.cancel(task.task_id)).state == "canceled"


async def test_a_question_is_asked_and_answered(split: Split) -> None:
    async with split(Asks()) as client:
        asked = await client.send("write")
        assert asked.state == "input-required"
        answered = await client.send("Python", task_id=asked.task_id)
        assert (answered.state, answered.text) == ("completed", "write in Python")


async def test_a_direct_answer_is_a_message(split: Split) -> None:
    async with split(Direct()) as client:
        answer = await client.send("hi")
        assert (answer.raw_task, answer.text) == (None, "You said hi")


async def test_an_executor_chooses_its_answer(split: Split) -> None:
    async with split(Replies()) as client:
        answer = await client.send("hi")
        assert (answer.raw_task, answer.text) == (None, "You said hi")
        assert [event.text async for event in client.stream("hi")] == ["You said hi"]


async def test_the_cancel_of_an_executor_is_called_for_a_task_that_waits(split: Split) -> None:
    async with split(Executes()) as client:
        asked = await client.send("write")
        assert asked.state == "input-required"
        canceled = await client.cancel(asked.task_id)
        assert (canceled.state, canceled.text) == ("canceled", "Gone")


async def test_owners_are_kept_apart_and_request_contexts_stay_where_they_are(store: str) -> None:
    class Teller(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            await ctx.complete(f"{ctx.owner} {ctx.request_context}")

    async def verify(token: str) -> dict[str, object]:
        return {"sub": token}

    doorman = [BearerTokenMiddleware(verify)]
    api = serve(Idle(), storage=store, agent_card=card(), role="api", middlewares=doorman)
    headers = {"Authorization": "Bearer ada"}
    worker = serve(Teller(), storage=store, agent_card=card(), role="worker")
    async with worker, connect(api, client={"headers": headers}) as client:
        assert (await client.send("who am I?")).text == "ada {}"
        # Nothing waits for a turn that this process will never run.
        assert api.pool.contexts == {}


# What a role is


async def test_a_worker_takes_no_requests_over_any_binding(store: str) -> None:
    server = serve(Echo(), storage=store, role="worker", grpc_port=0)
    async with server, http_client(server) as http:
        assert server.grpc_port is None
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
        for path in ("/message:send", "/message:stream"):
            refused = await http.post(path, json={"message": message})
            assert (refused.status_code, refused.json()["error"]["status"]) == (404, "UNIMPLEMENTED")
        for path in ("/", "/a2a"):
            call = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": message}}
            assert (await http.post(path, json=call)).json()["error"]["code"] in (-32601, -32602)
        # A store that takes longer than a second to answer makes it unready for the moment.
        while (await http.get("/health/ready")).status_code != 200:
            await asyncio.sleep(0.01)
        assert await server.tasks.list() == []


@pytest.mark.parametrize("role", ["api", "worker"])
async def test_a_store_in_memory_is_refused(role: str) -> None:
    with pytest.raises(ConfigurationError, match="private to one process"):
        await serve(Echo(), storage="memory", role=role).start()


def test_a_role_that_is_none_is_told_with_those_there_are() -> None:
    with pytest.raises(ConfigurationError, match="expected one of all, api, worker"):
        serve(Echo(), role="boss")


def test_a_role_comes_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ERRANDS_ROLE", "api")
    server = A2AServer(worker=Echo(), agent_card=card())
    assert server.settings.role is ServerRole.API
    assert serve(Echo(), settings=Settings(role=ServerRole.WORKER)).settings.role is ServerRole.WORKER
    monkeypatch.setenv("ERRANDS_ROLE", "boss")
    with pytest.raises(ConfigurationError, match="ERRANDS_ROLE"):
        A2AServer(worker=Echo(), agent_card=card())
