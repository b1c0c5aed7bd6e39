"""What is expected of each pair of client and agent: `EXPECTED`, but for the differences that are the SDKs' own."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tests.interop.peers.conversation import ALL_PARTS, DATA, EXPECTED

ERRANDS = "errands"
EVERY = frozenset({"JSONRPC", "HTTP+JSON", "GRPC"})
THROUGH_PROTOBUF = frozenset({"HTTP+JSON", "GRPC"})


class Difference(NamedTuple):
    client: str
    agent: str
    bindings: frozenset[str]
    step: str
    outcome: Any
    reason: str


def _floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _floats(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_floats(item) for item in value]
    return float(value) if type(value) is int else value


#: The parts after protobuf has had the data, whose numbers are all floats: 2**53 + 1 is lost, and 1 is 1.0.
_FLOATS = json.dumps(_floats(DATA), sort_keys=True)
PARTS_WITH_FLOATS = [{"text": _FLOATS}, *({"data": _FLOATS} if "data" in part else part for part in ALL_PARTS)]

DIFFERENCES = (
    Difference(
        "1.3.0", ERRANDS, EVERY, "parts_there_and_back", PARTS_WITH_FLOATS, "the SDK keeps data in protobuf's Struct"
    ),
    Difference(
        ERRANDS, "1.3.0", EVERY, "parts_there_and_back", PARTS_WITH_FLOATS, "the SDK keeps data in protobuf's Struct"
    ),
    *(
        Difference(ERRANDS, release, EVERY, "push_not_offered", "AgentCapabilityError", "the card is believed")
        for release in ("1.3.0", "0.3.26")
    ),
    Difference(
        ERRANDS,
        "1.3.0",
        EVERY,
        "ended_task",
        {**EXPECTED["ended_task"], "subscribe": "was not refused"},
        "errands' client shows the end of a task that has ended",
    ),
)


def expected(client: str, agent: str, binding: str, step: str) -> Any:
    for difference in DIFFERENCES:
        if difference[:2] == (client, agent) and binding in difference.bindings and difference.step == step:
            return difference.outcome
    return EXPECTED[step]
