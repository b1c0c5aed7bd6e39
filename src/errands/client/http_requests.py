"""Shared by all HTTP of the client: checked headers, origins, secrets, and requests to servers other than the agent."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import msgspec

from errands.client.errors import A2AClientError, ProtocolError
from errands.errors import ConfigurationError
from errands.outbound import AnswerTooLargeError, Meter

#: Headers, in lower case, that prove who calls.
SECRET_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization", "x-api-key"})


def is_header_value(value: str) -> bool:
    """Return whether it is printable ASCII, so without a line break that would start another header."""
    return value.isascii() and value.isprintable()


def checked_headers(headers: Mapping[str, str]) -> httpx.Headers:
    """Return the headers. Raises `ConfigurationError` when one could smuggle in another."""
    for name, value in headers.items():
        if not name or not is_header_value(name) or not is_header_value(value):
            raise ConfigurationError(f"header {name!r}: name and value must be printable ASCII without line breaks")
    return httpx.Headers(headers)


class RequestSecrets(NamedTuple):
    """What a request carries to prove who calls. Over gRPC everything is metadata."""

    headers: Mapping[str, str] = MappingProxyType({})
    query: Mapping[str, str] = MappingProxyType({})

    def __repr__(self) -> str:
        return f"RequestSecrets({', '.join([*self.headers, *self.query])})"


NO_SECRETS = RequestSecrets()


def add_secrets(request: httpx.Request, secrets: RequestSecrets) -> httpx.Request:
    """Return the request with the secrets. Those of the query are in its target only: httpx logs its URL."""
    request.headers.update(secrets.headers)
    if secrets.query:
        target = request.url.copy_merge_params(secrets.query).raw_path
        request.extensions = {**request.extensions, "target": target}
    return request


#: Bytes of an answer, or of one event of a stream, unless the caller wants another limit.
MAX_ANSWER = 100 * 1024 * 1024


async def pieces_of(response: httpx.Response, max_bytes: int, content_type: str = "") -> AsyncIterator[bytes]:
    """Yield the body as it arrives. Raises `ProtocolError` if it, or one event of a stream, is larger than allowed.

    `content_type` is what the caller reads it as. It is not the server's: a body that is read as a whole would have no
    bound if that called it a stream.
    """
    meter = Meter(max_bytes, content_type)
    async for piece in response.aiter_bytes():
        try:
            meter.count(piece)
        except AnswerTooLargeError as error:
            raise ProtocolError(str(error)) from None
        yield piece


async def body_of(response: httpx.Response, max_bytes: int) -> bytes:
    """Return the body, and close the response. Raises `ProtocolError` if it is larger than allowed."""
    try:
        return b"".join([piece async for piece in pieces_of(response, max_bytes)])
    finally:
        await response.aclose()


async def request_json(
    http: httpx.AsyncClient,
    method: str,
    url: str,
    *,
    data: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    max_bytes: int = 64 * 1024,
    timeout: float = 10.0,
) -> tuple[int, dict[str, Any]]:
    """Return status and JSON object of a request to another server than the agent, such as one with keys or tokens.

    Neither the client's own headers, cookies and credentials are sent, nor are redirects followed. A body that is not a
    JSON object counts as an empty one. Raises `A2AClientError`.
    """
    try:
        request = http.build_request(method, url, data=data, timeout=timeout)
        for name in SECRET_HEADERS:
            request.headers.pop(name, None)
        request.headers.update({"Accept": "application/json", **(headers or {})})
        response = await http.send(request, auth=None, stream=True, follow_redirects=False)
        body = await body_of(response, max_bytes)
    except ProtocolError as error:
        raise A2AClientError(error.description) from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise A2AClientError(str(error) or type(error).__name__) from error
    try:
        return response.status_code, msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return response.status_code, {}


def origin_of(url: str) -> str:
    """Return scheme, host and port of an address, the port only if it is not the usual one."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    return f"{parts.scheme}://{host}" + ("" if port in (None, usual) else f":{port}")


#: Names that gRPC understands by itself.
_NATIVE_SCHEMES = frozenset({"dns", "ipv4", "ipv6", "unix", "unix-abstract"})
#: The address on a card has no scheme, which means plain text.
_GRPC_PORTS = {"": 80, "http": 80, "grpc": 80, "https": 443, "grpcs": 443}
_GRPC_TLS = frozenset({"https", "grpcs"})


class GrpcTarget(NamedTuple):
    """What gRPC connects to, by TLS or not. Without a host it is an address that gRPC reads, such as a Unix socket."""

    name: str
    is_secure: bool
    host: str
    port: int


def grpc_target(url: str) -> GrpcTarget:
    """Return where an address of gRPC leads, which may be just `HOST:PORT`. Raises `ConfigurationError`."""
    if url.partition(":")[0] in _NATIVE_SCHEMES:
        return GrpcTarget(url, False, "", 0)
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        host, port = parts.hostname or "", parts.port or _GRPC_PORTS[parts.scheme]
    except (ValueError, KeyError):
        host, port = "", 0
    if not host:
        raise ConfigurationError(f"url {url!r}: an agent's gRPC address is HOST:PORT or https://HOST")
    shown = f"[{host}]" if ":" in host else host
    return GrpcTarget(f"{shown}:{port}", parts.scheme in _GRPC_TLS, host, port)


def grpc_origin(url: str) -> str:
    """Return the origin of an address of gRPC, as `allow_origins` has it: that of the host that is connected to.

    An address without a host has only a scheme, and so never the origin of an agent.
    """
    try:
        target = grpc_target(url)
    except ConfigurationError:
        return "grpc:"
    if not target.host:
        return f"{url.partition(':')[0]}:"
    return origin_of(f"{'https' if target.is_secure else 'http'}://{target.name}")


def is_protected(url: str) -> bool:
    """Return whether an address is one of https, or of this machine, and does not name a user."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        is_local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = False
    return bool(host) and parts.username is None and (parts.scheme == "https" or is_local)
