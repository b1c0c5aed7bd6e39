"""The HTTP+JSON binding: the operation and its dialect in the method and path."""

from __future__ import annotations

from typing import Any

from errands.errors import A2AError
from errands.model.base import encode
from errands.operations import Operation
from errands.runtime.call import EventStream
from errands.server.dispatch import Dispatcher
from errands.server.exchange import JSON_TYPE, Exchange
from errands.server.jsonrpc import error_headers
from errands.server.repertoire import Spoken
from errands.server.streaming import send_stream
from errands.server.visitors import check_type
from errands.wire import v1_0
from errands.wire.dialect import Dialect


async def serve(exchange: Exchange, dispatcher: Dispatcher, spoken: Spoken) -> None:
    operation, dialect, values = spoken
    try:
        dispatcher.check_version(exchange)
        if exchange.method == "POST":
            check_type(exchange, operation, dialect.media_type)
        if dispatcher.first_middlewares:
            await dispatcher.check_head(exchange)
        body = await _body(exchange)
        dialect = dialect.variant(body, exchange.headers.get(b"user-agent", b""))
        request = _read(exchange, operation, dialect, body, values)
        exchange.ends_at_pause = dialect.ends_at_pause
        result = await dispatcher.dispatch(operation, request, exchange)
    except A2AError as error:
        await answer_error(exchange, error, dialect)
        return
    if isinstance(result, EventStream):
        await send_stream(exchange, result, dialect, lambda error: encode(dialect.http_error(error)[1]))
        return
    await exchange.respond(200, dialect.write_response(operation, result), _answer_type(exchange, dialect))


async def _body(exchange: Exchange) -> bytes:
    if exchange.method != "POST":
        return b""
    body = await exchange.body()
    # The official Go client writes null where there is nothing to say.
    return b"" if body.strip() in (b"", b"null") else body


def _read(exchange: Exchange, operation: Operation, dialect: Dialect, body: bytes, values: dict[str, str]) -> Any:
    if exchange.method == "POST":
        return dialect.read_request(operation, body or b"{}", values)
    query = {key: value for key, value in exchange.query.items() if key.lower() != "a2a-version"}
    return dialect.read_query(operation, {**query, **values})


def _answer_type(exchange: Exchange, dialect: Dialect) -> bytes:
    """What the client speaks: plain JSON when that is what it sent or asks for, else the dialect's own type."""
    if exchange.content_type == "application/json":
        return JSON_TYPE
    if not exchange.content_type and "application/json" in exchange.header(b"accept"):
        return JSON_TYPE
    return dialect.media_type.encode()


async def answer_error(exchange: Exchange, error: A2AError, dialect: Dialect = v1_0.JSON) -> None:
    status, body = dialect.http_error(error)
    await exchange.respond(status, encode(body), _answer_type(exchange, dialect), error_headers(error))
