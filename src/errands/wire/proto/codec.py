"""The port for protobuf dialects: one protocol version over gRPC, both ways, for server and client alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from google.protobuf import empty_pb2
from google.protobuf.message import DecodeError

from errands.errors import A2AError, InvalidParamsError, UnsupportedOperationError
from errands.model.base import Model
from errands.model.requests import Empty
from errands.operations import OPERATIONS, Operation
from errands.wire.dialect import MalformedAnswerError
from errands.wire.proto.bounds import BYTES_PER_VALUE, check_message
from errands.wire.proto.values import check_levels

#: A generated protobuf message.
Message = Any


class Rpc(NamedTuple):
    """One operation as a method of the service: what goes over the wire, and how it becomes ours."""

    #: The method's name.
    name: str
    operation: Operation
    request: type[Message]
    response: type[Message]
    #: Raises `InvalidParamsError` with the field, and ValueError for values that JSON does not have.
    read: Callable[[Message], Model]
    #: Raises ValueError when protobuf cannot carry it.
    write: Callable[[Any], Message]
    #: What the client does; both raise ValueError likewise.
    ask: Callable[[Any], Message]
    answer: Callable[[Message], Any]


def rpc(
    operation: str, request: Any, response: Any, read: Any, ask: Any, write: Any, answer: Any, *, name: str = ""
) -> Rpc:
    """One operation, in the order of its way: read and ask are about requests, write and answer about responses."""
    return Rpc(
        name or operation, OPERATIONS[operation], request, response, read=read, write=write, ask=ask, answer=answer
    )


def read_nothing(_: Message) -> Empty:
    return Empty()


def write_nothing(_: Empty) -> Message:
    return empty_pb2.Empty()


class Codec(NamedTuple):
    """How one version of the protocol is spelled in protobuf."""

    #: `Major.Minor`, as in the `a2a-version` metadata.
    version: str
    #: The service's full name.
    service: str
    rpcs: Mapping[str, Rpc]
    #: Whether a subscription is over when the task pauses.
    ends_at_pause: bool = False
    #: Whether an error's message begins with the name of its class: all that clients of 0.3 go by.
    names_errors: bool = False
    #: Gives the error that this version has for one of ours.
    restate: Callable[[A2AError], A2AError] = lambda error: error
    #: Gives the codec for a peer that calls itself so in `User-Agent`, where it is another one.
    variant: Callable[[bytes], Codec] | None = None

    def rpc_of(self, operation: Operation) -> Rpc:
        """Raises `UnsupportedOperationError` when this version has no such method."""
        rpc = self.rpcs.get(operation.name)
        if rpc is None:
            raise UnsupportedOperationError(f"A2A {self.version} has no {operation.name} over gRPC")
        return rpc


def read_request(rpc: Rpc, raw: bytes, max_values: int) -> Model:
    """Return the operation's request, validated. Raises `InvalidParamsError` and `PayloadTooLargeError`."""
    descriptor = rpc.request.DESCRIPTOR
    if len(raw) > BYTES_PER_VALUE * max_values:
        check_message(descriptor, raw, max_values)
    try:
        message = rpc.request.FromString(raw)
    except DecodeError as error:
        raise InvalidParamsError(f"The request is not a valid {descriptor.full_name}: {error}") from None
    try:
        return rpc.read(message)
    except ValueError as error:
        raise InvalidParamsError(str(error)) from None


def write_request(rpc: Rpc, request: Model) -> bytes:
    """Raises `InvalidParamsError` when protobuf cannot carry it."""
    try:
        check_levels(request)
        raw: bytes = rpc.ask(request).SerializeToString()
    except ValueError as error:
        raise InvalidParamsError(str(error)) from None
    return raw


def read_response(rpc: Rpc, raw: bytes) -> Any:
    """The operation's response, or one event of its stream. Raises `MalformedAnswerError`."""
    try:
        return rpc.answer(rpc.response.FromString(raw))
    except (DecodeError, ValueError) as error:
        raise MalformedAnswerError(f"no {rpc.response.DESCRIPTOR.full_name} ({error})") from None
