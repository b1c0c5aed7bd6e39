"""What is expected of each pair of client and agent: `EXPECTED`, but for differences that have their reasons."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tests.interop.peers.conversation import ALL_PARTS, DATA, EXPECTED

ERRANDS = "errands"
#: Of a step that this pair cannot play.
NOT_PLAYED = object()

_JSONRPC = ("JSONRPC",)
_REST = ("HTTP+JSON",)
_GRPC = ("GRPC",)
_EVERY = _JSONRPC + _REST + _GRPC


class Difference(NamedTuple):
    client: str
    agent: str
    bindings: tuple[str, ...]
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
_PARTS_WITH_FLOATS = [{"text": _FLOATS}, *({"data": _FLOATS} if "data" in part else part for part in ALL_PARTS)]
_STRUCT = "the SDK keeps data in protobuf's Struct"
_SHOWS_THE_END = {**EXPECTED["ended_task"], "subscribe": "was not refused"}

DIFFERENCES = (
    # Clients of a2a-sdk with errands.
    Difference("1.3.0", ERRANDS, _EVERY, "parts_there_and_back", _PARTS_WITH_FLOATS, _STRUCT),
    Difference("0.3.26", ERRANDS, _REST + _GRPC, "parts_there_and_back", _PARTS_WITH_FLOATS, _STRUCT),
    Difference(
        "0.3.26", ERRANDS, _EVERY, "list_by_context", "refused: the client cannot list", "0.3 has no list on JSON-RPC"
    ),
    # errands' client with agents of a2a-sdk.
    Difference(ERRANDS, "1.3.0", _EVERY, "parts_there_and_back", _PARTS_WITH_FLOATS, _STRUCT),
    Difference(ERRANDS, "1.3.0", _EVERY, "push_not_offered", "AgentCapabilityError", "the client believes the card"),
    Difference(
        ERRANDS, "1.3.0", _EVERY, "ended_task", _SHOWS_THE_END, "the client shows the end of a task that has ended"
    ),
    Difference(ERRANDS, "0.3.26", _REST + _GRPC, "parts_there_and_back", _PARTS_WITH_FLOATS, _STRUCT),
    Difference(ERRANDS, "0.3.26", _EVERY, "push_not_offered", "AgentCapabilityError", "the client believes the card"),
    Difference(
        ERRANDS,
        "0.3.26",
        _EVERY,
        "cancel_while_streaming",
        NOT_PLAYED,
        "the SDK leaves the stream of a task open that somebody else cancels",
    ),
)


def expected(client: str, agent: str, binding: str, step: str) -> Any:
    for difference in DIFFERENCES:
        if difference[:2] == (client, agent) and binding in difference.bindings and difference.step == step:
            return difference.outcome
    return EXPECTED[step]
