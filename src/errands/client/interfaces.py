"""What this client speaks, and which interface of an agent it uses: the table, the choice, the opened transport."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, NamedTuple
from urllib.parse import urljoin, urlsplit, urlunsplit

import httpx
import msgspec

from errands.client.bindings import JsonRpcBinding, RestBinding
from errands.client.errors import NoCommonProtocolError
from errands.client.http_transport import HttpTransport
from errands.client.praisonai import PraisonAIBinding
from errands.client.transport import Transport
from errands.errors import ConfigurationError
from errands.model.card import AgentCard, AgentInterface
from errands.wire import v0_3, v1_0
from errands.wire.dialect import ClientDialect
from errands.wire.praisonai import DIALECT as PRAISONAI
from errands.wire.v0_3_card import PRAISONAI_TRANSPORT
from errands.wire.v0_3_spelling import is_once

#: What is spoken over each binding in each version, the preferred version first. gRPC has codecs of its own.
DIALECTS: dict[tuple[str, str], ClientDialect | Literal["grpc"]] = {
    ("1.0", "jsonrpc"): v1_0.JSON,
    ("1.0", "http+json"): v1_0.JSON,
    ("1.0", "grpc"): "grpc",
    ("0.3", "jsonrpc"): v0_3.JSONRPC,
    ("0.3", "http+json"): v0_3.REST,
    ("0.3", "grpc"): "grpc",
    ("0.3", "praisonai"): PRAISONAI,
}
#: The bindings over HTTP, by the name in `A2AClient(protocol=...)`.
BINDINGS = {binding.name: binding for binding in (JsonRpcBinding, RestBinding, PraisonAIBinding)}
#: Where PraisonAI's dialect is spoken, as a rule.
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
        """The operations that cannot be asked for."""
        return frozenset() if self.dialect == "grpc" else self.dialect.lacks


def protocol_name(name: str) -> str:
    """A binding's name as this client spells it. Raises `ConfigurationError` for one it does not speak."""
    known = list(dict.fromkeys(binding for _, binding in DIALECTS))
    if name.lower() not in known:
        raise ConfigurationError(f"protocol {name!r}: possible are {', '.join(map(repr, known))}")
    if name.lower() == "grpc" and not speaks_grpc():
        raise ConfigurationError("protocol 'grpc' needs an extra: pip install 'errands[grpc]'")
    return name.lower()


def version_name(version: str) -> str:
    """A version as `Major.Minor`. Raises `ConfigurationError` for one that this client does not speak."""
    known = _versions()
    short = _short(version)
    if short not in known:
        raise ConfigurationError(f"version {version!r}: possible are {', '.join(map(repr, known))}")
    return short


@cache
def speaks_grpc() -> bool:
    """Whether the extra is installed. Asked only when gRPC would be used: importing it takes its time."""
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
) -> Choice:
    """The interface that fits best: of the newest version, and in the card's order.

    `protocol` and `version` insist on one. Raises `NoCommonProtocolError` with what is offered.
    """
    versions = _versions()
    offered = [*card.supported_interfaces, *(_beside(card) if protocol == "praisonai" else ())]
    fitting = [face for face in offered if _short(face.protocol_version) in versions]
    for interface in sorted(fitting, key=lambda face: versions.index(_short(face.protocol_version))):
        binding = interface.protocol_binding.lower()
        if protocol not in (None, binding) or version not in (None, _short(interface.protocol_version)):
            continue
        # The specification binds an interface to its tenant, so another tenant's interface is no choice.
        if tenant is not None and interface.tenant not in (None, "", tenant):
            continue
        choice = _usable(interface, card_url)
        if choice is not None:
            return choice._replace(tenant=interface.tenant or tenant)
    offers = [_describe(interface) for interface in card.supported_interfaces]
    raise NoCommonProtocolError(card.name, _wanted(protocol, version, tenant), offers)


def open_transport(
    choice: Choice, http: httpx.AsyncClient, *, software: bytes, headers: Mapping[str, str], timeout: float | None
) -> Transport:
    """Return what carries the requests of an interface that was chosen; `software` is what the agent runs on."""
    if choice.dialect == "grpc":
        grpc: Any = importlib.import_module(_GRPC_TRANSPORT)
        transport: Transport = grpc.GrpcTransport(
            choice.url, choice.version, software=software, headers=headers, timeout=timeout
        )
        return transport
    dialect = v0_3.REST_ONCE if choice.dialect is v0_3.REST and is_once(software) else choice.dialect
    binding = BINDINGS[choice.protocol](choice.url, dialect)
    return HttpTransport(http, binding, headers=headers, timeout=timeout)


def _beside(card: AgentCard) -> list[AgentInterface]:
    """PraisonAI's dialect beside 0.3's JSON-RPC: errands has it there, and names it on no card."""
    return [
        msgspec.structs.replace(face, protocol_binding=PRAISONAI_TRANSPORT, url=_praisonai_url(face.url))
        for face in card.supported_interfaces
        if (_short(face.protocol_version), face.protocol_binding.lower()) == ("0.3", "jsonrpc")
    ]


def _praisonai_url(url: str) -> str:
    parts = urlsplit(url)
    path = parts.path.rstrip("/").removesuffix(PRAISONAI_PATH) + PRAISONAI_PATH
    return urlunsplit(parts._replace(path=path))


def _usable(interface: AgentInterface, card_url: str) -> Choice | None:
    version, binding = _short(interface.protocol_version), interface.protocol_binding.lower()
    dialect = DIALECTS.get((version, binding))
    if dialect is None:
        return None
    if dialect == "grpc":
        usable, url = bool(interface.url) and speaks_grpc(), interface.url
    else:
        url = urljoin(card_url, interface.url)
        usable = urlsplit(url).scheme in {"http", "https"}
    return Choice(binding, version, url, dialect, interface.tenant) if usable else None


def _versions() -> list[str]:
    """Those in the table, the preferred one first."""
    return list(dict.fromkeys(version for version, _ in DIALECTS))


def _short(version: str) -> str:
    """Without the patch number, which does not take part in negotiation."""
    return ".".join(version.split(".")[:2])


def _describe(interface: AgentInterface) -> str:
    tenant = f" for tenant {interface.tenant!r}" if interface.tenant else ""
    return f"{interface.protocol_binding} {interface.protocol_version} at {interface.url}{tenant}"


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
