"""The HTTP transport: the envelopes of JSON-RPC, HTTP+JSON and PraisonAI, and I/O for all of them.

A binding wraps requests and unwraps answers, without I/O; their content is the dialect's. httpx's failures become those
of the transport port.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit, urlunsplit

import httpx
import msgspec

from errands import tracing
from errands.client.agent_session import Received, TransientError
from errands.client.errors import A2AClientError, ProtocolError
from errands.client.http_requests import (
    MAX_ANSWER,
    NO_SECRETS,
    RequestSecrets,
    add_secrets,
    body_of,
    is_header_value,
    pieces_of,
)
from errands.client.results import content_of, moment_of
from errands.errors import A2AError, InternalError, InvalidParamsError, TooManyPushConfigsError, UnavailableError
from errands.lifecycle import trim
from errands.model import requests
from errands.model.base import A2AObject
from errands.model.core import StreamResponse
from errands.operations import Operation
from errands.outbound import retry_after
from errands.wire import jsonrpc, v0_3
from errands.wire.dialect import EXTENSION_HEADERS, EXTENSIONS, ClientDialect, MalformedAnswerError
from errands.wire.praisonai import ARTIFACT_EVENT, ERROR_EVENT, STATUS_EVENT
from errands.wire.sse import GAP_EVENT, ServerSentEvent, SSEParser
from errands.wire.status import from_http

#: Raised before a single byte of the request was written.
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
#: The agent, or a proxy before it, cannot answer now. A gateway (502, 504) may have passed the request on.
PASSING_STATUSES = frozenset({429, 502, 503, 504})
_GATEWAY_STATUSES = frozenset({502, 504})
#: Statuses that need no body to be understood. With any other one, a body must show that the answer is A2A.
_TELLING_STATUSES = frozenset({401, 403, 413, 429, 500, 502, 503, 504})


class HttpTransport:
    """One interface of an agent over HTTP."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        binding: Binding,
        *,
        headers: Mapping[str, str],
        timeout: float | None,
        max_answer_bytes: int = MAX_ANSWER,
    ) -> None:
        self.protocol = binding.name
        self._max_bytes = max_answer_bytes
        self._client = client
        self._binding = binding
        self._headers = httpx.Headers(headers)
        self._headers["A2A-Version"] = binding.dialect.version
        if EXTENSIONS in self._headers:
            self._headers[EXTENSION_HEADERS[binding.dialect.version]] = self._headers[EXTENSIONS]
        self._timeout = timeout

    async def call(
        self,
        operation: Operation,
        request: A2AObject,
        *,
        read_timeout: float | None,
        secrets: RequestSecrets = NO_SECRETS,
    ) -> Any:
        http_request = self._build(self._binding.wrap(operation, request), read_timeout, secrets)
        http_request.headers["Accept"] = f"{self._binding.dialect.media_type}, application/json"
        with translated_failures():
            response = await self._client.send(http_request, stream=True, follow_redirects=False)
            body = await body_of(response, self._max_bytes)
        with self._answer(response, body), _well_formed():
            return self._binding.read_response(operation, request, body)

    async def stream(
        self,
        operation: Operation,
        request: A2AObject,
        *,
        last_event_id: str | None,
        read_timeout: float | None,
        secrets: RequestSecrets = NO_SECRETS,
    ) -> AsyncGenerator[Received, None]:
        http_request = self._build(self._binding.wrap(operation, request), read_timeout, secrets)
        http_request.headers["Accept"] = "text/event-stream"
        if last_event_id is not None:
            http_request.headers["Last-Event-ID"] = last_event_id
        with translated_failures():
            response = await self._client.send(http_request, stream=True, follow_redirects=False)
            try:
                kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
                if response.status_code != httpx.codes.OK or kind != "text/event-stream":
                    body = await body_of(response, self._max_bytes)
                    with self._answer(response, body):
                        self._binding.unwrap(body)
                        raise ProtocolError(f"{kind or 'no content type'} where text/event-stream was expected")
                # Subscribing again changes nothing; sending a message again may.
                parser, begun = SSEParser(), operation.name == "SubscribeToTask"
                async for chunk in pieces_of(response, self._max_bytes, kind):
                    for event in parser.feed(chunk):
                        received = self._receive(event, begun)
                        if received is not None:
                            yield received
                            begun = True
            finally:
                await response.aclose()

    async def close(self) -> None:
        """Do nothing: the connections belong to the client."""

    def _build(self, outgoing: OutgoingRequest, read_timeout: float | None, secrets: RequestSecrets) -> httpx.Request:
        headers = self._headers.copy()
        if tracing.tracer is not None:
            headers.update(tracing.headers(tracing.tracer.inject()))
        if outgoing.content_type is not None:
            headers["Content-Type"] = outgoing.content_type
        try:
            request = self._client.build_request(
                outgoing.method,
                outgoing.url,
                content=outgoing.content,
                headers=headers,
                timeout=httpx.Timeout(self._timeout, read=read_timeout),
            )
        except httpx.InvalidURL as error:
            raise A2AClientError(f"the interface on the agent card has no valid address: {error}") from None
        return add_secrets(request, secrets)

    @contextmanager
    def _answer(self, response: httpx.Response, body: bytes) -> Iterator[None]:
        """Turn an answer that means "not now" into a `TransientError`, be it by HTTP or inside an envelope."""
        status = response.status_code
        try:
            if response.is_redirect:
                raise ProtocolError(f"HTTP {status}, a redirect to {response.headers.get('location')!r}")
            if not response.is_success:
                raise self._binding.error_in(body, status) or plain_error(status)
            yield
        except A2AError as error:
            if status not in PASSING_STATUSES and not isinstance(error, UnavailableError):
                raise
            if isinstance(error, TooManyPushConfigsError):
                raise  # it does not pass by itself
            wait = retry_after(response.headers)
            if isinstance(error, UnavailableError) and wait is not None:
                error.retry_after = int(wait)
            raise TransientError(error, reached=status in _GATEWAY_STATUSES, retry_after=wait) from error

    def _receive(self, event: ServerSentEvent, begun: bool) -> Received | None:
        try:
            problem = f"an unknown event: {event.data[:200]}"
            try:
                response = self._binding.read_event(event)
            except MalformedAnswerError as error:
                response, problem = StreamResponse(), str(error)
            if response is None:
                return None
            if content_of(response) is None:
                refusal = self._binding.error_in(event.data.encode(), httpx.codes.INTERNAL_SERVER_ERROR)
                raise refusal or ProtocolError(problem)
        except (InternalError, UnavailableError) as error:
            if not begun:
                raise
            # In the middle of a stream it is about the stream and not about the task.
            raise TransientError(error, reached=True) from error
        event_id = event.id if event.id and is_header_value(event.id) else None
        return Received(response, event_id, event.event == GAP_EVENT)


@contextmanager
def _well_formed() -> Iterator[None]:
    try:
        yield
    except MalformedAnswerError as error:
        raise ProtocolError(str(error)) from None


@contextmanager
def translated_failures() -> Iterator[None]:
    """Turn httpx's exceptions into those of the transport port."""
    try:
        yield
    except NOT_SENT as error:
        raise TransientError(error, reached=False) from error
    except (httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
        raise A2AClientError(f"the request could not be sent: {error}") from error
    except httpx.TransportError as error:
        raise TransientError(error, reached=True) from error
    except httpx.DecodingError as error:
        raise ProtocolError(f"the body cannot be read ({error})") from error


# Bindings


class OutgoingRequest(NamedTuple):
    """A request as HTTP has it."""

    method: str
    url: str
    content: bytes | None = None
    content_type: str | None = None


class Binding(ABC):
    """How requests and answers of a dialect are wrapped."""

    #: The name in `A2AClient(protocol=...)`.
    name: str

    def __init__(self, url: str, dialect: ClientDialect) -> None:
        self.dialect = dialect
        self.url = url

    @abstractmethod
    def wrap(self, operation: Operation, request: A2AObject) -> OutgoingRequest:
        """Return the request as HTTP has it."""

    @abstractmethod
    def read_response(self, operation: Operation, request: A2AObject, body: bytes) -> Any:
        """Return the answer to `request`. Raises as `unwrap` does, and `MalformedAnswerError`."""

    def read_event(self, event: ServerSentEvent) -> StreamResponse | None:
        """Return the content of an event, or None when it has none. Raises as `read_response` does."""
        return self.dialect.read_event(self.unwrap(event.data))

    @abstractmethod
    def unwrap(self, body: bytes | str) -> bytes | msgspec.Raw:
        """Return the result in an answer or an event. Raises the agent's `A2AError`, or `ProtocolError`."""

    @abstractmethod
    def error_in(self, body: bytes, status: int) -> A2AError | None:
        """Return the agent's error in an answer or an event, or None when it does not have the binding's form."""


class JsonRpcBinding(Binding):
    name = "jsonrpc"

    def wrap(self, operation: Operation, request: A2AObject) -> OutgoingRequest:
        method, params = self.dialect.method_of(operation), self.dialect.write_request(operation, request)
        body = jsonrpc.request_bytes(uuid.uuid4().hex, method, params)
        return OutgoingRequest("POST", self.url, body, "application/json")

    def read_response(self, operation: Operation, request: A2AObject, body: bytes) -> Any:
        if operation.response is not requests.Empty:
            return self.dialect.read_response(operation, self.unwrap(body))
        # a2a-sdk leaves out a result that is null.
        if body and self._open(body).jsonrpc != "2.0":
            self.unwrap(body)
        return requests.Empty()

    def unwrap(self, body: bytes | str) -> bytes | msgspec.Raw:
        response = self._open(body)
        if not memoryview(response.result):
            raise ProtocolError("a JSON-RPC answer with neither result nor error")
        return response.result

    def _open(self, body: bytes | str) -> jsonrpc.RpcResponse:
        try:
            response = jsonrpc.read_response(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"not valid JSON-RPC ({error})") from None
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


class RestBinding(Binding):
    name = "http+json"

    def __init__(self, url: str, dialect: ClientDialect) -> None:
        super().__init__(url, dialect)
        self._base = urlsplit(url)
        if dialect is v0_3.REST and self._base.path.rstrip("/") == "/v1":
            # The cards of a2akit have `/v1` in the address, and its agents write objects as the specification does.
            self.dialect = v0_3.REST_PLAIN
            self._base = self._base._replace(path="")

    def wrap(self, operation: Operation, request: A2AObject) -> OutgoingRequest:
        method, path, query, body = self.dialect.locate(operation, request)
        base = self._base
        joined = "&".join(part for part in (base.query, urlencode(query)) if part)
        url = urlunsplit((base.scheme, base.netloc, base.path.rstrip("/") + path, joined, ""))
        return OutgoingRequest(method, url, body, None if body is None else self.dialect.media_type)

    def read_response(self, operation: Operation, request: A2AObject, body: bytes) -> Any:
        return requests.Empty() if operation.response is requests.Empty else self.dialect.read_response(operation, body)

    def unwrap(self, body: bytes | str) -> bytes | msgspec.Raw:
        return body.encode() if isinstance(body, str) else body

    def error_in(self, body: bytes, status: int) -> A2AError | None:
        try:
            content = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return self.dialect.read_http_error(status, content)


def plain_error(status: int) -> A2AError | ProtocolError:
    """Return what an HTTP status means by itself."""
    if status in _TELLING_STATUSES:
        return from_http(status, None)
    return ProtocolError(f"HTTP {status}; is the interface's URL on the agent card right?")


class PraisonAIBinding(JsonRpcBinding):
    """JSON-RPC with streams of its own. What PraisonAI's agents ignore in a request is done here."""

    name = "praisonai"

    def read_response(self, operation: Operation, request: A2AObject, body: bytes) -> Any:
        response = super().read_response(operation, request, body)
        if isinstance(request, requests.ListTasksRequest):
            after = moment_of(request.status_timestamp_after)
            if after is None and request.status_timestamp_after is not None:
                raise InvalidParamsError("not an ISO 8601 time", field="statusTimestampAfter")
            tasks = [
                trim(task, request.history_length)
                for task in response.tasks
                if request.status in (None, task.status.state)
                and (after is None or (moment_of(task.status.timestamp) or 0) > after)
            ]
            if not request.include_artifacts:
                tasks = [msgspec.structs.replace(task, artifacts=None) for task in tasks]
            count = len(tasks)
            return requests.ListTasksResponse(tasks=tasks, next_page_token="", page_size=count, total_size=count)
        if isinstance(request, requests.GetTaskRequest):
            return trim(response, request.history_length)
        if isinstance(request, requests.SendMessageRequest) and request.configuration is not None:
            return requests.SendMessageResponse(task=trim(response.task, request.configuration.history_length))
        return response

    def read_event(self, event: ServerSentEvent) -> StreamResponse | None:
        if event.event in (STATUS_EVENT, ARTIFACT_EVENT):
            return self.dialect.read_event(event.data.encode())
        if event.event == ERROR_EVENT:
            try:
                error = msgspec.json.decode(event.data, type=dict[str, Any])
            except (msgspec.DecodeError, RecursionError) as malformed:
                raise ProtocolError(f"an error that cannot be read ({malformed})") from None
            raise self.dialect.read_jsonrpc_error(error)
        return None
