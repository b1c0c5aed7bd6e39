"""Requests that a browser may have been led to send: a page from anywhere can reach a server on the reader's machine.

A page cannot read what another origin answers, and is asked beforehand when it sends JSON. Two ways lead around that: a
body that does not say what it is, and a name of the page's own that is made to lead to this machine (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from urllib.parse import urlsplit

from errands.errors import InvalidRequestError, PermissionDeniedError
from errands.runtime.settings import Settings
from errands.server.exchange import Exchange, Incoming

JSON_TYPES = frozenset({"application/json", "application/a2a+json"})

#: A name or an address, with or without a port: at most as long as one of DNS.
_HOST = re.compile(r"(?:\[[0-9a-f:.]{2,45}\]|[\w.~%!$&'()*+,;=-]{1,255})(?::\d{0,5})?", re.ASCII | re.IGNORECASE)
#: Longer than any host, which are remembered.
_LONGEST = 300
#: Ends of names that nobody can register, and so make lead here.
_OURS = (".localhost", ".internal")


def is_json(exchange: Exchange) -> bool:
    """Whether the body may be read as JSON. Programs need not say so, but browsers have to: then they ask first."""
    kind = exchange.content_type
    return kind in JSON_TYPES if kind else b"origin" not in exchange.headers


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
