"""errands' client talks to agents on the official SDKs, each in a process with its own environment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import pytest

from errands import A2AClient
from tests.interop.errands_client import ErrandsCaller
from tests.interop.expectations import ERRANDS, NOT_PLAYED, expected
from tests.interop.peers.conversation import STEPS, outcome
from tests.interop.sdks import BINDINGS, SDKS, Sdk, serving

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]  # the first test of all makes the environments


class Peer(NamedTuple):
    sdk: Sdk
    url: str


@pytest.fixture(scope="module", params=list(SDKS.values()), ids=list(SDKS))
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    with serving(request.param) as url:
        yield Peer(request.param, url)


@pytest.fixture(params=BINDINGS)
def binding(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def caller(peer: Peer, binding: str) -> AsyncIterator[ErrandsCaller]:
    async with A2AClient(peer.url, protocol=BINDINGS[binding]) as client:
        yield ErrandsCaller(client)


@pytest.mark.parametrize("step", STEPS)
async def test_errands_gets_from_the_official_server_what_it_should(
    caller: ErrandsCaller, peer: Peer, binding: str, step: str
) -> None:
    wanted = expected(ERRANDS, peer.sdk.release, binding, step)
    if wanted is NOT_PLAYED:
        pytest.skip("this agent cannot play it")
    assert await outcome(caller, step) == wanted
