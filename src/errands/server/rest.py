"""The HTTP+JSON binding: the operation in the method and path, `/{tenant}` before it if need be."""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import unquote

from errands.errors import A2AError, ContentTypeNotSupportedError
from errands.model.base import encode
from errands.operations import OPERATIONS, Operation
from errands.runtime.call import EventStream
from errands.server.dispatch import Dispatcher
from errands.server.exchange import JSON_TYPE, Exchange
from errands.server.jsonrpc import JSON_TYPES, error_headers
from errands.server.streaming import send_stream
from errands.wire import v1_0
from errands.wire.status import to_http

_VERSIONS = frozenset({v1_0.VERSION})
_A2A_TYPE = v1_0.MEDIA_TYPE.encode()


class Route(NamedTuple):
    operation: Operation
    pattern: re.Pattern[str]
    methods: frozenset[str]


def _route(operation: Operation) -> Route:
    # A colon separates an id from the verb, so an id in the path has none.
    path = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/:]+)", re.escape(operation.path))
    methods = {operation.http_method}
    if operation.name == "SubscribeToTask":
        methods.add("GET")  # the specification's text says POST, its proto GET
    # `/v1/…` are the paths of version 0.3, whatever a tenant may be called.
    return Route(operation, re.compile(rf"(?:/(?P<tenant>(?!v1/)[^/:]+))?{path}/?"), frozenset(methods))


_ROUTES = [_route(operation) for operation in OPERATIONS.values()]


class Match(NamedTuple):
    operation: Operation
    values: dict[str, str]


def match(method: str, path: str) -> Match | frozenset[str] | None:
    """The operation at this path, or the methods that would have been right, or None."""
    allowed: set[str] = set()
    for route in _ROUTES:
        found = route.pattern.fullmatch(path)
        if found is None:
            continue
        if method in route.methods:
            values = {key: unquote(value) for key, value in found.groupdict().items() if value is not None}
            return Match(route.operation, values)
        allowed |= route.methods
    return frozenset(allowed) or None


async def serve(exchange: Exchange, dispatcher: Dispatcher, found: Match) -> None:
    try:
        dispatcher.check_version(exchange, _VERSIONS)
        request = await _read(exchange, found)
        result = await dispatcher.dispatch(found.operation, request, exchange)
    except A2AError as error:
        await answer_error(exchange, error)
        return
    if isinstance(result, EventStream):
        await send_stream(exchange, result, None, _error_bytes)
        return
    await exchange.respond(200, encode(result), _answer_type(exchange))


async def _read(exchange: Exchange, found: Match) -> Any:
    operation = found.operation
    if exchange.method != "POST":
        values = {key: value for key, value in exchange.query.items() if key.lower() != "a2a-version"}
        return v1_0.convert_request(operation, {**values, **found.values})
    body = await exchange.body()
    if body and exchange.content_type not in JSON_TYPES:
        raise ContentTypeNotSupportedError(
            f"Content-Type must be {v1_0.MEDIA_TYPE} or application/json, not {exchange.content_type[:100]}"
        )
    return v1_0.decode_request(operation, body or b"{}", found.values)


def _answer_type(exchange: Exchange) -> bytes:
    """What the client speaks: plain JSON when that is what it sent or asks for, else the registered type."""
    if exchange.content_type == "application/json":
        return JSON_TYPE
    if not exchange.content_type and "application/json" in exchange.header(b"accept"):
        return JSON_TYPE
    return _A2A_TYPE


async def answer_error(exchange: Exchange, error: A2AError) -> None:
    status, body = to_http(error)
    await exchange.respond(status, encode(body), _answer_type(exchange), error_headers(error))


def _error_bytes(error: A2AError) -> bytes:
    return encode(to_http(error)[1])
