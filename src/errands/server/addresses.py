"""Where a server listens, as a client would write it."""

from __future__ import annotations

#: Addresses that mean "every address" are none that a client could call.
_CALLABLE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


def means_every_address(host: str) -> bool:
    return host in _CALLABLE


def callable_host(host: str) -> str:
    return _CALLABLE.get(host, host)


def host_port(host: str, port: int) -> str:
    """`host:port`, with the brackets that IPv6 needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
