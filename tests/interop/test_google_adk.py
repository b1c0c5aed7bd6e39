"""google-adk, in its own environment, talks to `errands serve`."""

from __future__ import annotations

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


def sessions(url: str, binding: str, mode: str, *names: str) -> dict[str, Any]:
    return outcomes(_python(), str(PEERS / "client_adk.py"), url, binding, mode, *names)


def _python() -> str:
    return environment("google-adk-2.13.0", *REQUIREMENTS)


@pytest.mark.parametrize("mode", ["plain", "streaming"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
def test_google_adk_gets_from_errands_what_it_should(binding: str, mode: str) -> None:
    _python()  # a served process has less time than an installation takes
    with Served(AGENT, cwd=ROOT) as agent:
        seen = sessions(agent.url, binding, mode, *SEEN)
    pieces = [["0 ", "1 ", "2 "]] if mode == "streaming" else SEEN["stream"]
    assert seen == {**SEEN, "stream": pieces}


@pytest.mark.parametrize(
    ("public_grpc", "refusal"),
    [
        ("off", None),
        ("http://127.0.0.1:{port}", None),
        ("http://127.0.0.1:1", "must have the same origin"),
        ("127.0.0.1:1", "must use https"),
    ],
)
def test_google_adk_takes_an_agent_with_grpc_whose_card_has_one_origin(public_grpc: str, refusal: str | None) -> None:
    """See the table in docs/serving.md: when one of these changes, so does what is recommended there."""
    _python()
    port = free_port()
    with Served(AGENT, cwd=ROOT, port=port, grpc_port="0", public_grpc=public_grpc.format(port=port)) as agent:
        seen = sessions(agent.url, "JSONRPC", "plain", "send")["send"]
    if refusal is None:
        assert seen == SEEN["send"]
    else:
        assert all(refusal in error for [error] in seen)
