"""The HTTP bindings as an ASGI application: JSON-RPC, HTTP+JSON, and pages such as the card and health checks.

Every request passes through it, so it is thin.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from errands.console import routes as console
from errands.errors import A2AError, MethodNotFoundError, StorageError, UnavailableError
from errands.model.base import encode
from errands.operations import Operation
from errands.runtime.call import LARGE
from errands.runtime.settings import ServerRole
from errands.runtime.streams import EventStream
from errands.server import praisonai
from errands.server.asgi import JSON_TYPE, ClientDisconnectedError, HttpExchange
from errands.server.cards import CardForm
from errands.server.console_gate import ADMIN_PREFIX, is_console_path
from errands.server.dispatch import Dispatcher
from errands.server.errors import client_error, error_headers
from errands.server.large_work import LARGE_BODY
from errands.server.request_guard import check_content_type, check_host_header, check_host_name
from errands.server.routing import RoutedOperation
from errands.wire import jsonrpc, v0_3, v1_0
from errands.wire.dialect import Dialect
from errands.wire.sse import plain_frame
from errands.wire.status import JSONRPC_HTTP

if TYPE_CHECKING:
    from errands.server.app import A2AServer

logger = logging.getLogger(__name__)

CARD_PATH = "/.well-known/agent-card.json"
OLDER_CARD_PATH = "/.well-known/agent.json"
CARD_PATHS = (CARD_PATH, OLDER_CARD_PATH)
HEALTH_PATH = "/health"
READY_PATH = "/health/ready"
METRICS_PATH = "/metrics"
#: The public keys of the card's signatures.
JWKS_PATH = "/.well-known/jwks.json"


class A2AApp:
    """The ASGI application of an `A2AServer`."""

    def __init__(self, server: A2AServer) -> None:
        self._server = server
        #: The last `Host` that a client of this machine may use: most requests have the same.
        self._checked_host: bytes | None = None
        self._pages: dict[str, Callable[[HttpExchange], Awaitable[None]]] = {
            HEALTH_PATH: self._health,
            READY_PATH: self._ready,
            # The paths of a2akit.
            f"/v1{HEALTH_PATH}": self._health,
            f"/v1{READY_PATH}": self._ready,
            CARD_PATH: self._card,
            OLDER_CARD_PATH: self._card,
            JWKS_PATH: self._key_set,
            METRICS_PATH: self._metrics,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._serve_other(scope, receive, send)
            return
        server = self._server
        exchange = HttpExchange(scope, receive, send, server.settings)
        try:
            host = exchange.headers.get(b"host")
            if host is None or len(exchange.headers) != len(scope["headers"]):
                check_host_header(exchange)
            if server.listens_locally and host != self._checked_host:
                check_host_name(exchange, server.settings)
                self._checked_host = host
            if not server.started:
                await server.start()  # mounted in an application that does not run our lifespan
            exchange.large_work = server.large_work
            if scope["path"] == "/" and scope["method"] == "POST":
                await serve_jsonrpc(exchange, server.dispatcher)
            else:
                await self._route(exchange)
        except ClientDisconnectedError:
            return
        except A2AError as error:
            await respond_error(exchange, error)
        except StorageError as error:
            logger.error("the server could not start: %s", error)
            await respond_error(exchange, UnavailableError("The server could not start; see its log"))
        except Exception as error:
            await respond_error(exchange, client_error(error, f"{exchange.method} {scope['path']!r}"))

    async def _route(self, exchange: HttpExchange) -> None:
        path, dispatcher = _path_of(exchange.scope), self._server.dispatcher
        if path in ("/", ""):
            if await exchange.allows("POST"):
                await serve_jsonrpc(exchange, dispatcher)
        elif praisonai.is_at(path, dispatcher.routes):
            if await exchange.allows("POST"):
                await praisonai.serve(exchange, dispatcher, self._server.cards)
        elif (page := self._pages.get(path)) is not None:
            if await exchange.allows("GET", "HEAD"):
                await page(exchange)
        elif is_console_path(path):
            if await exchange.allows("GET", "HEAD"):
                await self._console(exchange, path)
        elif self._server.blob_pages is not None and (place := self._server.blob_pages.match(path)) is not None:
            if await exchange.allows(*place.methods):
                await self._server.blob_pages.serve(exchange, place)
        elif path.startswith(ADMIN_PREFIX):
            await self._server.admin.serve(exchange, path)
        else:
            found = dispatcher.routes.match(exchange.method, path, exchange.header(b"a2a-version"))
            if found is None:
                raise MethodNotFoundError(f"There is nothing at {exchange.method} {path[:200]}")
            if isinstance(found, RoutedOperation):
                await serve_rest(exchange, dispatcher, found)
            else:
                await exchange.allows(*sorted(found))

    async def _card(self, exchange: HttpExchange) -> None:
        if self._server.settings.role is ServerRole.WORKER:
            raise MethodNotFoundError("This process only runs tasks and serves no card (role worker)")
        await self._server.cards.serve(exchange, is_older_path=_path_of(exchange.scope) == OLDER_CARD_PATH)

    async def _key_set(self, exchange: HttpExchange) -> None:
        signer = self._server.cards.signer
        if signer is None or self._server.settings.role is ServerRole.WORKER:
            raise MethodNotFoundError("This server does not sign its card")
        keys = {"keys": [key.public_jwk() for key in signer.keys]}
        await exchange.respond(200, encode(keys), headers=((b"cache-control", b"public, max-age=300"),))

    async def _console(self, exchange: HttpExchange, path: str) -> None:
        self._server.console.check(exchange, is_page=not path.startswith(console.STATIC))
        card = self._server.cards.document(exchange, CardForm.V1_0).body
        answer = console.answer(
            path,
            card=card,
            accept_encoding=exchange.header(b"accept-encoding"),
            if_none_match=exchange.header(b"if-none-match"),
        )
        if answer is None:
            raise MethodNotFoundError(f"There is nothing at {exchange.method} {path[:200]}")
        await exchange.respond(answer.status, answer.body, answer.media_type, answer.headers)

    async def _metrics(self, exchange: HttpExchange) -> None:
        if self._server.metrics_page is None:
            raise MethodNotFoundError("Metrics are off; ERRANDS_METRICS=true turns them on")
        await self._server.metrics_page.serve(exchange)

    async def _health(self, exchange: HttpExchange) -> None:
        await exchange.respond(200, b'{"status":"ok"}')

    async def _ready(self, exchange: HttpExchange) -> None:
        problem = await self._server.problem()
        if problem is None:
            await exchange.respond(200, b'{"status":"ready"}')
        else:
            await exchange.respond(503, encode({"status": "not ready", "reason": problem}))

    async def _serve_other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve everything but HTTP requests: the lifespan of the application, and offers of WebSockets."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self._server.start()
        except Exception as error:
            logger.error("the server could not start: %s", error)
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._server.stop()
        await send({"type": "lifespan.shutdown.complete"})


def _path_of(scope: Scope) -> str:
    """Return the path below the mount point, percent-encoded so that an id may contain a slash."""
    if scope["path"] == "/":
        return "/"
    raw = scope.get("raw_path")
    path: str = raw.decode("latin-1").partition("?")[0] if raw else scope["path"]
    root = scope.get("root_path", "")
    return path.removeprefix(root) if root else path


async def serve_jsonrpc(exchange: HttpExchange, dispatcher: Dispatcher) -> None:
    """Serve a JSON-RPC request. The method's name says which operation and which dialect it is."""
    request_id = b"null"
    dialect: Dialect = v1_0.JSON
    operation: Operation | None = None
    wants_stream = False
    try:
        if exchange.headers.get(b"content-type") != JSON_TYPE:
            check_content_type(exchange)
        if dispatcher.checks_head:
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
        if dialect is v0_3.JSONRPC and exchange.headers.get(b"a2a-version") == b"0.3.0":
            dialect = v0_3.JSONRPC_A2AKIT  # no other known client sends the patch number
        dispatcher.check_version(exchange)
        if len(call.params) > LARGE_BODY:
            dispatcher.check_outline(operation, call.params)
        request = dialect.read_request(operation, call.params)
        del body, call  # the answer may take hours
        exchange.ends_at_pause, exchange.protocol = dialect.ends_at_pause, dialect.version
        wants_stream = operation.capability == "streaming"
        result = await dispatcher.dispatch(operation, request, exchange)
    except A2AError as error:
        dispatcher.refused(operation, exchange, error)
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
    body = dialect.write_response(operation, result)
    if len(body) > LARGE:
        await asyncio.sleep(0)  # as in `respond`: copying it is another piece of work
    await exchange.respond(200, jsonrpc.result_bytes(request_id, body))


async def serve_rest(exchange: HttpExchange, dispatcher: Dispatcher, routed: RoutedOperation) -> None:
    """Serve an HTTP+JSON request, whose method and path have been routed to an operation and a dialect."""
    operation, dialect, values = routed
    exchange.binding = "http"
    is_post = exchange.method == "POST"
    try:
        dispatcher.check_version(exchange)
        if is_post:
            check_content_type(exchange, operation, dialect.media_type)
        if dispatcher.checks_head:
            await dispatcher.check_head(exchange)
        body = await exchange.body() if is_post else b""
        if body.strip() in (b"", b"null"):  # the official Go client sends null when it has no body
            body = b""
        dialect = dialect.variant(body, exchange.headers.get(b"user-agent", b""))
        if is_post:
            if len(body) > LARGE_BODY:
                dispatcher.check_outline(operation, body)
            request = dialect.read_request(operation, body or b"{}", values)
        else:
            query = {key: value for key, value in exchange.query.items() if key.lower() != "a2a-version"}
            request = dialect.read_query(operation, {**query, **values})
        del body  # the answer may take hours
        exchange.ends_at_pause, exchange.protocol = dialect.ends_at_pause, dialect.version
        result = await dispatcher.dispatch(operation, request, exchange)
    except A2AError as error:
        dispatcher.refused(operation, exchange, error)
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
