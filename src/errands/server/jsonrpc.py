"""The JSON-RPC binding: one path, the operation in the envelope."""

from __future__ import annotations

from functools import partial

from errands.errors import A2AError, AuthenticationRequiredError, ContentTypeNotSupportedError, UnavailableError
from errands.model.base import encode
from errands.operations import OPERATIONS
from errands.runtime.call import EventStream
from errands.server.dispatch import Dispatcher
from errands.server.exchange import Exchange, Header
from errands.server.streaming import send_stream
from errands.wire import jsonrpc, v1_0
from errands.wire.status import JSONRPC_HTTP

JSON_TYPES = frozenset({"", "application/json", "application/a2a+json"})
_VERSIONS = frozenset({v1_0.VERSION})


async def serve(exchange: Exchange, dispatcher: Dispatcher) -> None:
    request_id = b"null"
    try:
        if exchange.content_type not in JSON_TYPES:
            raise ContentTypeNotSupportedError(
                f"Content-Type must be application/json, not {exchange.content_type[:100]}"
            )
        try:
            call = jsonrpc.read_request(await exchange.body())
        except jsonrpc.BadEnvelopeError as bad:
            request_id = bad.request_id
            raise bad.error from None
        request_id = call.id
        operation = OPERATIONS.get(call.method)
        if operation is None:
            raise jsonrpc.method_not_found(call.method)
        dispatcher.check_version(exchange, _VERSIONS)
        request = v1_0.decode_request(operation, call.params)
        result = await dispatcher.dispatch(operation, request, exchange)
    except A2AError as error:
        await _answer_error(exchange, request_id, error)
        return
    if isinstance(result, EventStream):
        await send_stream(
            exchange,
            result,
            partial(jsonrpc.result_bytes, request_id),
            partial(jsonrpc.error_bytes, request_id),
        )
        return
    await exchange.respond(200, jsonrpc.result_bytes(request_id, encode(result)))


async def _answer_error(exchange: Exchange, request_id: bytes, error: A2AError) -> None:
    status = JSONRPC_HTTP.get(error.reason, 200)
    await exchange.respond(status, jsonrpc.error_bytes(request_id, error), headers=error_headers(error))


def error_headers(error: A2AError) -> tuple[Header, ...]:
    """What HTTP itself wants to know about an error."""
    if isinstance(error, AuthenticationRequiredError):
        return ((b"www-authenticate", f'{error.scheme} realm="{error.realm}"'.encode("latin-1", "replace")),)
    if isinstance(error, UnavailableError):
        return ((b"retry-after", b"%d" % error.retry_after),)
    return ()
