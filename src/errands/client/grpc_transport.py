"""The gRPC transport: one interface of an agent in either protocol version.

The schema has no place for the id of an event. errands sends it as an unknown field when asked, see
`errands.wire.proto.codec`; with other agents a stream that was cut continues with a snapshot of the task, which the
client compares with what it has seen, see `errands.client.task_stream`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio
import httpx

from errands import tracing
from errands.client.agent_session import Received, TransientError
from errands.client.credentials import ClientCertificate
from errands.client.errors import ProtocolError
from errands.client.http_requests import MAX_ANSWER, NO_SECRETS, RequestSecrets, grpc_target
from errands.client.results import content_of
from errands.errors import ConfigurationError, InternalError, UnavailableError
from errands.model.base import A2AObject
from errands.operations import Operation
from errands.wire.dialect import EXTENSION_HEADERS, EXTENSIONS, MalformedAnswerError
from errands.wire.proto.codec import ASKING, CODECS, Rpc, position_of, read_response, write_request
from errands.wire.proto.grpc_status import DETAILS_KEY, has_error_info, read_failure

#: Headers that HTTP/2 and gRPC set themselves.
_RESERVED = frozenset({"host", "connection", "content-length", "content-type", "te", "user-agent", "accept"})
#: How gRPC's messages begin when no connection could be made, so that nothing was sent.
_NOT_SENT = ("failed to connect", "dns resolution failed", "connections to all backends failing", "name resolution")
#: What gRPC says of a message that it did not take; after `SERVER: ` it is the request.
_TOO_LARGE = "message larger than max"


class GrpcTransport:
    """One interface of an agent over gRPC. `url` is the card's `host:port`, in plain text; `https://` means TLS."""

    protocol = "grpc"

    def __init__(
        self,
        url: str,
        version: str,
        *,
        headers: Mapping[str, str],
        timeout: float | None,
        max_answer_bytes: int = MAX_ANSWER,
        credentials: grpc.ChannelCredentials | None = None,
        software: bytes = b"",
        addresses: Sequence[str] = (),
    ) -> None:
        """Open the channel. `timeout` is for connecting; `credentials` mean TLS, whatever `url` says.

        `software` is what the agent is known to run on: peers of 0.3 differ in how they write files. With `addresses`,
        the name in `url` is not resolved, and only these are connected to.
        """
        # Patch numbers do not take part in negotiation.
        codec = CODECS.get(".".join(version.split(".")[:2]))
        if codec is None:
            raise ConfigurationError(f"invalid version {version!r} for gRPC: expected one of {', '.join(CODECS)}")
        self._codec = codec.variant(software) if codec.variant else codec
        sent = {name.lower(): value for name, value in headers.items() if name.lower() not in _RESERVED}
        if (declared := sent.get(EXTENSIONS.lower())) is not None:
            sent[EXTENSION_HEADERS[self._codec.version].lower()] = declared
        self._metadata = tuple({**sent, "a2a-version": self._codec.version}.items())
        target = grpc_target(url)
        name = target.name
        # The client waits between tries itself; gRPC's own waits grow to two minutes.
        options: dict[str, int | str] = {
            "grpc.initial_reconnect_backoff_ms": 100,
            "grpc.max_reconnect_backoff_ms": 2_000,
        }
        options |= {"grpc.max_receive_message_length": max_answer_bytes, "grpc.max_send_message_length": -1}
        if timeout is not None:
            options["grpc.min_reconnect_backoff_ms"] = max(int(timeout * 1000), 1)
        if addresses:
            options |= {"grpc.default_authority": name, "grpc.ssl_target_name_override": target.host}
            # One target has addresses of one kind.
            kind = "ipv6" if ":" in addresses[0] else "ipv4"
            same = [one for one in addresses if (":" in one) == (kind == "ipv6")]
            places = (f"[{one}]" if kind == "ipv6" else one for one in same)
            name = f"{kind}:" + ",".join(f"{place}:{target.port}" for place in places)
        if credentials is not None or target.is_secure:
            credentials = credentials or grpc.ssl_channel_credentials()
            self._channel = grpc.aio.secure_channel(name, credentials, [*options.items()])
        else:
            self._channel = grpc.aio.insecure_channel(name, [*options.items()])
        self._methods: dict[str, Any] = {}

    async def close(self) -> None:
        await self._channel.close()

    async def call(
        self,
        operation: Operation,
        request: A2AObject,
        *,
        read_timeout: float | None,
        secrets: RequestSecrets = NO_SECRETS,
    ) -> Any:
        rpc = self._codec.rpc_of(operation)
        content = write_request(rpc, request)
        with translated_failures():
            raw = await self._method(rpc)(content, metadata=self._with(secrets), timeout=read_timeout)
        return _decoded(rpc, raw)

    async def stream(
        self,
        operation: Operation,
        request: A2AObject,
        *,
        last_event_id: str | None,
        read_timeout: float | None,
        secrets: RequestSecrets = NO_SECRETS,
    ) -> AsyncGenerator[Received, None]:
        rpc = self._codec.rpc_of(operation)
        metadata = (*self._with(secrets), ASKING)
        if last_event_id is not None:
            metadata = (*metadata, ("last-event-id", last_event_id))
        call = self._method(rpc)(write_request(rpc, request), metadata=metadata)
        begun = False
        try:
            while (raw := await _next(call, read_timeout, begun)) is not grpc.aio.EOF:
                response = _decoded(rpc, raw)
                if content_of(response) is None:
                    raise ProtocolError("an event without content")
                position = position_of(raw)
                yield Received(response, str(position.version), position.gap) if position else Received(response)
                begun = True
        finally:
            call.cancel()

    def _with(self, secrets: RequestSecrets) -> tuple[tuple[str, str], ...]:
        """Return the metadata with the secrets and the trace. An API key for the query goes here, too."""
        added = {name.lower(): value for name, value in (*secrets.headers.items(), *secrets.query.items())}
        if tracing.tracer is not None:
            added |= tracing.headers(tracing.tracer.inject())
        return (*(pair for pair in self._metadata if pair[0] not in added), *added.items()) if added else self._metadata

    def _method(self, rpc: Rpc) -> Any:
        method = self._methods.get(rpc.name)
        if method is None:
            make = self._channel.unary_stream if rpc.operation.streams else self._channel.unary_unary
            method = self._methods[rpc.name] = make(f"/{self._codec.service}/{rpc.name}")
        return method


def channel_credentials(certificate: ClientCertificate) -> grpc.ChannelCredentials:
    """Return TLS with a client certificate."""
    return grpc.ssl_channel_credentials(
        root_certificates=None if certificate.ca is None else certificate.ca.read_bytes(),
        private_key=certificate.key.read_bytes(),
        certificate_chain=certificate.certificate.read_bytes(),
    )


async def _next(call: Any, timeout: float | None, begun: bool) -> Any:
    """Return the next message of a stream or EOF, within `timeout` seconds."""
    try:
        with translated_failures():
            async with asyncio.timeout(timeout):
                return await call.read()
    except TimeoutError:
        raise TransientError(httpx.ReadTimeout(f"no event within {timeout} s"), reached=True) from None
    except (InternalError, UnavailableError) as error:
        if not begun:
            raise
        # In the middle of a stream it is about the stream and not about the task.
        raise TransientError(error, reached=True) from error
    except TransientError as failure:
        failure.reached = failure.reached or begun
        raise


def _decoded(rpc: Rpc, raw: bytes) -> Any:
    try:
        return read_response(rpc, raw)
    except MalformedAnswerError as error:
        raise ProtocolError(str(error)) from None


@contextmanager
def translated_failures() -> Iterator[None]:
    """Turn gRPC's failures into those of the transport port.

    Broken connections become errors of httpx, so that what is tried again does not depend on the binding.
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        code, text = error.code(), error.details() or ""
        found = (value for key, value in error.trailing_metadata() or () if key == DETAILS_KEY)
        details = next((value for value in found if isinstance(value, bytes)), None)
        if not has_error_info(details):
            if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in text and "SERVER: " not in text:
                raise ProtocolError("the answer, or one event of a stream, is larger than allowed") from error
            # The connection may have failed, and not the agent.
            if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise TransientError(httpx.ReadTimeout(text), reached=True) from error
            if code is grpc.StatusCode.UNAVAILABLE and text.lower().startswith(_NOT_SENT):
                raise TransientError(httpx.ConnectError(text), reached=False) from error
            if code is grpc.StatusCode.UNAVAILABLE:
                raise TransientError(httpx.ReadError(text), reached=True) from error
            if code in (grpc.StatusCode.CANCELLED, grpc.StatusCode.ABORTED):
                raise TransientError(httpx.RemoteProtocolError(f"gRPC {code.name}: {text}"), reached=True) from error
        failure = read_failure(code, text, details)
        if failure is None:
            raise ProtocolError(f"gRPC {code.name}: {text}") from error
        if isinstance(failure, UnavailableError):
            raise TransientError(failure, reached=False, retry_after=failure.retry_after) from error
        raise failure from error
