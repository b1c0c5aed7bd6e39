"""The two HTTP bindings: JSON-RPC at one path, and HTTP+JSON with a method and a path for each operation."""

from __future__ import annotations

from errands.errors import A2AError
from errands.model.base import encode
from errands.runtime.streams import EventStream
from errands.server.dispatch import Dispatcher
from errands.server.errors import error_headers
from errands.server.http import JSON_TYPE, HttpExchange
from errands.server.request_guard import check_content_type
from errands.server.routing import RoutedOperation
from errands.wire import jsonrpc, v0_3, v1_0
from errands.wire.dialect import Dialect
from errands.wire.sse import plain_frame
from errands.wire.status import JSONRPC_HTTP


async def serve_jsonrpc(exchange: HttpExchange, dispatcher: Dispatcher) -> None:
    """Serve a JSON-RPC request. The method's name says which operation and which dialect it is."""
    request_id = b"null"
    dialect: Dialect = v1_0.JSON
    wants_stream = False
    try:
        if exchange.headers.get(b"content-type") != JSON_TYPE:
            check_content_type(exchange)
        if dispatcher.head_middlewares:
            await dispatcher.check_head(exchange)
        body = await exchange.body()
        try:
            call = jsonrpc.read_request(body)
        except A2AError:
            request_id = jsonrpc.read_id(body)
            raise
        request_id = call.id
        routed = dispatcher.routes.methods.get(call.method)
        if routed is None:
            raise jsonrpc.method_not_found(call.method)
        operation, dialect, _ = routed
        if dialect is v0_3.JSONRPC and exchange.header(b"a2a-version") == "0.3.0":
            dialect = v0_3.JSONRPC_A2AKIT  # no other known client sends the patch number
        dispatcher.check_version(exchange)
        request = dialect.read_request(operation, call.params)
        del body, call  # the answer may take hours
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
        await exchange.send_stream(
            result,
            dialect,
            lambda error: jsonrpc.error_bytes(request_id, dialect.jsonrpc_error(error)),
            before=jsonrpc.before_result(request_id),
            after=b"}",
        )
        return
    await exchange.respond(200, jsonrpc.result_bytes(request_id, dialect.write_response(operation, result)))


async def serve_rest(exchange: HttpExchange, dispatcher: Dispatcher, routed: RoutedOperation) -> None:
    """Serve an HTTP+JSON request, whose method and path have been routed to an operation and a dialect."""
    operation, dialect, values = routed
    is_post = exchange.method == "POST"
    try:
        dispatcher.check_version(exchange)
        if is_post:
            check_content_type(exchange, operation, dialect.media_type)
        if dispatcher.head_middlewares:
            await dispatcher.check_head(exchange)
        body = await exchange.body() if is_post else b""
        if body.strip() in (b"", b"null"):  # the official Go client sends null when it has no body
            body = b""
        dialect = dialect.variant(body, exchange.headers.get(b"user-agent", b""))
        if is_post:
            request = dialect.read_request(operation, body or b"{}", values)
        else:
            query = {key: value for key, value in exchange.query.items() if key.lower() != "a2a-version"}
            request = dialect.read_query(operation, {**query, **values})
        del body  # the answer may take hours
        exchange.ends_at_pause = dialect.ends_at_pause
        result = await dispatcher.dispatch(operation, request, exchange)
    except A2AError as error:
        await respond_error(exchange, error, dialect)
        return
    if isinstance(result, EventStream):
        await exchange.send_stream(result, dialect, lambda error: encode(dialect.http_error(error)[1]))
        return
    await exchange.respond(200, dialect.write_response(operation, result), _response_type(exchange, dialect))


async def respond_error(exchange: HttpExchange, error: A2AError, dialect: Dialect = v1_0.JSON) -> None:
    """Send an error in the form of HTTP+JSON."""
    status, body = dialect.http_error(error)
    await exchange.respond(status, encode(body), _response_type(exchange, dialect), error_headers(error))


def _response_type(exchange: HttpExchange, dialect: Dialect) -> bytes:
    """Return plain JSON's media type if the client sent or asks for that, else the dialect's own type."""
    if exchange.content_type == "application/json":
        return JSON_TYPE
    if not exchange.content_type and "application/json" in exchange.header(b"accept"):
        return JSON_TYPE
    return dialect.media_type.encode()
