"""What a service answers, unpacked and counted as it comes.

HTTP libraries unpack what they have received before anybody can look at it, and a few kilobytes may become gigabytes.
So this is done here for all of them, in small pieces, and a bound holds for what comes out. A library that is handed
the result must not find a `Content-Encoding` any more.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import httpcore
import httpx

from errands.errors import ConfigurationError, ErrandsError

# unpacking

#: What can be unpacked in pieces with what Python brings itself.
_KNOWN = ("gzip", "deflate")
#: What says that something is packed. Servers write other things into the header, too, which say nothing.
_PACKED = (*_KNOWN, "br", "zstd", "compress")
#: Bytes that are unpacked at a time.
_PIECE = 65_536


class AnswerTooLargeError(ErrandsError):
    """More came than was asked for, and the rest was not read."""


class UnpackingError(ErrandsError):
    """What came is not packed as it says, or in a way that nobody asked for."""


class Meter:
    """Counts what comes of one answer. Of a stream of events each one counts for itself: there may be any number."""

    def __init__(self, most: int, content_type: str) -> None:
        self._most = most
        self._is_stream = content_type.partition(";")[0].strip().lower() == "text/event-stream"
        self._count = 0
        #: The end of what came last: a blank line may come in two pieces.
        self._tail = b""

    def count(self, piece: bytes) -> None:
        """Raises `AnswerTooLargeError`."""
        self._count += len(piece)
        if self._is_stream:
            seen = self._tail + piece
            end = max(seen.rfind(blank) for blank in (b"\n\n", b"\r\n\r\n", b"\r\r"))
            if end >= 0:
                self._count = len(seen) - end
            self._tail = seen[-3:]
        self._check()

    def count_empty(self, packed: bytes) -> None:
        """Counts what nothing has come of, which may go on forever, too. Raises `AnswerTooLargeError`."""
        self._count += len(packed)
        self._check()

    def _check(self) -> None:
        if self._count > self._most:
            what = "one event of the answer" if self._is_stream else "the answer"
            raise AnswerTooLargeError(f"{what} has more than {self._most:,} bytes")


def ask_for_known(headers: Any) -> None:
    """Has a request, by its headers, ask for nothing that cannot be unpacked here."""
    asked = [name.strip().lower() for name in headers.get("accept-encoding", "identity").split(",")]
    if not {"identity", *_KNOWN}.issuperset(asked):
        headers["accept-encoding"] = ", ".join(_KNOWN)


class Unpacking:
    """The body of one answer on its way; `encoding` is its `Content-Encoding`."""

    def __init__(self, encoding: str, meter: Meter | None = None) -> None:
        names = [name.strip().lower().removeprefix("x-") for name in encoding.split(",")]
        self._packed = [name for name in names if name in _PACKED]
        self._meter = meter
        self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 16) if self._packed == ["gzip"] else None
        #: What has come and is not unpacked yet.
        self._waiting = b""

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """What comes of the next chunk. Raises `AnswerTooLargeError` and `UnpackingError`."""
        is_empty = True
        for piece in self._inflated(chunk) if self._packed else (chunk,):
            is_empty = False
            if self._meter is not None:
                self._meter.count(piece)
            yield piece
        if is_empty and self._meter is not None:
            self._meter.count_empty(chunk)

    def _inflated(self, chunk: bytes) -> Iterator[bytes]:
        if self._zlib is not None and self._zlib.eof:
            # What comes behind the end is passed over.
            return
        self._waiting += chunk
        inflating = self._zlib = self._zlib or self._deflate()
        while inflating is not None:
            try:
                piece = inflating.decompress(self._waiting, _PIECE)
            except zlib.error as error:
                raise UnpackingError(f"it cannot be unpacked ({error})") from None
            self._waiting = inflating.unconsumed_tail
            if piece:
                yield piece
            if inflating.eof or (not self._waiting and len(piece) < _PIECE):
                return

    def _deflate(self) -> Any:
        """Deflate is meant to have a header of two bytes, and some servers send it without."""
        if self._packed != ["deflate"]:
            packed = " and ".join(self._packed)
            raise UnpackingError(f"it is packed with {packed}, and only gzip or deflate was asked for")
        if len(self._waiting) < 2:
            return None
        first, second = self._waiting[:2]
        has_header = first & 0x0F == zlib.DEFLATED and (first * 256 + second) % 31 == 0
        return zlib.decompressobj(zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS)


# outbound

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
