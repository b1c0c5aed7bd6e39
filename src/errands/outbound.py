"""The outbound guard: where requests may go that a manifest, a model or a client has named.

Everything that errands sends to an address somebody else chose goes through an `Outbound`. A name is resolved here, its
addresses are judged, and the connection is made to exactly the address that was judged, so a name that changes its mind
in between gains nothing. This holds for each new connection, after a redirect, too. Public addresses are open; the
operator opens others with `ERRANDS_OUTBOUND_ALLOW`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import httpcore
import httpx

from errands.errors import ConfigurationError, ErrandsError
from errands.unpacking import Meter, Unpacking, UnpackingError, ask_for_known

VARIABLE = "ERRANDS_OUTBOUND_ALLOW"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
#: From host and port to the addresses of the host. Raises `OSError` when there is none.
Resolve = Callable[[str, int], Awaitable[list[str]]]

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
#: The ranges that are not public, and why: those of IANA's special-purpose registries that are not globally reachable,
#: multicast, and addresses of cloud services. The first range that contains an address gives the reason. The lists of
#: Python's `ipaddress` are not used because they differ between releases.
_CLOSED: tuple[tuple[str, str], ...] = (
    ("0.0.0.0/32", "is unspecified"),
    ("0.0.0.0/8", "is private or reserved"),  # this network
    ("10.0.0.0/8", "is private or reserved"),
    ("100.64.0.0/10", "is private or reserved"),  # shared by the customers of a carrier; 100.100.100.200 is Alibaba's
    ("127.0.0.0/8", "is this machine itself"),
    ("168.63.129.16/32", "belongs to the cloud's own services"),  # public by its number: Azure's host agent
    ("169.254.0.0/16", "is link-local"),  # 169.254.169.254 is the metadata service of most clouds
    ("172.16.0.0/12", "is private or reserved"),
    ("192.0.0.192/32", "belongs to the cloud's own services"),  # Oracle's metadata service
    ("192.0.0.0/24", "is private or reserved"),  # protocol assignments
    ("192.0.2.0/24", "is private or reserved"),  # documentation
    ("192.88.99.0/24", "is private or reserved"),  # relays of 6to4, given up
    ("192.168.0.0/16", "is private or reserved"),
    ("198.18.0.0/15", "is private or reserved"),  # benchmarks
    ("198.51.100.0/24", "is private or reserved"),  # documentation
    ("203.0.113.0/24", "is private or reserved"),  # documentation
    ("224.0.0.0/4", "is multicast"),
    ("240.0.0.0/4", "is private or reserved"),  # with the broadcast address
    ("::/128", "is unspecified"),
    ("::1/128", "is this machine itself"),
    ("fd00:ec2::254/128", "belongs to the cloud's own services"),  # Amazon's metadata service
    ("fd20:ce::254/128", "belongs to the cloud's own services"),  # Google's metadata service
    ("fc00::/7", "is private or reserved"),  # unique local
    ("fe80::/10", "is link-local"),
    ("ff00::/8", "is multicast"),
    # Outside of 2000::/3 nothing is public: IPv4-compatible addresses, 64:ff9b:1::/48, 100::/64, 5f00::/16, fec0::/10.
    ("::/3", "is private or reserved"),
    ("4000::/2", "is private or reserved"),
    ("8000::/1", "is private or reserved"),
    ("2001::/23", "is private or reserved"),  # protocol assignments: Teredo, benchmarks, ORCHID
    ("2001:db8::/32", "is private or reserved"),  # documentation
    ("3fff::/20", "is private or reserved"),  # documentation
)
_CLOSED_NETWORKS = [(ipaddress.ip_network(network), reason) for network, reason in _CLOSED]
#: Seconds after which the next address of a host is tried.
_PATIENCE = 5.0
_HOST = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*")


class OutboundError(ErrandsError):
    """Nothing was sent: errands may not connect to this address."""


class Outbound:
    """Makes clients that reach public addresses, and those that `allow` names.

    `allow` has addresses (`127.0.0.1`), networks (`10.0.0.0/8`), host names (`db.internal`), everything below a name
    (`*.internal`), or `*` for all there is. Raises `ConfigurationError` for anything else.
    """

    def __init__(self, allow: Iterable[str] = (), *, resolve: Resolve | None = None) -> None:
        self._guard = _Guard(_Allowed(allow), resolve or _resolve)

    @classmethod
    def from_setting(cls, allow: str | None) -> Outbound:
        """From the text of the setting `outbound_allow`: entries with commas between them."""
        return cls(entry for entry in (allow or "").split(",") if entry.strip())

    def transport(self, *, max_bytes: int | None = None) -> httpx.AsyncBaseTransport:
        """A connection pool of its own; close it.

        Answers are unpacked. Reading more than `max_bytes` of one, or of one event of a stream, raises
        `AnswerTooLargeError`.
        """
        return _Transport(self._guard, self._certificates, max_bytes)

    def client(self, *, max_bytes: int | None = None, **options: Any) -> httpx.AsyncClient:
        """A client of httpx; `options` are its own. Neither proxies nor passwords are taken from the environment.

        It logs the addresses it calls. Where they may have a secret in them, use `transport`.
        """
        transport = self.transport(max_bytes=max_bytes)
        return httpx.AsyncClient(**{**options, "transport": transport, "trust_env": False})

    @cached_property
    def _certificates(self) -> ssl.SSLContext:
        # It takes long to make, and every transport can use the same. SSL_CERT_FILE holds, as everywhere.
        return httpx.create_ssl_context()


# Judging


def refusal(address: Address) -> str | None:
    """Return why an address is not public, or None if it is."""
    embedded = _embedded(address)
    if embedded is not None:
        reason = refusal(embedded)
        return f"stands for {embedded}, which {reason}" if reason else None
    return next((reason for network, reason in _CLOSED_NETWORKS if address in network), None)


def _embedded(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that an IPv6 address leads to."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


class _Allowed:
    """What the operator has opened."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        self._hosts: set[str] = set()
        self._everything = False
        for entry in entries:
            self._add(entry.strip().lower().removesuffix("."))

    def _add(self, entry: str) -> None:
        if entry == "*":
            self._everything = True
            return
        try:
            self._networks.append(ipaddress.ip_network(entry, strict=False))
        except ValueError:
            # What ends in digits was meant to be an address.
            if not _HOST.fullmatch(entry) or entry.rpartition(".")[2].isdigit():
                raise ConfigurationError(
                    f"{VARIABLE}: {entry!r} is no address, network or host name; write entries such as "
                    "127.0.0.1, 10.0.0.0/8, db.internal or *.internal, without a port, and commas between them"
                ) from None
            self._hosts.add(entry)

    def host(self, host: str) -> bool:
        name = host.lower().removesuffix(".")
        labels = name.split(".")
        wider = {f"*.{'.'.join(labels[start:])}" for start in range(1, len(labels))}
        return self._everything or name in self._hosts or not wider.isdisjoint(self._hosts)

    def address(self, address: Address) -> bool:
        forms = [form for form in (address, _embedded(address)) if form is not None]
        return any(form in network for form in forms for network in self._networks)


class _Guard:
    def __init__(self, allowed: _Allowed, resolve: Resolve) -> None:
        self._allowed = allowed
        self._resolve = resolve

    async def addresses(self, host: str, port: int) -> list[str]:
        """Where a connection may go. One address that may not be reached is enough to refuse the host.

        Raises `OutboundError`, and `OSError` when the host has no address.
        """
        found = await self._resolve(host, port)
        if not self._allowed.host(host):
            for text in found:
                self._judge(host, ipaddress.ip_address(text))
        return found

    def _judge(self, host: str, address: Address) -> None:
        reason = refusal(address)
        if reason is None or self._allowed.address(address):
            return
        is_name = host.strip("[]") != str(address)
        subject = f"{host} leads to {address}, which" if is_name else str(address)
        choices = f"{address} or {VARIABLE}={host}" if is_name else str(address)
        raise OutboundError(
            f"{subject} {reason}, and only public addresses may be reached; "
            f"whoever runs this server can open it with {VARIABLE}={choices}"
        )


async def _resolve(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


# Connecting


class _Connections(httpcore.AsyncNetworkBackend):
    """Connects to addresses that were judged. The name stays what certificates are compared with."""

    def __init__(self, guard: _Guard) -> None:
        self._guard = guard
        self._sockets = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._guard.addresses(host, port)
                return await self._first(addresses, port, local_address, socket_options)
        except TimeoutError:
            raise httpcore.ConnectTimeout(f"no connection to {host} in time") from None
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"{host} has no address ({error})") from None

    async def _first(
        self, addresses: list[str], port: int, local_address: str | None, options: Any
    ) -> httpcore.AsyncNetworkStream:
        failure: Exception = httpcore.ConnectError("the name has no address")
        for address in addresses:
            # The last one may take as long as the caller waits.
            patience = None if address == addresses[-1] else _PATIENCE
            try:
                return await self._sockets.connect_tcp(
                    address, port, timeout=patience, local_address=local_address, socket_options=options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Any = None
    ) -> httpcore.AsyncNetworkStream:
        raise OutboundError("only http and https may be used")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Transport(httpx.AsyncBaseTransport):
    def __init__(self, guard: _Guard, certificates: ssl.SSLContext, max_bytes: int | None) -> None:
        self._max_bytes = max_bytes
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=certificates, max_connections=100, network_backend=_Connections(guard)
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.scheme not in ("http", "https"):
            raise OutboundError(f"{request.url.scheme!r} may not be used, only http and https")
        url = httpcore.URL(
            scheme=request.url.raw_scheme,
            host=request.url.raw_host,
            port=request.url.port,
            target=request.url.raw_path,
        )
        ask_for_known(request.headers)
        with _in_terms_of_httpx(request):
            response = await self._pool.handle_async_request(
                httpcore.Request(
                    method=request.method,
                    url=url,
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        headers = httpx.Headers(response.headers)
        meter = None if self._max_bytes is None else Meter(self._max_bytes, headers.get("content-type", ""))
        return httpx.Response(
            status_code=response.status,
            stream=_Body(request, response.stream, Unpacking(headers.pop("content-encoding", ""), meter)),
            headers=headers,
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


class _Body(httpx.AsyncByteStream):
    def __init__(self, request: httpx.Request, stream: Any, unpacking: Unpacking) -> None:
        self._request = request
        self._stream = stream
        self._unpacking = unpacking

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _in_terms_of_httpx(self._request):
            async for chunk in self._stream:
                for piece in self._unpacking.pieces(chunk):
                    yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


_FAILURES = {
    getattr(httpcore, name): getattr(httpx, name)
    for name in (
        *("ConnectTimeout", "ReadTimeout", "WriteTimeout", "PoolTimeout", "ConnectError", "ReadError", "WriteError"),
        *("LocalProtocolError", "RemoteProtocolError", "UnsupportedProtocol"),
    )
}


@contextmanager
def _in_terms_of_httpx(request: httpx.Request) -> Iterator[None]:
    """What goes wrong has the same names in both."""
    try:
        yield
    except tuple(_FAILURES) as error:
        raise _FAILURES[type(error)](str(error), request=request) from error
    except UnpackingError as error:
        raise httpx.DecodingError(str(error), request=request) from error
