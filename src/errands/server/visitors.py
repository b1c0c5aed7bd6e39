"""Requests that a browser may have been led to send: a page from anywhere can reach a server on the reader's machine.

A page cannot read what another origin answers, and its browser asks the server first (a preflight) when it sends JSON
or a header of A2A. Two ways lead around that: a request that has neither, and a name of the page's own that is made to
lead to this machine (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from urllib.parse import urlsplit

from errands.errors import ContentTypeNotSupportedError, InvalidRequestError, PermissionDeniedError
from errands.operations import Operation
from errands.runtime.settings import Settings
from errands.server.exchange import Exchange, Incoming

JSON_TYPES = frozenset({"application/json", "application/a2a+json"})
#: Headers that a page can send only after a preflight.
_ASKED_FOR = frozenset({b"a2a-version", b"a2a-extensions", b"x-a2a-extensions", b"x-api-key", b"x-requested-with"})

#: A name or an address, with or without a port: at most as long as one of DNS.
_HOST = re.compile(r"(?:\[[0-9a-f:.]{2,45}\]|[\w.~%!$&'()*+,;=-]{1,255})(?::\d{0,5})?", re.ASCII | re.IGNORECASE)
#: Longer than any host, which are remembered.
_LONGEST = 300
#: Ends of names that nobody can register, and so make lead here.
_OURS = (".localhost", ".internal")


def check_type(exchange: Exchange, operation: Operation | None = None, media_type: str = "application/json") -> None:
    """Raise `ContentTypeNotSupportedError` unless the body may be read as JSON, and a page had to ask to send this.

    A request with a body needs a JSON type; programs, which send no `Origin`, may leave the type out. A request without
    one that changes something needs a JSON type or a header of A2A.
    """
    kind = exchange.content_type
    if kind in JSON_TYPES:
        return
    if operation is None or exchange.has_body:
        if not kind and b"origin" not in exchange.headers:
            return
    elif operation.name == "SubscribeToTask" or not _ASKED_FOR.isdisjoint(exchange.headers):
        return
    types = " or ".join(dict.fromkeys(("application/json", media_type)))
    raise ContentTypeNotSupportedError(f"Content-Type must be {types}, not {kind[:100] or 'left out'}")


def check_host(exchange: Exchange) -> None:
    """Raise `InvalidRequestError` for a request with several `Host` headers, or none where HTTP/1.1 wants one."""
    hosts = sum(name == b"host" for name, _ in exchange.scope["headers"])
    if hosts > 1:
        raise InvalidRequestError("There is more than one Host header")
    if not hosts and exchange.scope.get("http_version") == "1.1":
        raise InvalidRequestError("HTTP/1.1 needs a Host header")


def host_of(exchange: Incoming) -> str:
    """The `Host` of a request, "" when there is none. Raises `InvalidRequestError` for what is no host."""
    host = exchange.header(b"host")
    if host and not _is_host(host):
        raise InvalidRequestError("The Host header is not the name or the address of a host")
    return host


def _is_host(host: str) -> bool:
    try:
        return _HOST.fullmatch(host) is not None and bool(urlsplit(f"//{host}").netloc)
    except ValueError:
        return False


def check_name(exchange: Exchange, settings: Settings) -> None:
    """For a server that only this machine can reach: raises `PermissionDeniedError` for a name that may be a page's."""
    host = exchange.header(b"host")
    if settings.trust_forwarded or (len(host) <= _LONGEST and _is_ours(host)):
        return
    name = _name_in(host_of(exchange))
    if settings.public_url is None or name != urlsplit(settings.public_url).hostname:
        raise PermissionDeniedError(
            f"This server listens on its own machine only and does not go by the name {name}; if a proxy calls it by "
            "that name, set ERRANDS_PUBLIC_URL to the address that clients use"
        )


@lru_cache
def _is_ours(host: str) -> bool:
    """Whether this is an address, or a name that no page can have."""
    if not _is_host(host):
        return not host
    name = _name_in(host)
    return "." not in name or name.endswith(_OURS) or _is_address(name)


def _name_in(host: str) -> str:
    return (urlsplit(f"//{host}").hostname or "localhost").removesuffix(".")


def is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(name: str) -> bool:
    """An address cannot be made to lead elsewhere."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
