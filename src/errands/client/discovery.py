"""Finding an agent: where its card is, what the card says in either version, and which interface to use."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, NamedTuple
from urllib.parse import urljoin, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

import httpx
import msgspec

from errands.client import http_requests, http_transport
from errands.client.agent_session import RetryPolicy, TransientError, Transport
from errands.client.credentials import ChosenCredentials, ClientCertificate, Origins
from errands.client.errors import (
    AgentNotFoundError,
    AgentUnreachableError,
    ForeignOriginError,
    NoCommonProtocolError,
    PrivateAddressError,
    ProtocolError,
)
from errands.errors import ConfigurationError, UnavailableError
from errands.model.card import AgentCard
from errands.outbound import Outbound, OutboundError, is_public, retry_after
from errands.wire import praisonai, v0_3, v1_0
from errands.wire.dialect import ClientDialect, MalformedAnswerError
from errands.wire.v0_3_card import PRAISONAI_TRANSPORT, from_v0_3
from errands.wire.v0_3_objects import is_once

WELL_KNOWN_PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")

CardValidator = Callable[[AgentCard, bytes], None]

#: Connections of a client. Every open stream and blocking send holds one, so httpx's default of a hundred is too low.
MAX_CONNECTIONS = 1000
#: Bytes of an agent card.
MAX_CARD = 10 * 1024 * 1024
#: Seconds for which an idle connection is used again: httpx's own default, because networks forget them silently.
KEEP_IDLE = 5.0


def card_urls(url: str) -> list[str]:
    """Return where to look: at `url` itself when it is the address of a card, else at the well-known paths.

    Raises `ConfigurationError`.
    """
    parts = urlsplit(url)
    if not url.isprintable():  # urlsplit removes line breaks without a word
        raise ConfigurationError(f"url {url!r}: an address has no line breaks and control characters")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigurationError(f"url {url!r}: the address of an agent begins with http:// or https://")
    if parts.path.endswith(".json"):
        return [url]
    return [url.rstrip("/") + path for path in WELL_KNOWN_PATHS]


@dataclass
class CardSource:
    """Fetches the card of one agent, and again only if it has changed."""

    client: httpx.AsyncClient
    url: str
    headers: Mapping[str, str] = field(repr=False)  # they may have credentials
    retry: RetryPolicy
    timeout: float | None
    validator: CardValidator | None = None
    #: Raises unless the card is signed as the caller requires.
    verifier: Callable[[AgentCard, bytes], Awaitable[object]] | None = None
    #: The credentials that need no card, sent only when the server asks for some.
    authorization: ChosenCredentials = field(default_factory=ChosenCredentials)
    #: Where the card was found, and what the server there calls itself.
    found_at: str | None = None
    software: bytes = b""
    #: Whether the server there has a public address.
    is_public: bool = False
    _conditions: dict[str, str] = field(default_factory=dict)

    async def fetch(self) -> AgentCard | None:
        """Return the card, or None when it is the one that was fetched last. Raises `AgentNotFoundError`."""
        urls = card_urls(self.url) if self.found_at is None else [self.found_at]
        reasons: list[str] = []
        for url in urls:
            try:
                (response, body), asked = await self._get(url), ""
                if response.status_code == httpx.codes.UNAUTHORIZED:
                    secrets = await self.authorization.secrets()
                    if secrets != http_requests.NO_SECRETS:
                        response, body = await self._get(url, secrets)
                    if response.status_code == httpx.codes.UNAUTHORIZED:
                        names = ", ".join(type(credential).__name__ for credential, *_ in self.authorization.parts)
                        wanted = response.headers.get("www-authenticate", "")[:200]
                        asked = (f", asks for {wanted!r}" if wanted else "") + (f", refuses {names}" if names else "")
                if response.status_code == httpx.codes.NOT_MODIFIED and self._conditions:
                    return None
                if response.status_code == httpx.codes.OK:
                    return await self._accept(url, response, body)
            except ProtocolError as error:
                reasons.append(f"{urlsplit(url).path}: {error.description}")
                continue
            # A redirect that is followed would carry the caller's credentials to any address.
            location = response.headers.get("location") if response.is_redirect else None
            advice = f", a redirect; use {location!r} instead" if location else ""
            reasons.append(f"{urlsplit(url).path}: HTTP {response.status_code}{advice}{asked}")
        raise AgentNotFoundError(self.url, "; ".join(reasons))

    async def _get(
        self, url: str, secrets: http_requests.RequestSecrets = http_requests.NO_SECRETS
    ) -> tuple[httpx.Response, bytes]:
        """Return an answer and its body. Raises `AgentNotFoundError`, and `ProtocolError` if it is too large."""
        headers = httpx.Headers(self.headers)
        headers.update({**self._conditions, "A2A-Version": v1_0.JSON.version, "Accept": "application/json"})

        async def attempt() -> tuple[httpx.Response, bytes]:
            with http_transport.translated_failures():
                request = self.client.build_request("GET", url, headers=headers, timeout=self.timeout)
                request = http_requests.add_secrets(request, secrets)
                response = await self.client.send(request, stream=True, follow_redirects=False)
                # A server can hide its address by breaking the connection at once: an unknown one counts as public.
                stream = response.extensions.get("network_stream")
                peer = None if stream is None else stream.get_extra_info("server_addr")
                self.is_public = not isinstance(peer, tuple) or is_public(str(peer[0]))
                body = await http_requests.body_of(response, MAX_CARD)
            if response.status_code in http_transport.PASSING_STATUSES:
                cause = UnavailableError(f"HTTP {response.status_code}")
                raise TransientError(cause, reached=True, retry_after=retry_after(response.headers))
            return response, body

        try:
            return await self.retry.run(attempt, idempotent=True)
        except TransientError as failure:
            raise AgentNotFoundError(self.url, str(failure)) from failure.cause

    async def _accept(self, url: str, response: httpx.Response, body: bytes) -> AgentCard:
        card = read_card(body)
        if self.verifier is not None:
            await self.verifier(card, body)
        if self.validator is not None:
            self.validator(card, body)
        self.found_at = url
        self.software = response.headers.get("x-powered-by", "").encode()
        conditions = {
            "If-None-Match": response.headers.get("etag", ""),
            "If-Modified-Since": response.headers.get("last-modified", ""),
        }
        self._conditions = {name: value for name, value in conditions.items() if value}
        return card


def read_card(raw: bytes) -> AgentCard:
    """Return a card of either version as a 1.0 card. A document of both is read as 1.0. Raises `ProtocolError`."""
    try:
        fields = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not valid JSON ({error})") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("name"), str):
        raise ProtocolError("not an agent card")
    interfaces = fields.get("supportedInterfaces", fields.get("supported_interfaces"))
    is_old = interfaces is None or (interfaces == [] and "url" in fields)
    try:
        return from_v0_3(raw) if is_old else v1_0.read_answer(AgentCard, raw)
    except MalformedAnswerError as error:
        raise ProtocolError(str(error)) from None


# Choosing an interface

#: The dialect of each version over each binding, the preferred version first. gRPC has codecs of its own.
DIALECTS: dict[tuple[str, str], ClientDialect | Literal["grpc"]] = {
    ("1.0", "jsonrpc"): v1_0.JSON,
    ("1.0", "http+json"): v1_0.JSON,
    ("1.0", "grpc"): "grpc",
    ("0.3", "jsonrpc"): v0_3.JSONRPC,
    ("0.3", "http+json"): v0_3.REST,
    ("0.3", "grpc"): "grpc",
    ("0.3", "praisonai"): praisonai.DIALECT,
}
#: The versions in the table, the preferred one first.
VERSIONS = list(dict.fromkeys(version for version, _ in DIALECTS))
#: The bindings over HTTP, by the name in `A2AClient(protocol=...)`.
BINDINGS = {
    binding.name: binding
    for binding in (http_transport.JsonRpcBinding, http_transport.RestBinding, http_transport.PraisonAIBinding)
}
#: Where PraisonAI's dialect is usually spoken.
PRAISONAI_PATH = "/a2a"

_GRPC_TRANSPORT = "errands.client.grpc_transport"


class Choice(NamedTuple):
    """The interface to use; `url` is absolute."""

    protocol: str
    version: str
    url: str
    dialect: ClientDialect | Literal["grpc"]
    tenant: str | None

    @property
    def lacks(self) -> frozenset[str]:
        """The operations that the dialect does not have."""
        return frozenset() if self.dialect == "grpc" else self.dialect.lacks

    @property
    def origin(self) -> str:
        """The scheme, host and port of the interface."""
        return http_requests.grpc_origin(self.url) if self.dialect == "grpc" else http_requests.origin_of(self.url)

    def foreign_origin(self, origins: Origins) -> str | None:
        """Return the origin of the interface if secrets must not go there."""
        is_admitted = origins.admits_grpc(self.url) if self.dialect == "grpc" else origins.admits(self.url)
        return None if is_admitted else self.origin


def protocol_name(name: str) -> str:
    """Return the name of a binding as this client spells it. Raises `ConfigurationError` for an unknown one."""
    known = dict.fromkeys(binding for _, binding in DIALECTS)
    if name.lower() not in known:
        raise ConfigurationError(f"invalid protocol {name!r}: expected one of {', '.join(map(repr, known))}")
    if name.lower() == "grpc" and not speaks_grpc():
        raise ConfigurationError("protocol 'grpc' needs an extra: pip install 'errands[grpc]'")
    return name.lower()


def version_name(version: str) -> str:
    """Return a version as `Major.Minor`. Raises `ConfigurationError` for an unknown one."""
    if _short(version) not in VERSIONS:
        raise ConfigurationError(f"invalid version {version!r}: expected one of {', '.join(map(repr, VERSIONS))}")
    return _short(version)


@cache
def speaks_grpc() -> bool:
    """Return whether the extra is installed. Called only when gRPC would be used, as the import takes time."""
    try:
        importlib.import_module(_GRPC_TRANSPORT)
    except ImportError:
        return False
    return True


def choose_interface(
    card: AgentCard,
    *,
    card_url: str,
    protocol: str | None = None,
    version: str | None = None,
    tenant: str | None = None,
    origins: Origins | None = None,
) -> Choice:
    """Return the interface that fits best: of the newest version, and in the card's order.

    `protocol` and `version` insist on one. `origins` are those that the caller's secrets may go to; others are not
    chosen. Raises `NoCommonProtocolError` with what is offered, and `ForeignOriginError`.
    """
    offered = list(card.supported_interfaces)
    if protocol == "praisonai":
        # errands serves PraisonAI's dialect beside 0.3's JSON-RPC and names it on no card.
        for face in card.supported_interfaces:
            if (_short(face.protocol_version), face.protocol_binding.lower()) == ("0.3", "jsonrpc"):
                parts = urlsplit(face.url)
                path = parts.path.rstrip("/").removesuffix(PRAISONAI_PATH) + PRAISONAI_PATH
                url = urlunsplit(parts._replace(path=path))
                offered.append(msgspec.structs.replace(face, protocol_binding=PRAISONAI_TRANSPORT, url=url))
    foreign: list[str] = []
    fitting = [face for face in offered if _short(face.protocol_version) in VERSIONS]
    for face in sorted(fitting, key=lambda face: VERSIONS.index(_short(face.protocol_version))):
        spoken, binding = _short(face.protocol_version), face.protocol_binding.lower()
        dialect = DIALECTS.get((spoken, binding))
        if dialect is None or protocol not in (None, binding) or version not in (None, spoken):
            continue
        # The specification binds an interface to its tenant, so that of another tenant cannot be used.
        if tenant is not None and face.tenant not in (None, "", tenant):
            continue
        if dialect == "grpc":
            url, is_usable = face.url, bool(face.url) and speaks_grpc()
        else:
            try:
                url = urljoin(card_url, face.url)
                # An address with a user would replace the caller's credentials by those of the card.
                is_plain = face.url.isprintable() and urlsplit(face.url).username is None
                is_usable = is_plain and urlsplit(url).scheme in {"http", "https"}
            except ValueError:  # such as http://[::1
                is_usable = False
        if is_usable:
            choice = Choice(binding, spoken, url, dialect, face.tenant or tenant)
            elsewhere = None if origins is None else choice.foreign_origin(origins)
            if elsewhere is None:
                return choice
            foreign.append(elsewhere)
    if foreign and origins is not None:
        raise ForeignOriginError(origins.agent, list(dict.fromkeys(foreign)))
    offers = [
        f"{face.protocol_binding} {face.protocol_version} at {face.url}"
        + (f" for tenant {face.tenant!r}" if face.tenant else "")
        for face in card.supported_interfaces
    ]
    raise NoCommonProtocolError(card.name, _wanted(protocol, version, tenant), offers)


class CardNamedTransport(httpx.AsyncBaseTransport):
    """Connects to interfaces that only a card from a public address names: they must be public, too."""

    def __init__(self, guard: Outbound) -> None:
        # The same limits as those of the connections to other interfaces.
        self._transport = guard.transport(max_connections=MAX_CONNECTIONS, keep_idle=KEEP_IDLE)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await self._transport.handle_async_request(request)
        except OutboundError as error:
            raise PrivateAddressError(http_requests.origin_of(str(request.url)), error.problem) from None

    async def aclose(self) -> None:
        await self._transport.aclose()


def has_proxy(origin: str, *, is_grpc: bool = False) -> bool:
    """Return whether httpx, or gRPC, connects to an origin through a proxy that the environment names."""
    parts = urlsplit(origin)
    kinds = {"grpc", "https", "http"} if is_grpc else {parts.scheme, "all"}
    return parts.hostname is not None and not kinds.isdisjoint(getproxies()) and not proxy_bypass(parts.hostname)


def is_card_named(choice: Choice, url: str, allowed: Collection[str]) -> bool:
    """Return whether only the card names the host of an interface: it is not that of `url`, nor an allowed origin."""
    origin = choice.origin
    return urlsplit(origin).hostname != urlsplit(url).hostname and origin not in allowed


async def check_grpc(choice: Choice, guard: Outbound) -> list[str]:
    """Return the addresses of a gRPC interface that only a card names.

    Raises `PrivateAddressError`, and `AgentUnreachableError` if there are none.
    """
    target = http_requests.grpc_target(choice.url)
    if not target.host:  # such as unix:/run/docker.sock
        raise PrivateAddressError(choice.url, "it does not name a host")
    try:
        return await guard.addresses(target.host, target.port)
    except OutboundError as error:
        raise PrivateAddressError(choice.origin, error.problem) from None
    except OSError as error:
        raise AgentUnreachableError(f"{target.host} has no address ({error})") from None


def open_transport(
    choice: Choice,
    http: httpx.AsyncClient,
    *,
    software: bytes,
    headers: Mapping[str, str],
    timeout: float | None,
    max_answer_bytes: int = http_requests.MAX_ANSWER,
    certificate: ClientCertificate | None = None,
    addresses: Sequence[str] = (),
) -> Transport:
    """Return the transport of an interface that was chosen; `software` is what the agent runs on.

    With `addresses`, gRPC connects to these and not to what the name of the host leads to later.
    """
    if choice.dialect == "grpc":
        grpc: Any = importlib.import_module(_GRPC_TRANSPORT)
        transport: Transport = grpc.GrpcTransport(
            choice.url,
            choice.version,
            software=software,
            headers=headers,
            timeout=timeout,
            max_answer_bytes=max_answer_bytes,
            credentials=None if certificate is None else grpc.channel_credentials(certificate),
            addresses=addresses,
        )
        return transport
    dialect = v0_3.REST_ONCE if choice.dialect is v0_3.REST and is_once(software) else choice.dialect
    binding = BINDINGS[choice.protocol](choice.url, dialect)
    return http_transport.HttpTransport(
        http, binding, headers=headers, timeout=timeout, max_answer_bytes=max_answer_bytes
    )


def _short(version: str) -> str:
    """Return the version without its patch number, which does not take part in negotiation."""
    return ".".join(version.split(".")[:2])


def _wanted(protocol: str | None, version: str | None, tenant: str | None) -> str:
    spoken = [
        (known, binding)
        for (known, binding), dialect in DIALECTS.items()
        if protocol in (None, binding) and version in (None, known) and (dialect != "grpc" or speaks_grpc())
    ]
    versions = " or ".join(dict.fromkeys(known for known, _ in spoken)) or version or "in any version"
    bindings = " or ".join(dict.fromkeys(binding for _, binding in spoken)) or protocol
    wanted = f"A2A {versions} over {bindings}"
    return f"{wanted} for tenant {tenant!r}" if tenant else wanted
