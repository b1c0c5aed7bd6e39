"""Addresses on a card: which of them a client can call."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

_GRPC_SCHEMES = frozenset({"", "http", "https", "grpc", "grpcs"})


def web_address(url: str) -> SplitResult | None:
    """The parts of an absolute http or https address; None when it is none."""
    parts = _split(url)
    return parts if parts is not None and parts.scheme in ("http", "https") else None


def grpc_address(url: str) -> SplitResult | None:
    """The parts of `HOST:PORT`, or of an address with one of the schemes that gRPC clients know."""
    parts = _split(url if "://" in url else f"//{url.removeprefix('dns:')}")
    if parts is None or parts.scheme not in _GRPC_SCHEMES:
        return None
    return parts if parts.port is not None or parts.scheme else None


def is_local(host: str) -> bool:
    """Whether it means the machine of whoever calls it."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        # Both are looked at only now, and raise when they are wrong.
        has_place = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if has_place and not re.search(r"\s", url) else None
