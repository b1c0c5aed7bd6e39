"""The HTTP transport: I/O for any HTTP binding in any dialect, and httpx's failures put into our words."""

from __future__ import annotations

import email.utils
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from errands.client.bindings import Binding, Outgoing, plain_error
from errands.client.errors import A2AClientError, ProtocolError
from errands.client.result import content_of
from errands.client.transport import Received, TransientError
from errands.errors import A2AError, ConfigurationError, InternalError, UnavailableError
from errands.model.base import Model
from errands.operations import Operation
from errands.wire.dialect import EXTENSION_HEADERS, EXTENSIONS, MalformedAnswerError
from errands.wire.sse import GAP_EVENT, ServerSentEvent, SSEParser

#: Raised before a single byte of the request was written.
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
#: The agent, or something before it, cannot answer now. A gateway (502, 504) may have passed the request on.
_PASSING_STATUSES = frozenset({429, 502, 503, 504})
_GATEWAY_STATUSES = frozenset({502, 504})


class HttpTransport:
    """One interface of an agent over HTTP."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        binding: Binding,
        *,
        headers: Mapping[str, str],
        timeout: float | None,
    ) -> None:
        self.protocol = binding.name
        self._client = client
        self._binding = binding
        self._headers = httpx.Headers(headers)
        self._headers["A2A-Version"] = binding.dialect.version
        if EXTENSIONS in self._headers:
            self._headers[EXTENSION_HEADERS[binding.dialect.version]] = self._headers[EXTENSIONS]
        self._timeout = timeout

    async def call(self, operation: Operation, request: Model, *, read_timeout: float | None) -> Any:
        http_request = self._build(self._binding.wrap(operation, request), read_timeout)
        http_request.headers["Accept"] = f"{self._binding.dialect.media_type}, application/json"
        with translated_failures():
            response = await self._client.send(http_request, follow_redirects=False)
        with self._answer(response), _well_formed():
            return self._binding.read_response(operation, request, response.content)

    async def stream(
        self,
        operation: Operation,
        request: Model,
        *,
        last_event_id: str | None,
        read_timeout: float | None,
    ) -> AsyncGenerator[Received, None]:
        http_request = self._build(self._binding.wrap(operation, request), read_timeout)
        http_request.headers["Accept"] = "text/event-stream"
        if last_event_id is not None:
            http_request.headers["Last-Event-ID"] = last_event_id
        with translated_failures():
            response = await self._client.send(http_request, stream=True, follow_redirects=False)
            try:
                await self._expect_events(response)
                # To ask again for what is to be seen does nothing; to send a message again may.
                parser, begun = SSEParser(), operation.name == "SubscribeToTask"
                async for chunk in response.aiter_bytes():
                    for event in parser.feed(chunk):
                        received = self._receive(event, begun)
                        if received is not None:
                            yield received
                            begun = True
            finally:
                await response.aclose()

    async def close(self) -> None:
        """Nothing to do: the connections are the client's."""

    def _build(self, outgoing: Outgoing, read_timeout: float | None) -> httpx.Request:
        headers = self._headers.copy()
        if outgoing.content_type is not None:
            headers["Content-Type"] = outgoing.content_type
        return self._client.build_request(
            outgoing.method,
            outgoing.url,
            content=outgoing.content,
            headers=headers,
            timeout=httpx.Timeout(self._timeout, read=read_timeout),
        )

    async def _expect_events(self, response: httpx.Response) -> None:
        """Raises unless the answer is a stream of events."""
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.status_code == httpx.codes.OK and kind == "text/event-stream":
            return
        await response.aread()
        with self._answer(response):
            self._binding.unwrap(response.content)
            raise ProtocolError(f"{kind or 'no content type'} where text/event-stream was expected")

    @contextmanager
    def _answer(self, response: httpx.Response) -> Iterator[None]:
        """Turns an answer that says "not now" into a `TransientError`, by HTTP or inside an envelope."""
        status = response.status_code
        try:
            if response.is_redirect:
                raise ProtocolError(f"HTTP {status}, a redirect to {response.headers.get('location')!r}")
            if not response.is_success:
                raise self._binding.error_in(response.content, status) or plain_error(status)
            yield
        except A2AError as error:
            if status not in _PASSING_STATUSES and not isinstance(error, UnavailableError):
                raise
            wait = retry_after(response.headers)
            if isinstance(error, UnavailableError) and wait is not None:
                error.retry_after = int(wait)
            raise TransientError(error, reached=status in _GATEWAY_STATUSES, retry_after=wait) from error

    def _receive(self, event: ServerSentEvent, begun: bool) -> Received | None:
        try:
            return self._read_event(event)
        except (InternalError, UnavailableError) as error:
            if not begun:
                raise
            # Said in the middle of a stream, it is about the stream and not about the task.
            raise TransientError(error, reached=True) from error

    def _read_event(self, event: ServerSentEvent) -> Received | None:
        with _well_formed():
            response = self._binding.read_event(event)
        if response is None:
            return None
        if content_of(response) is None:
            error = self._binding.error_in(event.data.encode(), httpx.codes.INTERNAL_SERVER_ERROR)
            raise error or ProtocolError(f"an unknown event: {event.data[:200]}")
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
    """httpx's exceptions in the words of the transport port."""
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


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds of a `Retry-After` header, which may be a number or a date."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdecimal():
        return float(value)
    try:
        moment = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, moment.timestamp() - time.time())


def is_header_value(value: str) -> bool:
    """Whether it can be sent as it is: printable ASCII, so no line break that would start another header."""
    return value.isascii() and value.isprintable()


def checked_headers(headers: Mapping[str, str]) -> httpx.Headers:
    """The headers, or `ConfigurationError` when one could smuggle in another."""
    for name, value in headers.items():
        if not name or not is_header_value(name) or not is_header_value(value):
            raise ConfigurationError(f"header {name!r}: name and value must be printable ASCII without line breaks")
    return httpx.Headers(headers)
