"""The dialect port: how one protocol version is spelled on a binding, both ways, for server and client alike.

A dialect knows names, paths, codecs and error bodies; it does no I/O. The house inside speaks version 1.0 only, so a
dialect reads whatever came into the requests of `errands.model` and writes answers and events out of them. A binding
looks an operation up in `methods` or `routes` and never asks which version it has before it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from errands.errors import A2AError
from errands.model.base import Model
from errands.model.core import StreamResponse
from errands.operations import Operation

#: JSON as it came or as it will be sent.
Json = bytes | msgspec.Raw


class MalformedAnswerError(Exception):
    """What an agent answered is not what its dialect says; the client reports it as a `ProtocolError`."""


class Route(NamedTuple):
    """One row of the HTTP+JSON table. `{name}` in the path is the request's field of that name."""

    operation: Operation
    methods: frozenset[str]
    path: str


class Located(NamedTuple):
    """Where a client sends a request over HTTP+JSON. `body` is None for methods without one."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes | None


class ClientDialect(ABC):
    """What a client does: requests are written, answers and events read."""

    #: `Major.Minor`, as in the `A2A-Version` header.
    version: str
    media_type: str
    #: The operations that it has no words for.
    lacks: frozenset[str] = frozenset()

    @abstractmethod
    def method_of(self, operation: Operation) -> str:
        """The operation's JSON-RPC method. Raises `UnsupportedOperationError` when this version has none."""

    @abstractmethod
    def write_request(self, operation: Operation, request: Model) -> bytes:
        """The parameters of a JSON-RPC request."""

    @abstractmethod
    def locate(self, operation: Operation, request: Model) -> Located:
        """Method, path, query and body over HTTP+JSON. Raises `UnsupportedOperationError` likewise."""

    @abstractmethod
    def read_response(self, operation: Operation, raw: Json) -> Any:
        """The operation's response. Raises `MalformedAnswerError` when it is none."""

    @abstractmethod
    def read_event(self, raw: Json) -> StreamResponse:
        """One event of a stream. Raises `MalformedAnswerError` when it is none."""

    @abstractmethod
    def read_jsonrpc_error(self, error: dict[str, Any]) -> A2AError:
        """The agent's error, from the `error` member of a JSON-RPC answer."""

    @abstractmethod
    def read_http_error(self, status: int, body: Any) -> A2AError | None:
        """The agent's error, or None when the body is not in this dialect's form of one."""


class Dialect(ClientDialect):
    """What a server does besides: requests are read, answers and events written."""

    #: JSON-RPC: the operation behind each method name. Empty for a dialect that is not spoken there.
    methods: Mapping[str, Operation] = {}
    #: HTTP+JSON: the operations' paths. Empty likewise.
    routes: Sequence[Route] = ()
    #: Whether a tenant may stand before the paths: `/{tenant}/tasks/…`.
    takes_tenant = False
    #: Whether a subscription is over when the task pauses, and not only when it has ended.
    ends_at_pause = False
    #: Whether, over JSON-RPC, what is asked for as a stream is also refused as one, of one event.
    refuses_in_stream = False

    @abstractmethod
    def read_request(self, operation: Operation, body: bytes, fields: Mapping[str, str] | None = None) -> Any:
        """The operation's request, validated; `fields` come from the path and win over the body's.

        Raises `ParseError` when it is no JSON and `InvalidParamsError`, with the field, when it is no such request.
        """

    @abstractmethod
    def read_query(self, operation: Operation, values: Mapping[str, str]) -> Any:
        """The request of an operation without a body, from query and path, where everything is a string."""

    @abstractmethod
    def write_response(self, operation: Operation, result: Model) -> bytes:
        """The operation's response: the `result` over JSON-RPC, the body over HTTP+JSON."""

    #: Whether events are written as the log has them.
    copies_events = False

    @abstractmethod
    def write_event(self, data: bytes) -> bytes:
        """An event of a stream out of the log's own form, a v1.0 `StreamResponse` in JSON."""

    @abstractmethod
    def jsonrpc_error(self, error: A2AError) -> dict[str, Any]:
        """The `error` member of a JSON-RPC answer."""

    @abstractmethod
    def http_error(self, error: A2AError) -> tuple[int, dict[str, Any]]:
        """Status code and body of an HTTP+JSON answer."""

    def variant(self, body: bytes, software: bytes = b"") -> Dialect:
        """Return the dialect of this very request: a version may have been implemented in more than one way.

        `software` is what the peer calls itself, as in `User-Agent`.
        """
        return self


def path_segment(value: str) -> str:
    """`value` as one segment of a path, whatever is in it."""
    # A lone dot segment would be resolved away by the HTTP client.
    return value.replace(".", "%2E") if value in {".", ".."} else quote(value, safe="")


def fill_path(path: str, fields: dict[str, Any]) -> str:
    """The path with its `{name}`s taken out of `fields`."""
    return re.sub(r"\{(\w+)\}", lambda name: path_segment(str(fields.pop(name[1], ""))), path)
