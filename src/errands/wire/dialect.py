"""The dialect port: how one protocol version is spelled on a binding, for server and client alike.

A dialect knows names, paths, codecs and error bodies; it does no I/O. Everything inside works with version 1.0, so a
dialect reads requests into the structs of `errands.model`, and writes answers and events from them. A binding looks an
operation up in `methods` or `routes` and does not need to know the version.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from errands.errors import A2AError, UnsupportedOperationError
from errands.model.base import A2AObject
from errands.model.core import StreamResponse
from errands.operations import Operation

#: JSON as it came or as it will be sent.
Json = bytes | msgspec.Raw

#: The header, by protocol version, in which a client declares extensions and an agent says which of them are active.
#: Over gRPC it is a key of the metadata.
EXTENSION_HEADERS = {"1.0": "A2A-Extensions", "0.3": "X-A2A-Extensions"}
EXTENSIONS = EXTENSION_HEADERS["1.0"]


class MalformedAnswerError(Exception):
    """An agent's answer does not follow its dialect. The client reports it as a `ProtocolError`."""


class Route(NamedTuple):
    """One row of the HTTP+JSON table. `{name}` in the path is the request's field of that name."""

    operation: Operation
    methods: frozenset[str]
    path: str


class Located(NamedTuple):
    """Where a client sends a request over HTTP+JSON. Methods without a body have None."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes | None


class ClientDialect(ABC):
    """The client's side: writes requests, reads answers and events."""

    #: `Major.Minor`, as in the `A2A-Version` header.
    version: str
    media_type: str
    #: The operations that it does not have.
    lacks: frozenset[str] = frozenset()

    #: JSON-RPC: the operation of each method. Empty for a dialect that is not spoken there.
    methods: Mapping[str, Operation] = {}

    def method_of(self, operation: Operation) -> str:
        """Return the operation's JSON-RPC method. Raises `UnsupportedOperationError` when this version has none."""
        for method, known in self.methods.items():
            if known is operation:
                return method
        raise UnsupportedOperationError(f"the agent's dialect has no {operation.name}")

    @abstractmethod
    def write_request(self, operation: Operation, request: A2AObject) -> bytes:
        """Return the parameters of a JSON-RPC request."""

    def locate(self, operation: Operation, request: A2AObject) -> Located:
        """Return method, path, query and body over HTTP+JSON. Raises as `method_of` does."""
        raise UnsupportedOperationError("JSON-RPC has one address for all operations")

    @abstractmethod
    def read_response(self, operation: Operation, raw: Json) -> Any:
        """Return the operation's response. Raises `MalformedAnswerError` when it is not one."""

    @abstractmethod
    def read_event(self, raw: Json) -> StreamResponse:
        """Return one event of a stream. Raises `MalformedAnswerError` when it is not one."""

    @abstractmethod
    def read_jsonrpc_error(self, error: dict[str, Any]) -> A2AError:
        """Return the agent's error, from the `error` member of a JSON-RPC answer."""

    @abstractmethod
    def read_http_error(self, status: int, body: Any) -> A2AError | None:
        """Return the agent's error, or None when the body does not have this dialect's form of one."""


class Dialect(ClientDialect):
    """The server's side as well: reads requests, writes answers and events."""

    #: HTTP+JSON: the paths of the operations. Empty for a dialect that is not spoken there.
    routes: Sequence[Route] = ()
    #: Whether events are written as the log has them.
    copies_events = False
    #: Whether a path may begin with a tenant: `/{tenant}/tasks/…`.
    takes_tenant = False
    #: Whether a subscription is over when the task pauses, and not only when it has ended.
    ends_at_pause = False
    #: Whether a request for a stream over JSON-RPC is refused with a stream, too, of one event.
    refuses_in_stream = False

    @abstractmethod
    def read_request(self, operation: Operation, body: bytes, fields: Mapping[str, str] | None = None) -> Any:
        """Return the operation's request, validated; `fields` come from the path and win over those of the body.

        Raises `ParseError` for invalid JSON, and `InvalidParamsError` with the field for anything else.
        """

    def read_query(self, operation: Operation, values: Mapping[str, str]) -> Any:
        """Return the request of an operation without a body, from query and path, where all values are strings."""
        raise UnsupportedOperationError("JSON-RPC takes its parameters from the body")

    @abstractmethod
    def write_response(self, operation: Operation, result: A2AObject) -> bytes:
        """Return the operation's response: the `result` over JSON-RPC, the body over HTTP+JSON."""

    @abstractmethod
    def write_event(self, data: bytes) -> bytes:
        """Return an event of a stream. `data` is the form of the log: a `StreamResponse` of 1.0 in JSON."""

    @abstractmethod
    def jsonrpc_error(self, error: A2AError) -> dict[str, Any]:
        """Return the `error` member of a JSON-RPC answer."""

    @abstractmethod
    def http_error(self, error: A2AError) -> tuple[int, dict[str, Any]]:
        """Return the status code and the body of an HTTP+JSON answer."""

    def variant(self, body: bytes, software: bytes = b"") -> Dialect:
        """Return the dialect of this request: some versions are spelled in more than one way.

        `software` is the name that the peer gives itself in `User-Agent`.
        """
        return self


def path_segment(value: str) -> str:
    """Return any value as one segment of a path."""
    # A lone dot segment would be resolved away by the HTTP client.
    return value.replace(".", "%2E") if value in {".", ".."} else quote(value, safe="")


def fill_path(path: str, fields: dict[str, Any]) -> str:
    """Return the path with each `{name}` replaced by the value that is taken out of `fields`."""
    return re.sub(r"\{(\w+)\}", lambda name: path_segment(str(fields.pop(name[1], ""))), path)
