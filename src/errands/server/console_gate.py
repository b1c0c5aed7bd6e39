"""`ConsoleGate` decides whether the console and the operator API are served, and to whom: the setting `console`.

With authentication the console is served, and access rules say what each caller may do. Without authentication,
everyone who can reach the server is its operator. So `console=auto` then serves only this machine, and serves nothing
behind a proxy, where every client seems to be on this machine. `console=on` serves everyone who can reach the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from errands.errors import MethodNotFoundError, PermissionDeniedError
from errands.runtime.settings import ServerRole
from errands.server.asgi import HttpExchange
from errands.server.request_guard import check_host_name, check_site, is_loopback

if TYPE_CHECKING:
    from errands.server.app import A2AServer

#: The prefix of the operator API. A tenant cannot be called "admin", because of the paths of HTTP+JSON.
ADMIN_PREFIX = "/admin/"
#: The paths of the console: the same page is served at both, and at everything below them.
CONSOLE_PATHS = ("/console", "/chat")

#: Headers in which proxies name the client for which they call.
_PROXY_HEADERS = (b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via")


def is_console_path(path: str) -> bool:
    """Return whether a path belongs to the pages of the console."""
    return any(path == one or path.startswith(f"{one}/") for one in CONSOLE_PATHS)


class ConsoleGate:
    """Decides whether one server serves its console, and to which clients."""

    def __init__(self, server: A2AServer) -> None:
        self._server = server
        #: Set by `as_fastapi_app(debug=True)`.
        self.is_debugging = False

    @property
    def is_open(self) -> bool:
        """True if everyone who may use it is an operator, because callers are not asked who they are."""
        return not self._server.asks_who_calls

    @property
    def is_on(self) -> bool:
        """True if the console is served."""
        settings = self._server.settings
        if settings.role is ServerRole.WORKER:
            return False  # it takes no requests
        if settings.console != "auto":
            return settings.console == "on"
        return self._server.asks_who_calls or self._is_private

    @property
    def _is_private(self) -> bool:
        """True if only clients on this machine are expected, and the server is not behind a proxy."""
        settings = self._server.settings
        if settings.trust_forwarded or settings.public_url is not None:
            return False
        return self.is_debugging or self._server.listens_locally

    def check_on(self) -> None:
        """Raise `MethodNotFoundError` if the console is off."""
        if not self.is_on:
            raise MethodNotFoundError(
                "The console is off. It is on by default where only this machine can reach the server, and where "
                "callers authenticate (auth); ERRANDS_CONSOLE=on turns it on for everyone who can reach the server"
            )

    def check(self, exchange: HttpExchange, *, is_page: bool = False) -> None:
        """Raise `MethodNotFoundError` if the console is off, `PermissionDeniedError` if it is not for this client.

        Other sites may link to a page (`is_page`).
        """
        self.check_on()
        if self.is_open:
            self.check_nameless(exchange, is_page=is_page)

    def check_nameless(self, exchange: HttpExchange, *, is_page: bool = False) -> None:
        """Raise `PermissionDeniedError` if a caller without a name may not use the console from where it is."""
        check_site(exchange, is_page=is_page)
        if self._server.settings.console != "on" and not self.is_from_here(exchange):
            raise PermissionDeniedError(
                "The console is only for this machine as long as callers have no name; set up auth, or set "
                "ERRANDS_CONSOLE=on if everyone who can reach this server may operate it"
            )

    def is_from_here(self, exchange: HttpExchange) -> bool:
        """Return whether only this machine can reach the server, and the request comes from it and not by a proxy.

        Raises `PermissionDeniedError` for a host name that a web page may have registered for this machine.
        """
        if not (self._is_private and _is_local(exchange)):
            return False
        check_host_name(exchange, self._server.settings)
        return True


def _is_local(exchange: HttpExchange) -> bool:
    client, _ = exchange.scope.get("client") or ("", None)
    return is_loopback(client) and not any(name in exchange.headers for name in _PROXY_HEADERS)
