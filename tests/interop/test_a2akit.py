"""a2akit and errands talk to each other over both bindings that a2akit has."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from errands import A2AClient
from tests.interop.errands_client import ErrandsCaller
from tests.interop.expectations import A2AKIT, ERRANDS, NOT_PLAYED, expected
from tests.interop.peers.conversation import KEEP_ALIVE_S, STEPS, outcome
from tests.interop.sdks import PEERS, ROOT, environment, outcomes, serving_peer
from tests.unit.cli.processes import Served
from tests.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]  # the first test of all makes the environment

BINDINGS = {"JSONRPC": "jsonrpc", "HTTP+JSON": "http+json"}


def a2akit() -> str:
    return environment("a2akit", "a2akit==0.0.32", "a2a-sdk==0.3.26")


class Talk(NamedTuple):
    binding: str
    outcomes: dict[str, Any]


@pytest.fixture(scope="module", params=BINDINGS)
def talk(request: pytest.FixtureRequest) -> Iterator[Talk]:
    """What a2akit's client has to tell about an errands agent."""
    python = a2akit()  # a served process has less time than an installation takes
    with Served("tests/interop/agent.py", cwd=ROOT, keep_alive=KEEP_ALIVE_S) as agent:
        script = str(PEERS / "client_a2akit.py")
        yield Talk(request.param, outcomes(python, script, agent.url, BINDINGS[request.param]))


@pytest.mark.parametrize("step", STEPS)
def test_a2akits_client_gets_from_errands_what_it_should(talk: Talk, step: str) -> None:
    assert talk.outcomes[step] == expected(A2AKIT, ERRANDS, talk.binding, step)


@pytest.fixture(scope="module")
def agent() -> Iterator[str]:
    with serving_peer(a2akit(), "server_a2akit.py") as url:
        yield url


@pytest.fixture(params=BINDINGS)
def binding(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def client(agent: str, binding: str) -> AsyncIterator[A2AClient]:
    async with A2AClient(agent, protocol=BINDINGS[binding]) as client:
        yield client


@pytest.mark.parametrize("step", STEPS)
async def test_errands_client_gets_from_a2akit_what_it_should(client: A2AClient, binding: str, step: str) -> None:
    wanted = expected(ERRANDS, A2AKIT, binding, step)
    if wanted is NOT_PLAYED:
        pytest.skip("this agent cannot play it")
    assert await outcome(ErrandsCaller(client), step) == wanted


@pytest.fixture(scope="module")
def hasty_agent() -> Iterator[str]:
    """The address of one that answers a blocking send after a moment, done or not."""
    with serving_peer(a2akit(), "server_a2akit.py", "0.1") as url:
        yield url


async def test_a_send_goes_on_waiting_when_a2akit_has_answered(hasty_agent: str, binding: str) -> None:
    asked: list[httpx.Request] = []

    async def note(request: httpx.Request) -> None:
        asked.append(request)

    name = uuid.uuid4().hex
    async with (
        httpx.AsyncClient(event_hooks={"request": [note]}) as http,
        A2AClient(hasty_agent, protocol=BINDINGS[binding], httpx_client=http) as client,
        A2AClient(hasty_agent) as other,
    ):
        connected = len(asked)
        sending = asyncio.create_task(client.send(f"rest {name}"))
        await until(lambda: len(asked) > connected + 2)  # the message, and two looks at the task
        assert not sending.done()
        await other.send(f"release {name}")
        assert (await sending).completed
