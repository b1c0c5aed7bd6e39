"""The JSON-RPC binding: one path, the operation in the envelope; the method's name says which dialect it is."""

from __future__ import annotations

from errands.errors import A2AError, AuthenticationRequiredError, UnavailableError
from errands.runtime.call import EventStream
from errands.server.dispatch import Dispatcher
from errands.server.exchange import JSON_TYPE, Exchange, Header
from errands.server.streaming import send_stream
from errands.server.visitors import check_type
from errands.wire import jsonrpc, v0_3, v1_0
from errands.wire.dialect import Dialect
from errands.wire.sse import plain_frame
from errands.wire.status import JSONRPC_HTTP


async def serve(exchange: Exchange, dispatcher: Dispatcher) -> None:
    request_id = b"null"
    dialect: Dialect = v1_0.JSON
    wants_stream = False
    try:
        if exchange.headers.get(b"content-type") != JSON_TYPE:
            check_type(exchange)
        if dispatcher.first_middlewares:
            await dispatcher.check_head(exchange)
        try:
            call = jsonrpc.read_request(await exchange.body())
        except jsonrpc.BadEnvelopeError as bad:
            request_id = bad.request_id
            raise bad.error from None
        request_id = call.id
        spoken = dispatcher.repertoire.methods.get(call.method)
        if spoken is None:
            raise jsonrpc.method_not_found(call.method)
        operation, dialect, _ = spoken
        if dialect is v0_3.JSONRPC and exchange.header(b"a2a-version") == "0.3.0":
            dialect = v0_3.JSONRPC_A2AKIT  # no other client is known to name the patch
        dispatcher.check_version(exchange)
        request = dialect.read_request(operation, call.params)
        exchange.ends_at_pause = dialect.ends_at_pause
        wants_stream = operation.capability == "streaming"
        result = await dispatcher.dispatch(operation, request, exchange)
    except A2AError as error:
        status = JSONRPC_HTTP.get(error.reason, 200)
        body = jsonrpc.error_bytes(request_id, dialect.jsonrpc_error(error))
        if wants_stream and dialect.refuses_in_stream and status == 200:
            await exchange.begin_stream()
            await exchange.write(plain_frame(body), more=False)
        else:
            await exchange.respond(status, body, headers=error_headers(error))
        return
    if isinstance(result, EventStream):
        await send_stream(
            exchange,
            result,
            dialect,
            lambda error: jsonrpc.error_bytes(request_id, dialect.jsonrpc_error(error)),
            before=jsonrpc.before_result(request_id),
            after=b"}",
        )
        return
    await exchange.respond(200, jsonrpc.result_bytes(request_id, dialect.write_response(operation, result)))


def error_headers(error: A2AError) -> tuple[Header, ...]:
    """What HTTP itself wants to know about an error."""
    if isinstance(error, AuthenticationRequiredError):
        return ((b"www-authenticate", f'{error.scheme} realm="{error.realm}"'.encode("latin-1", "replace")),)
    if isinstance(error, UnavailableError):
        return ((b"retry-after", b"%d" % error.retry_after),)
    return ()
