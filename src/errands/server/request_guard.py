"""Refuses requests that a web page may have made a browser send (CSRF, DNS rebinding), and invalid Host headers.

A server on the reader's own machine can be reached by any page in a browser there. A page cannot read what another
origin answers, though it can measure how long that takes (see `check_site`), and the browser asks the server first (a
preflight) before it sends JSON or an A2A header. Two ways lead around that: a request with neither, which
`check_content_type` refuses, and a host name of the page's own that resolves to this machine (DNS rebinding), which
`check_host_name` refuses.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from urllib.parse import urlsplit

from errands.errors import ContentTypeNotSupportedError, InvalidRequestError, PermissionDeniedError
from errands.operations import Operation
from errands.runtime.settings import Settings
from errands.server.asgi import HttpExchange, IncomingRequest

JSON_TYPES = frozenset({"application/json", "application/a2a+json"})
#: Headers that a page can send only after a preflight.
_PREFLIGHTED = frozenset({b"a2a-version", b"a2a-extensions", b"x-a2a-extensions", b"x-api-key", b"x-requested-with"})

#: A name or an address, with or without a port. A DNS name has at most 255 characters.
_HOST = re.compile(r"(?:\[[0-9a-f:.]{2,45}\]|[\w.~%!$&'()*+,;=-]{1,255})(?::\d{0,5})?", re.ASCII | re.IGNORECASE)
#: Longer than any valid host: checked hosts are cached.
_MAX_CACHED = 300
#: Top-level names that cannot be registered, so a page cannot make them resolve to this machine.
_PRIVATE_SUFFIXES = (".localhost", ".internal")


def check_content_type(
    exchange: HttpExchange, operation: Operation | None = None, media_type: str = "application/json"
) -> None:
    """Raise `ContentTypeNotSupportedError` unless the body is JSON and a page could not send it without a preflight.

    A request with a body needs a JSON type; programs, which send no `Origin`, may leave the type out. A request that
    changes something without a body needs a JSON type or an A2A header.
    """
    kind = exchange.content_type
    if kind in JSON_TYPES:
        return
    if operation is None or exchange.has_body:
        if not kind and b"origin" not in exchange.headers:
            return
    elif operation.name == "SubscribeToTask" or not _PREFLIGHTED.isdisjoint(exchange.headers):
        return
    types = " or ".join(dict.fromkeys(("application/json", media_type)))
    raise ContentTypeNotSupportedError(f"Content-Type must be {types}, not {kind[:100] or 'left out'}")


def needs_preflight(exchange: HttpExchange) -> bool:
    """Return whether a web page may have sent the request without the server having been asked first."""
    return b"origin" in exchange.headers and _PREFLIGHTED.isdisjoint(exchange.headers)


def check_site(exchange: HttpExchange, *, is_page: bool = False) -> None:
    """Raise `PermissionDeniedError` for a request that a page of another origin made a browser send, whatever it reads.

    The page cannot read the answer, but it can measure how long it takes, and so find out what is in it. A link from
    there may lead to a page of ours (`is_page`).
    """
    if exchange.header(b"sec-fetch-site") not in ("cross-site", "same-site"):
        return
    if not (is_page and exchange.header(b"sec-fetch-dest") == "document"):
        raise PermissionDeniedError("This is not for web pages of other origins")


def check_host_header(exchange: HttpExchange) -> None:
    """Raise `InvalidRequestError` for several `Host` headers, or none where HTTP/1.1 requires one."""
    hosts = sum(name == b"host" for name, _ in exchange.scope["headers"])
    if hosts > 1:
        raise InvalidRequestError("There is more than one Host header")
    if not hosts and exchange.scope.get("http_version") == "1.1":
        raise InvalidRequestError("HTTP/1.1 needs a Host header")


def host_of(exchange: IncomingRequest) -> str:
    """Return the `Host` of a request, "" without one. Raises `InvalidRequestError` if it is not a host."""
    host = exchange.header(b"host")
    if host and not _is_host(host):
        raise InvalidRequestError("The Host header is not the name or the address of a host")
    return host


def check_host_name(exchange: HttpExchange, settings: Settings) -> None:
    """Raise `PermissionDeniedError` for a host name that a page could have registered.

    This is for servers that only this machine can reach.
    """
    host = exchange.header(b"host")
    if settings.trust_forwarded or (len(host) <= _MAX_CACHED and _is_private(host)):
        return
    name = _name_in(host_of(exchange))
    if settings.public_url is None or name != urlsplit(settings.public_url).hostname:
        raise PermissionDeniedError(
            f"This server listens only on its own machine, and {name} is not one of its names; if a proxy calls it by "
            "that name, set ERRANDS_PUBLIC_URL to the address that clients use"
        )


# Addresses of clients


def client_address(exchange: IncomingRequest, settings: Settings) -> str:
    """Return the address of the client; "" if it is not known.

    Behind proxies that are trusted, it is the one that the first of them has added to `X-Forwarded-For`. What is before
    that may be invented by the client.
    """
    if settings.trust_forwarded:
        values = [value.decode("latin-1") for name, value in exchange.scope["headers"] if name == b"x-forwarded-for"]
        added = ",".join(values).split(",")
        if len(added) >= settings.forwarded_proxies:
            forwarded = added[-settings.forwarded_proxies].strip()
            if len(forwarded) <= _MAX_CACHED and (address := _address_in(forwarded)):
                return address
    client = exchange.scope.get("client")
    return _address_in(client[0]) or client[0] if client else ""


def client_network(exchange: IncomingRequest, settings: Settings) -> str:
    """Return the same, but of an IPv6 address its network of 64 bits: one client has all of it."""
    address = client_address(exchange, settings)
    return _network_of(address) if ":" in address else address


@lru_cache(maxsize=4096)
def _address_in(text: str) -> str:
    """Return an address that may have a port; "" if it is not an address."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return ""
    return str(getattr(address, "ipv4_mapped", None) or address)


@lru_cache(maxsize=4096)
def _network_of(address: str) -> str:
    return str(ipaddress.ip_network((address, 64), strict=False)) if _is_address(address) else address


def is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


@lru_cache
def _is_private(host: str) -> bool:
    """Return whether a host is an address or a name that cannot be registered. An empty host is private, too."""
    if not _is_host(host):
        return not host
    name = _name_in(host)
    return "." not in name or name.endswith(_PRIVATE_SUFFIXES) or _is_address(name)


def _is_host(host: str) -> bool:
    try:
        return _HOST.fullmatch(host) is not None and bool(urlsplit(f"//{host}").netloc)
    except ValueError:
        return False


def _name_in(host: str) -> str:
    return (urlsplit(f"//{host}").hostname or "localhost").removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
