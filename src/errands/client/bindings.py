"""The envelopes of the two HTTP bindings, JSON-RPC and HTTP+JSON. No I/O; the content is the dialect's."""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlencode, urlsplit, urlunsplit

import msgspec

from errands.client.errors import ProtocolError
from errands.errors import A2AError
from errands.model.base import Model
from errands.model.core import StreamResponse
from errands.model.requests import Empty
from errands.operations import Operation
from errands.wire import jsonrpc, v0_3
from errands.wire.dialect import ClientDialect
from errands.wire.sse import ServerSentEvent
from errands.wire.status import from_http

#: What these say is plain without a body that explains it; of others a body must say that they are A2A.
_TELLING_STATUSES = frozenset({401, 403, 413, 429, 500, 502, 503, 504})


class Outgoing(NamedTuple):
    """A request as HTTP sees it."""

    method: str
    url: str
    content: bytes | None = None
    content_type: str | None = None


class Binding(Protocol):
    #: Its name as in `A2AClient(protocol=...)`.
    name: str
    dialect: ClientDialect

    def wrap(self, operation: Operation, request: Model) -> Outgoing: ...

    def read_response(self, operation: Operation, request: Model, body: bytes) -> Any:
        """The answer to `request`. Raises as `unwrap` does, and `MalformedAnswerError`."""
        ...

    def read_event(self, event: ServerSentEvent) -> StreamResponse | None:
        """The content of an event, None when it has nothing to say. Raises likewise."""
        ...

    def unwrap(self, body: bytes | str) -> bytes | msgspec.Raw:
        """The result in an answer or an event. Raises the agent's `A2AError`, or `ProtocolError`."""
        ...

    def error_in(self, body: bytes, status: int) -> A2AError | None:
        """The agent's error in an answer or an event, or None when it is not in the binding's form."""
        ...


class JsonRpcBinding:
    name = "jsonrpc"

    def __init__(self, url: str, dialect: ClientDialect) -> None:
        self.dialect = dialect
        self._url = url

    def wrap(self, operation: Operation, request: Model) -> Outgoing:
        method, params = self.dialect.method_of(operation), self.dialect.write_request(operation, request)
        body = jsonrpc.request_bytes(uuid.uuid4().hex, method, params)
        return Outgoing("POST", self._url, body, "application/json")

    def read_response(self, operation: Operation, request: Model, body: bytes) -> Any:
        if operation.response is not Empty:
            return self.dialect.read_response(operation, self.unwrap(body))
        # a2a-sdk leaves out a result that is null.
        if body and self._open(body).jsonrpc != "2.0":
            self.unwrap(body)
        return Empty()

    def read_event(self, event: ServerSentEvent) -> StreamResponse | None:
        return self.dialect.read_event(self.unwrap(event.data))

    def unwrap(self, body: bytes | str) -> bytes | msgspec.Raw:
        response = self._open(body)
        if not memoryview(response.result):
            raise ProtocolError("a JSON-RPC answer with neither result nor error")
        return response.result

    def _open(self, body: bytes | str) -> jsonrpc.RpcResponse:
        try:
            response = jsonrpc.read_response(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"no JSON-RPC ({error})") from None
        if response.error is not None:
            raise self.dialect.read_jsonrpc_error(response.error)
        return response

    def error_in(self, body: bytes, status: int) -> A2AError | None:
        try:
            self.unwrap(body)
        except A2AError as error:
            return error
        except ProtocolError:
            pass
        return None


class RestBinding:
    name = "http+json"

    def __init__(self, url: str, dialect: ClientDialect) -> None:
        self.dialect = dialect
        self._base = urlsplit(url)
        if dialect is v0_3.REST and self._base.path.rstrip("/") == "/v1":
            # The cards of a2akit have `/v1` in the address, and its agents write objects as the specification does.
            self.dialect = v0_3.REST_PLAIN
            self._base = self._base._replace(path="")

    def wrap(self, operation: Operation, request: Model) -> Outgoing:
        method, path, query, body = self.dialect.locate(operation, request)
        return Outgoing(method, self._url(path, query), body, None if body is None else self.dialect.media_type)

    def read_response(self, operation: Operation, request: Model, body: bytes) -> Any:
        return Empty() if operation.response is Empty else self.dialect.read_response(operation, body)

    def read_event(self, event: ServerSentEvent) -> StreamResponse | None:
        return self.dialect.read_event(self.unwrap(event.data))

    def unwrap(self, body: bytes | str) -> bytes | msgspec.Raw:
        return body.encode() if isinstance(body, str) else body

    def error_in(self, body: bytes, status: int) -> A2AError | None:
        try:
            content = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return self.dialect.read_http_error(status, content)

    def _url(self, path: str, query: dict[str, str]) -> str:
        base = self._base
        joined = "&".join(part for part in (base.query, urlencode(query)) if part)
        return urlunsplit((base.scheme, base.netloc, base.path.rstrip("/") + path, joined, ""))


def plain_error(status: int) -> A2AError | ProtocolError:
    """What an HTTP status means by itself."""
    if status in _TELLING_STATUSES:
        return from_http(status, None)
    return ProtocolError(f"HTTP {status}; is the interface's URL on the agent card right?")
