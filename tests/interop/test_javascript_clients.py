"""The clients of both generations of the JavaScript SDK talk to `errands serve`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.interop.expectations import ERRANDS, expected
from tests.interop.node import NODE_SDKS, NodeSdk, conversation, packages
from tests.interop.peers.conversation import KEEP_ALIVE_S, STEPS
from tests.interop.sdks import BINDINGS, ROOT
from tests.unit.cli.processes import Served

pytestmark = pytest.mark.timeout(300)  # the first test of all installs the packages


class Talk(NamedTuple):
    sdk: NodeSdk
    binding: str
    outcomes: dict[str, Any]


@pytest.fixture(
    scope="module",
    params=[pytest.param((sdk, binding), id=f"{sdk.release}-{binding}") for sdk in NODE_SDKS for binding in BINDINGS],
)
def talk(request: pytest.FixtureRequest) -> Iterator[Talk]:
    """What the SDK's client has to tell about an errands agent."""
    sdk, binding = request.param
    packages(sdk)  # a served process has less time than an installation takes
    with Served("tests/interop/agent.py", cwd=ROOT, grpc_port="0", keep_alive=KEEP_ALIVE_S) as agent:
        yield Talk(sdk, binding, asyncio.run(conversation(sdk, agent.url, binding)))


@pytest.mark.parametrize("step", STEPS)
def test_the_javascript_client_gets_from_errands_what_it_should(talk: Talk, step: str) -> None:
    assert talk.outcomes[step] == expected(talk.sdk.name, ERRANDS, talk.binding, step)
