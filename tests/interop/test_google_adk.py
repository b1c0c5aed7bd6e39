"""google-adk, in its own environment, talks to `errands serve`."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import pytest

from tests.interop.sdks import PEERS, ROOT, environment, outcomes
from tests.ports import free_port
from tests.unit.cli.processes import Served

pytestmark = pytest.mark.timeout(600)  # the first test of all makes the environment

REQUIREMENTS = ("google-adk[a2a]==2.13.0", "a2a-sdk==1.3.0")
AGENT = "tests/interop/agent.py"
#: What a user of ADK sees in each session, a list per message.
SEEN: dict[str, list[list[str]]] = {
    "send": [["Echo: hello"], ["Echo: again"]],
    "stream": [["0 1 2 "]],
    "input required": [
        ['mock_function_call_for_required_user_input: {"input_required": "Which city?"}'],
        ["ask me: Lisbon"],
    ],
    "direct message": [["Directly"]],
    "failure": [["It went wrong"]],
    "files": [["AP8=", "ZGF0YQ=="]],
}


MODES = [(binding, mode) for binding in ("JSONRPC", "HTTP+JSON") for mode in ("plain", "streaming")]
#: What ADK says of an agent with gRPC, by the address of that in the card.
REFUSALS = {
    "off": None,
    "http://127.0.0.1:{port}": None,
    "http://127.0.0.1:1": "must have the same origin",
    "127.0.0.1:1": "must use https",
}

#: What was seen in each session, by the name of the talk.
Talks = dict[str, dict[str, list[list[str]]]]


@pytest.fixture(scope="module")
def talks() -> Talks:
    """All that ADK is asked to do, in one process: it takes seconds to start."""
    python = environment("google-adk-2.13.0", *REQUIREMENTS)
    wanted: dict[str, Any] = {}
    with ExitStack() as stack:
        agent = stack.enter_context(Served(AGENT, cwd=ROOT))
        for binding, mode in MODES:
            wanted[f"{binding} {mode}"] = (agent.url, binding, mode, list(SEEN))
        for public_grpc in REFUSALS:
            port = free_port()
            address = public_grpc.format(port=port)
            served = stack.enter_context(Served(AGENT, cwd=ROOT, port=port, grpc_port="0", public_grpc=address))
            wanted[public_grpc] = (served.url, "JSONRPC", "plain", ["send"])
        return outcomes(python, str(PEERS / "client_adk.py"), json.dumps(wanted))


@pytest.mark.parametrize(("binding", "mode"), MODES)
def test_google_adk_gets_from_errands_what_it_should(talks: Talks, binding: str, mode: str) -> None:
    pieces = [["0 ", "1 ", "2 "]] if mode == "streaming" else SEEN["stream"]
    assert talks[f"{binding} {mode}"] == {**SEEN, "stream": pieces}


@pytest.mark.parametrize(("public_grpc", "refusal"), REFUSALS.items())
def test_google_adk_takes_an_agent_with_grpc_whose_card_has_one_origin(
    talks: Talks, public_grpc: str, refusal: str | None
) -> None:
    """See the table in docs/serving.md: when one of these changes, so does what is recommended there."""
    seen = talks[public_grpc]["send"]
    if refusal is None:
        assert seen == SEEN["send"]
    else:
        assert all(refusal in error for [error] in seen)
