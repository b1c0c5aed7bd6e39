"""The ASGI application: which path belongs to which binding or page. Every request passes through it, so it is thin."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from errands.errors import A2AError, MethodNotFoundError, StorageError, UnavailableError
from errands.model.base import encode
from errands.runtime.settings import ServerRole
from errands.server import praisonai
from errands.server.errors import client_error
from errands.server.http import ClientDisconnectedError, HttpExchange
from errands.server.http_bindings import respond_error, serve_jsonrpc, serve_rest
from errands.server.request_guard import check_host_header, check_host_name
from errands.server.routing import RoutedOperation
from errands.wire.status import to_http

if TYPE_CHECKING:
    from errands.server.app import A2AServer

logger = logging.getLogger(__name__)

CARD_PATH = "/.well-known/agent-card.json"
OLDER_CARD_PATH = "/.well-known/agent.json"
CARD_PATHS = (CARD_PATH, OLDER_CARD_PATH)
HEALTH_PATH = "/health"
READY_PATH = "/health/ready"


class A2AApp:
    """The ASGI application of an `A2AServer`."""

    def __init__(self, server: A2AServer) -> None:
        self._server = server
        self._pages: dict[str, Callable[[HttpExchange], Awaitable[None]]] = {
            HEALTH_PATH: self._health,
            READY_PATH: self._ready,
            # The paths of a2akit.
            f"/v1{HEALTH_PATH}": self._health,
            f"/v1{READY_PATH}": self._ready,
            CARD_PATH: self._card,
            OLDER_CARD_PATH: self._card,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        exchange = HttpExchange(scope, receive, send, self._server.settings)
        try:
            if b"host" not in exchange.headers or len(exchange.headers) != len(scope["headers"]):
                check_host_header(exchange)
            if self._server.listens_locally:
                check_host_name(exchange, self._server.settings)
            if not self._server.started:
                await self._server.start()  # mounted in an application that does not run our lifespan
            if scope["path"] == "/" and scope["method"] == "POST":
                await serve_jsonrpc(exchange, self._server.dispatcher)
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
            if await _allows(exchange, "POST"):
                await serve_jsonrpc(exchange, dispatcher)
        elif praisonai.is_at(path, dispatcher.routes):
            if await _allows(exchange, "POST"):
                await praisonai.serve(exchange, dispatcher, self._server.cards)
        elif (page := self._pages.get(path)) is not None:
            if await _allows(exchange, "GET", "HEAD"):
                await page(exchange)
        else:
            found = dispatcher.routes.match(exchange.method, path, exchange.header(b"a2a-version"))
            if found is None:
                raise MethodNotFoundError(f"There is nothing at {exchange.method} {path[:200]}")
            if isinstance(found, RoutedOperation):
                await serve_rest(exchange, dispatcher, found)
            else:
                await _allows(exchange, *sorted(found))

    async def _card(self, exchange: HttpExchange) -> None:
        if self._server.settings.role is ServerRole.WORKER:
            raise MethodNotFoundError("This process only runs tasks and serves no card (role worker)")
        await self._server.cards.serve(exchange, is_older_path=_path_of(exchange.scope) == OLDER_CARD_PATH)

    async def _health(self, exchange: HttpExchange) -> None:
        await exchange.respond(200, b'{"status":"ok"}')

    async def _ready(self, exchange: HttpExchange) -> None:
        problem = await self._server.problem()
        if problem is None:
            await exchange.respond(200, b'{"status":"ready"}')
        else:
            await exchange.respond(503, encode({"status": "not ready", "reason": problem}))

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


async def _allows(exchange: HttpExchange, *methods: str) -> bool:
    """Return whether the request has one of the methods; respond with 405 if not."""
    if exchange.method in methods:
        return True
    allowed = ", ".join(methods)
    body = to_http(MethodNotFoundError(f"{exchange.method} is not allowed here; use {allowed}"))[1]
    body["error"]["code"] = 405
    await exchange.respond(405, encode(body), headers=((b"allow", allowed.encode()),))
    return False
