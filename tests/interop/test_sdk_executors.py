"""Executors of the official SDKs, unchanged, under `errands serve`: the official clients hold the conversation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.interop.expectations import expected, under_errands
from tests.interop.peers.conversation import KEEP_ALIVE_S, STEPS
from tests.interop.sdks import BINDINGS, SDKS, Sdk, conversation, interpreter, serving_executor

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


@pytest.fixture(
    scope="module",
    params=[pytest.param(pair, id=f"{pair[0].release}-under-{pair[1].release}-{pair[2]}") for pair in PAIRS],
)
def talk(request: pytest.FixtureRequest) -> Iterator[Talk]:
    executor, client, binding = request.param
    interpreter(client)
    interpreter(executor)
    settings = {"grpc_port": "0"} if binding == "GRPC" else {}
    with serving_executor(executor, executor.executor, port=0, keep_alive=KEEP_ALIVE_S, **settings) as agent:
        yield Talk(executor, client, binding, conversation(client, agent.url, binding))


@pytest.mark.parametrize("step", STEPS)
def test_the_official_client_gets_from_an_sdk_executor_what_it_gets_from_a_worker(talk: Talk, step: str) -> None:
    assert talk.outcomes[step] == expected(
        talk.client.release, under_errands(talk.executor.release), talk.binding, step
    )
