"""Executors of the official SDKs, unchanged, under `errands serve`: the official clients hold the conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from tests.interop.expectations import expected, under_errands
from tests.interop.peers.conversation import KEEP_ALIVE_S, STEPS
from tests.interop.sdks import BINDINGS, SDKS, Sdk, conversation, interpreter, serving_executor
from tests.unit.cli.processes import Served

pytestmark = pytest.mark.timeout(300)  # the first test of all makes the environments

#: The executor's SDK, the client's SDK and the binding. The gRPC stubs that errands serves with are those of 1.3.
PAIRS = [
    (executor, client, binding)
    for executor in SDKS.values()
    for client in SDKS.values()
    for binding in BINDINGS
    if (executor.protocol, binding) != ("0.3", "GRPC")
]


class Talk(NamedTuple):
    executor: Sdk
    client: Sdk
    binding: str
    outcomes: dict[str, Any]


@pytest.fixture(scope="module")
def served() -> Iterator[Callable[[Sdk], Served]]:
    """Serves the executor of an SDK, once for all clients that talk to it."""
    agents: dict[str, Served] = {}
    with ExitStack() as stack:

        def serve(sdk: Sdk) -> Served:
            if sdk.release not in agents:
                settings = {} if sdk.protocol == "0.3" else {"grpc_port": "0"}
                agent = serving_executor(sdk, sdk.executor, port=0, keep_alive=KEEP_ALIVE_S, **settings)
                agents[sdk.release] = stack.enter_context(agent)
            return agents[sdk.release]

        yield serve


@pytest.fixture(
    scope="module",
    params=[pytest.param(pair, id=f"{pair[0].release}-under-{pair[1].release}-{pair[2]}") for pair in PAIRS],
)
def talk(request: pytest.FixtureRequest, served: Callable[[Sdk], Served]) -> Talk:
    executor, client, binding = request.param
    interpreter(client)
    interpreter(executor)
    return Talk(executor, client, binding, conversation(client, served(executor).url, binding))


@pytest.mark.parametrize("step", STEPS)
def test_the_official_client_gets_from_an_sdk_executor_what_it_gets_from_a_worker(talk: Talk, step: str) -> None:
    assert talk.outcomes[step] == expected(
        talk.client.release, under_errands(talk.executor.release), talk.binding, step
    )
