"""What is expected of each pair of client and agent: `EXPECTED`, but for differences that have their reasons."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tests.interop.peers.conversation import ALL_PARTS, DATA, EXPECTED, FILES

ERRANDS = "errands"
A2AKIT = "a2akit"
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


def _parts(seen: str, returned: str) -> list[dict[str, str]]:
    return [{"text": seen}, *({"data": returned} if "data" in part else part for part in ALL_PARTS)]


def _unnamed(parts: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{**part, "name": ""} if "name" in part else part for part in parts]


#: The data after protobuf has had it, whose numbers are all floats: 1 is 1.0, and 2**53 + 1 is lost.
_FLOATS = json.dumps(_floats(DATA), sort_keys=True)
#: The same where errands has read it from gRPC: whole numbers are integers again.
_WHOLE = json.dumps({**DATA, "big": 2**53}, sort_keys=True)

_STRUCT = "the SDK keeps data in protobuf's Struct"
_STATUS_ONLY = "the SDK's client tells the status and no more"
_NO_LIST = "there is no such method in the SDKs of 0.3"
_DOUBLES = "numbers of JavaScript are doubles"
_UNNAMED = "the SDK writes and reads no names of files there"
_CODE_ONLY = "the SDK's client tells the code of an error in a stream and no more"
_BELIEVES = "errands' client believes the card and does not ask"
_OLD_ERROR = "the SDK has this error for it"
_UNNAMED = "a2akit's client has no name for it"

_NOT_FOUND = dict.fromkeys(("get", "cancel", "send"), "NOT_FOUND")

DIFFERENCES = (
    # Clients of a2a-sdk with errands.
    Difference("1.3.0", ERRANDS, _JSONRPC + _REST, "parts_there_and_back", _parts(_FLOATS, _FLOATS), _STRUCT),
    Difference("1.3.0", ERRANDS, _GRPC, "parts_there_and_back", _parts(_WHOLE, _FLOATS), _STRUCT),
    Difference("0.3.26", ERRANDS, _REST, "parts_there_and_back", _parts(_FLOATS, _FLOATS), _STRUCT),
    Difference("0.3.26", ERRANDS, _GRPC, "parts_there_and_back", _parts(_WHOLE, _FLOATS), _STRUCT),
    Difference("0.3.26", ERRANDS, _EVERY, "list_by_context", "refused: the client cannot list", _NO_LIST),
    Difference("0.3.26", ERRANDS, _REST, "unknown_task", dict.fromkeys(("get", "cancel", "send"), "404"), _STATUS_ONLY),
    Difference("0.3.26", ERRANDS, _REST, "ended_task", {"cancel": "409", "send": "501"}, _STATUS_ONLY),
    Difference("0.3.26", ERRANDS, _REST, "follow_unknown_task", "400", "the SDK's client says 400 to any refusal"),
    Difference("0.3.26", ERRANDS, _REST, "follow_ended_task", "400", "the SDK's client says 400 to any refusal"),
    Difference("0.3.26", ERRANDS, _REST, "push_not_offered", "501", _STATUS_ONLY),
    Difference("0.3.26", ERRANDS, _GRPC, "unknown_task", _NOT_FOUND, _STATUS_ONLY),
    Difference(
        "0.3.26", ERRANDS, _GRPC, "ended_task", dict.fromkeys(("cancel", "send"), "FAILED_PRECONDITION"), _STATUS_ONLY
    ),
    Difference("0.3.26", ERRANDS, _GRPC, "follow_unknown_task", "NOT_FOUND", _STATUS_ONLY),
    Difference("0.3.26", ERRANDS, _GRPC, "follow_ended_task", "FAILED_PRECONDITION", _STATUS_ONLY),
    Difference("0.3.26", ERRANDS, _GRPC, "push_not_offered", "FAILED_PRECONDITION", _STATUS_ONLY),
    # Clients of @a2a-js/sdk with errands.
    Difference("a2a-js 1.3.0", ERRANDS, _EVERY, "parts_there_and_back", _parts(_WHOLE, _WHOLE), _DOUBLES),
    Difference("a2a-js 0.3.14", ERRANDS, _JSONRPC, "parts_there_and_back", _parts(_WHOLE, _WHOLE), _DOUBLES),
    Difference(
        "a2a-js 0.3.14",
        ERRANDS,
        _REST,
        "parts_there_and_back",
        _unnamed(_parts(_WHOLE, _WHOLE)),
        f"{_DOUBLES}; {_UNNAMED}",
    ),
    Difference(
        "a2a-js 0.3.14",
        ERRANDS,
        _GRPC,
        "parts_there_and_back",
        "refused: GRPC error for sendMessage! 13 Request message serialization failure: invalid int32: object",
        "the SDK cannot send null in data over gRPC",
    ),
    Difference("a2a-js 0.3.14", ERRANDS, _REST + _GRPC, "files_there_and_back", _unnamed(FILES), _UNNAMED),
    Difference("a2a-js 0.3.14", ERRANDS, _EVERY, "list_by_context", "refused: the client cannot list", _NO_LIST),
    Difference("a2a-js 0.3.14", ERRANDS, _JSONRPC, "follow_unknown_task", "-32001", _CODE_ONLY),
    Difference("a2a-js 0.3.14", ERRANDS, _JSONRPC, "follow_ended_task", "-32004", _CODE_ONLY),
    # The same with an executor of a2a-sdk 1.3.0 under errands.
    *(
        Difference(client, f"{ERRANDS} with 1.3.0", _GRPC, "parts_there_and_back", _parts(_FLOATS, _FLOATS), _STRUCT)
        for client in ("1.3.0", "0.3.26")
    ),
    Difference("0.3.26", f"{ERRANDS} with 1.3.0", _JSONRPC, "parts_there_and_back", _parts(_FLOATS, _WHOLE), _STRUCT),
    # errands' client with agents of a2a-sdk.
    Difference(ERRANDS, "1.3.0", _JSONRPC + _REST, "parts_there_and_back", _parts(_FLOATS, _FLOATS), _STRUCT),
    Difference(ERRANDS, "1.3.0", _GRPC, "parts_there_and_back", _parts(_FLOATS, _WHOLE), _STRUCT),
    Difference(ERRANDS, "1.3.0", _EVERY, "push_not_offered", "AgentCapabilityError", _BELIEVES),
    Difference(
        ERRANDS, "1.3.0", _EVERY, "follow_ended_task", "was not refused", "errands' client shows how the task ended"
    ),
    Difference(ERRANDS, "0.3.26", _REST, "parts_there_and_back", _parts(_FLOATS, _FLOATS), _STRUCT),
    Difference(ERRANDS, "0.3.26", _GRPC, "parts_there_and_back", _parts(_FLOATS, _WHOLE), _STRUCT),
    Difference(ERRANDS, "0.3.26", _EVERY, "push_not_offered", "AgentCapabilityError", _BELIEVES),
    Difference(ERRANDS, "0.3.26", _JSONRPC, "list_by_context", "refused: MethodNotFoundError", _NO_LIST),
    Difference(ERRANDS, "0.3.26", _REST, "list_by_context", "refused: InternalError", _NO_LIST),
    Difference(ERRANDS, "0.3.26", _GRPC, "list_by_context", "refused: UnsupportedOperationError", _NO_LIST),
    Difference(
        ERRANDS,
        "0.3.26",
        _GRPC,
        "extended_card",
        EXPECTED["card"],
        "the SDK has no extended card over gRPC and gives the public one",
    ),
    Difference(
        ERRANDS,
        "0.3.26",
        _EVERY,
        "ended_task",
        {"cancel": "TaskNotCancelableError", "send": "InvalidParamsError"},
        _OLD_ERROR,
    ),
    Difference(
        ERRANDS, "0.3.26", _EVERY, "follow_ended_task", "was not refused", "errands' client shows how the task ended"
    ),
    Difference(
        ERRANDS,
        "0.3.26",
        _EVERY,
        "cancel_while_streaming",
        NOT_PLAYED,
        "the SDK leaves the stream of a task open that somebody else cancels",
    ),
    Difference(
        ERRANDS, "0.3.26", _EVERY, "follow_quiet_task", NOT_PLAYED, "a stream of the SDK does not begin with the task"
    ),
    # The client of a2akit with errands.
    Difference(
        A2AKIT,
        ERRANDS,
        _EVERY,
        "ended_task",
        {"cancel": "TaskNotCancelableError", "send": "TaskTerminalError"},
        "its name for it",
    ),
    Difference(A2AKIT, ERRANDS, _JSONRPC, "follow_ended_task", "TaskTerminalError", "its name for it"),
    Difference(A2AKIT, ERRANDS, _REST, "follow_ended_task", "Task is already completed: there is noth", _UNNAMED),
    Difference(A2AKIT, ERRANDS, _JSONRPC, "push_not_offered", "Protocol error: JSON-RPC error -32003: T", _UNNAMED),
    Difference(A2AKIT, ERRANDS, _REST, "push_not_offered", "a push notification config needs a url", _UNNAMED),
    # errands' client with agents of a2akit.
    Difference(
        ERRANDS, A2AKIT, _EVERY, "stream", NOT_PLAYED, "a2akit's memory store changes pieces that wait to be sent"
    ),
    Difference(
        ERRANDS, A2AKIT, _EVERY, "follow_ended_task", "was not refused", "errands' client shows how the task ended"
    ),
    Difference(ERRANDS, A2AKIT, _EVERY, "push_not_offered", "AgentCapabilityError", _BELIEVES),
)


def under_errands(release: str) -> str:
    """The name of an agent that is an executor of this SDK under errands."""
    return f"{ERRANDS} with {release}"


def expected(client: str, agent: str, binding: str, step: str) -> Any:
    for name in (agent, ERRANDS) if agent.startswith(ERRANDS) else (agent,):
        for difference in DIFFERENCES:
            if difference[:2] == (client, name) and binding in difference.bindings and difference.step == step:
                return difference.outcome
    return EXPECTED[step]
