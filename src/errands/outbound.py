"""The outbound guard: which addresses errands may connect to when a manifest, a model or a client has named them.

A name is resolved here, its addresses are checked, and the connection is made to exactly the address that was
checked, so that a name that changes in between gains nothing. This holds for each new connection, also after a
redirect. Public addresses are open; the operator opens others with `ERRANDS_OUTBOUND_ALLOW`.

Answers are bounded while they are read. Compressed content is not requested and not accepted: a few kilobytes of it may
become gigabytes.
"""

from __future__ import annotations

import asyncio
import email.utils
import ipaddress
import re
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import httpcore
import httpx

from errands.errors import ConfigurationError, ErrandsError

VARIABLE = "ERRANDS_OUTBOUND_ALLOW"

P = TypeVar("P", bound=asyncio.BaseProtocol)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
#: Resolves a host and port to the addresses of the host. Raises `OSError` if it has no address.
Resolve = Callable[[str, int], Awaitable[list[str]]]

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
#: The ranges that are not public, by the reason: those of IANA's special-purpose registries that are not globally
#: reachable, multicast, and addresses of cloud services. The first range that contains an address gives the reason. The
#: lists of Python's `ipaddress` are not used because they differ between releases.
_CLOSED = {
    "is unspecified": ["0.0.0.0/32", "::/128"],
    "is this machine": ["127.0.0.0/8", "::1/128"],
    "belongs to the cloud's own services": [
        "168.63.129.16/32",  # a public number: Azure's host agent
        "192.0.0.192/32",  # the metadata services of Oracle, Amazon and Google
        "fd00:ec2::254/128",
        "fd20:ce::254/128",
    ],
    "is link-local": ["169.254.0.0/16", "fe80::/10"],  # 169.254.169.254 is the metadata service of most clouds
    "is multicast": ["224.0.0.0/4", "ff00::/8"],
    "is private or reserved": [
        "0.0.0.0/8",  # this network
        "100.64.0.0/10",  # shared by the customers of a carrier; 100.100.100.200 is Alibaba's
        *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),
        *("192.0.0.0/24", "2001::/23"),  # protocol assignments, such as Teredo and ORCHID
        *("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20"),  # documentation
        "192.88.99.0/24",  # relays of 6to4, deprecated
        "198.18.0.0/15",  # benchmarks
        "240.0.0.0/4",  # with the broadcast address
        # Outside of 2000::/3 nothing is public: IPv4-compatible addresses, 64:ff9b:1::/48, 100::/64, 5f00::/16.
        *("::/3", "4000::/2", "8000::/1"),
    ],
}
_CLOSED_NETWORKS = [(ipaddress.ip_network(one), reason) for reason, networks in _CLOSED.items() for one in networks]
#: Seconds after which the next address of a host is tried.
_NEXT_ADDRESS = 5.0
#: Seconds that an answer can ask for.
_LONGEST_WAIT = 1e9
_HOST = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*")
#: The content codings that are not accepted. Servers write other things into the header that mean nothing.
_CODINGS = frozenset({"gzip", "x-gzip", "deflate", "br", "zstd", "compress", "x-compress"})


class OutboundError(ErrandsError):
    """Nothing was sent: errands may not connect to this address. `problem` says why, without advice."""

    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(problem + advice)
        self.problem = problem


class AnswerTooLargeError(ErrandsError):
    """The answer is larger than allowed, and the rest was not read."""


class Outbound:
    """Makes clients that reach public addresses, and those that `allow` names.

    `allow` has addresses (`127.0.0.1`), networks (`10.0.0.0/8`), host names (`db.internal`), everything below a name
    (`*.internal`), or `*` for everything. Raises `ConfigurationError` for anything else. `variable` is the environment
    variable that errors name.
    """

    def __init__(self, allow: Iterable[str] = (), *, resolve: Resolve | None = None, variable: str = VARIABLE) -> None:
        self._connections = _GuardedConnections(_Allowed(allow, variable), resolve or _resolve)
        self._certificates: ssl.SSLContext | None = None
        self._reading_certificates = threading.Lock()

    @classmethod
    def from_setting(cls, allow: str | None, variable: str = VARIABLE, *, resolve: Resolve | None = None) -> Outbound:
        """Build the guard from a setting such as `outbound_allow`: entries separated by commas."""
        return cls((entry for entry in (allow or "").split(",") if entry.strip()), resolve=resolve, variable=variable)

    def check_host(self, host: str) -> None:
        """Raise `OutboundError` for a host that is an address, in any notation, that may not be reached.

        The addresses of a name are checked when it is connected to.
        """
        self._connections.check(host, _addresses_in(host))

    def transport(
        self, *, max_bytes: int | None = None, max_connections: int = 100, keep_idle: float | None = None
    ) -> httpx.AsyncBaseTransport:
        """Return a new connection pool, to be closed by the caller.

        Connections are used again within `keep_idle` seconds, or as long as the host keeps them open. Reading more than
        `max_bytes` of an answer, or of one event of a stream, raises `AnswerTooLargeError`.
        """
        certificates = self._shared_certificates()
        return _GuardedTransport(self._connections, certificates, max_bytes, max_connections, keep_idle)

    def client(self, *, max_bytes: int | None = None, **options: Any) -> httpx.AsyncClient:
        """Return a client with the given `options`. Neither proxies nor passwords are taken from the environment.

        It logs the addresses it calls. Where these may contain a secret, use `transport`.
        """
        transport = self.transport(max_bytes=max_bytes)
        return httpx.AsyncClient(**{**options, "transport": transport, "trust_env": False})

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host, all of which may be reached. Raises `OutboundError` and `OSError`."""
        return await self._connections.find(host, port)

    async def connect(self, protocol: Callable[[], P], host: str, port: int, *, has_tls: bool) -> P:
        """Connect a protocol of asyncio to a host. Raises `OutboundError`, and `OSError` if that fails."""
        certificates = await asyncio.to_thread(self._shared_certificates) if has_tls else None
        failure = OSError(f"{host} has no address")
        for address in (addresses := await self._connections.find(host, port)):
            try:
                # The last one may take as long as the caller waits.
                async with asyncio.timeout(None if address == addresses[-1] else _NEXT_ADDRESS):
                    loop, name = asyncio.get_running_loop(), host if has_tls else None
                    connecting = loop.create_connection(protocol, address, port, ssl=certificates, server_hostname=name)
                    return (await connecting)[1]
            except OSError as error:
                failure = error
        raise failure

    def _shared_certificates(self) -> ssl.SSLContext:
        """Return the certificates of all transports, which are expensive to read. SSL_CERT_FILE is respected."""
        with self._reading_certificates:  # also called in threads
            if self._certificates is None:
                self._certificates = httpx.create_ssl_context()
                self._certificates.set_alpn_protocols(["http/1.1"])
            return self._certificates


# Checking addresses


def refusal(address: Address) -> str | None:
    """Return why an address is not public, or None if it is."""
    embedded = _embedded(address)
    if embedded is not None:
        reason = refusal(embedded)
        return f"leads to {embedded}, which {reason}" if reason else None
    return next((reason for network, reason in _CLOSED_NETWORKS if address in network), None)


def is_public(address: str) -> bool:
    """Return whether an address, perhaps with the name of an interface after it, is public."""
    return refusal(ipaddress.ip_address(address.partition("%")[0])) is None


def _embedded(address: Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 address leads to."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


class _Allowed:
    """What the operator has opened."""

    def __init__(self, entries: Iterable[str], variable: str) -> None:
        self.variable = variable
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        self._hosts: set[str] = set()
        for entry in (entry.strip().lower().removesuffix(".") for entry in entries):
            try:
                self._networks.append(ipaddress.ip_network(entry, strict=False))
            except ValueError:
                # An entry that ends in digits was meant to be an address.
                if entry != "*" and (not _HOST.fullmatch(entry) or entry.rpartition(".")[2].isdigit()):
                    raise ConfigurationError(
                        f"{variable}: {entry!r} is not an address, network or host name; write entries such as "
                        "127.0.0.1, 10.0.0.0/8, db.internal or *.internal, without a port, separated by commas"
                    ) from None
                self._hosts.add(entry)

    def host(self, host: str) -> bool:
        name = host.lower().removesuffix(".")
        labels = name.split(".")
        names = {"*", name, *(f"*.{'.'.join(labels[start:])}" for start in range(1, len(labels)))}
        return not names.isdisjoint(self._hosts)

    def address(self, address: Address) -> bool:
        forms = [form for form in (address, _embedded(address)) if form is not None]
        return any(form in network for form in forms for network in self._networks)


def _addresses_in(host: str) -> list[str]:
    """Return the address that a host is, also if it is written like 2130706433 or 0177.1; none for a name."""
    text = host.strip("[]").removesuffix(".")
    if text.lower() == "localhost" or text.lower().endswith(".localhost"):
        return ["127.0.0.1"]
    try:
        return [str(ipaddress.ip_address(text.partition("%")[0]))]
    except ValueError:
        pass
    try:
        return [socket.inet_ntoa(socket.inet_aton(text))]
    except (OSError, UnicodeError):
        return []


async def _resolve(host: str, port: int) -> list[str]:
    return _distinct(await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM))


def resolver(threads: int) -> Resolve:
    """Return a function that resolves names in threads of its own.

    The event loop has only a few threads for all names, and with uvloop two. Names of strangers, whose servers may
    never answer, would hold up all others.
    """
    executor = ThreadPoolExecutor(threads, thread_name_prefix="errands-names")

    async def resolve(host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        return _distinct(await loop.run_in_executor(executor, look_up))

    return resolve


def _distinct(found: Iterable[tuple[Any, ...]]) -> list[str]:
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


# Connecting


class _GuardedConnections(httpcore.AsyncNetworkBackend):
    """Connects to addresses that were checked. Certificates are still compared with the name."""

    def __init__(self, allowed: _Allowed, resolve: Resolve) -> None:
        self._allowed = allowed
        self._resolve = resolve
        self._sockets = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.AsyncNetworkStream:
        failure: Exception = httpcore.ConnectError("the name has no address")
        try:
            async with asyncio.timeout(timeout):
                addresses = await self.find(host, port)
                for address in addresses:
                    # The last one may take as long as the caller waits.
                    patience = None if address == addresses[-1] else _NEXT_ADDRESS
                    try:
                        return await self._sockets.connect_tcp(address, port, patience, local_address, socket_options)
                    except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                        failure = error
        except TimeoutError:
            raise httpcore.ConnectTimeout(f"no connection to {host} in time") from None
        except OSError as error:
            raise httpcore.ConnectError(f"{host} has no address ({error})") from None
        raise failure

    async def find(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host, which were checked. One address that is not allowed is enough to refuse it.

        Raises `OutboundError`, and `OSError` if the host has no address.
        """
        try:
            found = await self._resolve(host, port)
        except UnicodeError as error:
            raise OSError(f"{host[:100]!r} is not a name: {error}") from None
        self.check(host, found)
        return found

    def check(self, host: str, found: Iterable[str]) -> None:
        """Raise `OutboundError` if one of the addresses that were found for a host is not allowed."""
        variable = self._allowed.variable
        for address in [] if self._allowed.host(host) else map(ipaddress.ip_address, found):
            reason = refusal(address)
            if reason is not None and not self._allowed.address(address):
                is_name = host.strip("[]") != str(address)
                subject = f"{host} leads to {address}, which" if is_name else str(address)
                choices = f"{address} or {variable}={host}" if is_name else str(address)
                raise OutboundError(
                    f"{subject} {reason}",
                    ", and only public addresses may be reached; "
                    f"the operator of this server can open it with {variable}={choices}",
                )

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Any = None
    ) -> httpcore.AsyncNetworkStream:
        raise OutboundError("only http and https may be used")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _GuardedTransport(httpx.AsyncHTTPTransport):
    """httpx's own transport over a pool of guarded connections, with bounded answers."""

    def __init__(
        self,
        connections: _GuardedConnections,
        certificates: ssl.SSLContext,
        max_bytes: int | None,
        max_connections: int,
        keep_idle: float | None,
    ) -> None:
        # httpx has no argument for the network backend. Its own pool is never made, so nothing can pass the guard.
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=certificates,
            max_connections=max_connections,
            keepalive_expiry=keep_idle,
            network_backend=connections,
        )
        self._max_bytes = max_bytes

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.scheme not in ("http", "https"):
            raise OutboundError(f"{request.url.scheme!r} may not be used, only http and https")
        request.headers["Accept-Encoding"] = "identity"
        response = await super().handle_async_request(request)
        codings = {name.strip().lower() for name in response.headers.pop("Content-Encoding", "").split(",")}
        assert isinstance(response.stream, httpx.AsyncByteStream)
        if refused := codings & _CODINGS:
            try:
                # The status and the headers of a redirect or an error are enough.
                has_content = response.is_success and await _has_content(response.stream)
            finally:
                await response.stream.aclose()
            if has_content:
                problem = f"it is compressed with {' and '.join(sorted(refused))}, which was not requested"
                raise httpx.DecodingError(problem, request=request)
            response.stream = httpx.ByteStream(b"")
        elif self._max_bytes is not None:
            meter = Meter(self._max_bytes, response.headers.get("Content-Type", ""))
            response.stream = _MeteredBody(response.stream, meter)
        return response


async def _has_content(body: httpx.AsyncByteStream) -> bool:
    """Return whether there is a first byte. The headers of an answer to HEAD, or without content, may not tell."""
    async for piece in body:
        if piece:
            return True
    return False


class Meter:
    """Counts the bytes of one answer; in a stream of events, those of each event."""

    def __init__(self, max_bytes: int, content_type: str) -> None:
        self._max_bytes = max_bytes
        self._is_stream = content_type.partition(";")[0].strip().lower() == "text/event-stream"
        self._count = 0
        #: The end of the last piece: a blank line may come in two pieces.
        self._tail = b""

    def count(self, piece: bytes) -> None:
        """Raises `AnswerTooLargeError`."""
        self._count += len(piece)
        if self._is_stream:
            seen = self._tail + piece
            # The line before may end in another way than the blank one: `\n\r` is also in `\r\n\r\n`.
            end = max(seen.rfind(blank) for blank in (b"\n\n", b"\n\r", b"\r\r"))
            if end >= 0:
                self._count = len(seen) - end
            self._tail = seen[-1:]
        if self._count > self._max_bytes:
            what = "one event of the answer" if self._is_stream else "the answer"
            raise AnswerTooLargeError(f"{what} has more than {self._max_bytes:,} bytes")


class _MeteredBody(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream, meter: Meter) -> None:
        self._stream = stream
        self._meter = meter

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            self._meter.count(piece)
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


# Answers that ask for patience


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a `Retry-After` header, which may be a number or a date."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdecimal():
        return min(float(value), _LONGEST_WAIT)
    try:
        moment = email.utils.parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError):
        return None
    return max(0.0, moment - time.time())
