"""The agent card: built from its configuration and the address that the client used, cached and revalidated."""

from __future__ import annotations

import enum
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Sequence
from email.utils import formatdate, parsedate_to_datetime
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from errands.errors import ConfigurationError
from errands.model import card
from errands.model.base import encode
from errands.model.card_config import AgentCardConfig, SkillConfig
from errands.runtime.settings import Settings
from errands.server.asgi import Header, HttpExchange, IncomingRequest, host_port
from errands.server.request_guard import host_of, is_loopback
from errands.wire import v0_3_card as v0_3

if TYPE_CHECKING:
    from errands.wire.card_signing import CardSigner

logger = logging.getLogger(__name__)

#: The name of each binding on the card, by the name in the configuration.
BINDINGS = {"jsonrpc": "JSONRPC", "http+json": "HTTP+JSON"}
_MAX_AGE = 300
_CACHED_DOCUMENTS = 192


def check_binding(name: str) -> str:
    """Return the binding's name in `BINDINGS`. Raises `ConfigurationError` for an unknown one."""
    normal = name.lower().replace(" ", "")
    normal = "http+json" if normal in ("http", "rest") else normal
    if normal not in BINDINGS:
        raise ConfigurationError(f"unknown protocol {name!r}: expected one of {', '.join(BINDINGS)}")
    return normal


def extensions_of(config: AgentCardConfig) -> list[card.AgentExtension]:
    declared = [
        card.AgentExtension(uri=e.uri, description=e.description, required=e.required, params=e.params or None)
        for e in config.extensions
    ]
    return declared + (config.capabilities.extensions or [])


def blobs_extension(settings: Settings, base_url: str) -> card.AgentExtension:
    """Return what the card says about uploads."""
    return card.AgentExtension(
        uri=card.BLOBS_EXTENSION,
        description="Large files can be uploaded and are then referred to by their addresses.",
        params={
            "url": f"{base_url.rstrip('/')}/blobs",
            "above": settings.blob_bytes,
            "maxBytes": settings.max_upload_bytes,
        },
    )


def build_card(
    config: AgentCardConfig,
    base_url: str,
    *,
    versions: Sequence[str],
    grpc_address: str | None = None,
    extensions: Sequence[card.AgentExtension] = (),
) -> card.AgentCard:
    """Return the card in its 1.0 form, with the interfaces of these versions.

    `grpc_address` is `host:port`; `extensions` are those of the server, beside the agent's own.
    """
    base = base_url.rstrip("/")
    preferred = check_binding(config.protocol)
    # Clients of 0.3 append `/v1` to the address of HTTP+JSON themselves, so it is the same for every version.
    urls = {"jsonrpc": base + "/", "http+json": base}
    interfaces = [(BINDINGS[name], urls[name]) for name in sorted(urls, key=lambda name: name != preferred)]
    if grpc_address is not None:
        interfaces.append(("GRPC", grpc_address))
    capabilities = config.capabilities
    provider = config.provider
    slug = "-".join(config.name.lower().split()) or "agent"
    return card.AgentCard(
        name=config.name,
        description=config.description,
        version=config.version,
        supported_interfaces=[
            card.AgentInterface(url=url, protocol_binding=binding, protocol_version=version)
            for version in versions
            for binding, url in interfaces
        ],
        capabilities=card.AgentCapabilities(
            streaming=capabilities.streaming,
            push_notifications=capabilities.push_notifications,
            extended_agent_card=offers_extended_card(config),
            extensions=[*extensions_of(config), *extensions] or None,
        ),
        default_input_modes=config.input_modes,
        default_output_modes=config.output_modes,
        # The protocol requires at least one skill.
        skills=[_skill(skill) for skill in config.skills]
        or [card.AgentSkill(id=slug, name=config.name, description=config.description, tags=[slug])],
        provider=card.AgentProvider(organization=provider.organization, url=provider.url) if provider else None,
        icon_url=config.icon_url,
        documentation_url=config.documentation_url,
        security_schemes=config.security_schemes,
        security_requirements=_requirements(config.security),
        signatures=[
            card.AgentCardSignature(protected=s.protected, signature=s.signature, header=s.header)
            for s in config.signatures or []
        ]
        or None,
    )


def offers_extended_card(config: AgentCardConfig) -> bool:
    return config.capabilities.extended_agent_card or config.supports_authenticated_extended_card


def _skill(skill: SkillConfig) -> card.AgentSkill:
    return card.AgentSkill(
        id=skill.id,
        name=skill.name,
        description=skill.description,
        tags=skill.tags,
        examples=skill.examples or None,
        input_modes=skill.input_modes,
        output_modes=skill.output_modes,
        security_requirements=_requirements(skill.security),
    )


def _requirements(security: list[dict[str, list[str]]] | None) -> list[card.SecurityRequirement] | None:
    if not security:
        return None
    return [
        card.SecurityRequirement(schemes={name: card.StringList(scopes=scopes) for name, scopes in needed.items()})
        for needed in security
    ]


def base_url_of(exchange: IncomingRequest, settings: Settings) -> str:
    """Return `public_url`, or else the address at which the client reached this server."""
    if settings.public_url:
        return settings.public_url
    scope = exchange.scope
    scheme = scope.get("scheme", "http")
    host = host_of(exchange)
    if not host:
        name, port = scope.get("server") or ("localhost", None)
        host = f"{name}:{port}" if port else name
    prefix = scope.get("root_path", "")
    if settings.trust_forwarded:
        scheme = _first(exchange.header(b"x-forwarded-proto")) or scheme
        host = _first(exchange.header(b"x-forwarded-host")) or host
        prefix = _first(exchange.header(b"x-forwarded-prefix")).rstrip("/") or prefix
    return f"{scheme}://{host}{prefix}"


def _first(value: str) -> str:
    return value.partition(",")[0].strip()


def is_known(exchange: HttpExchange, etag: bytes) -> bool:
    """Return whether the client says in `If-None-Match` that it has the content with this tag."""
    tags = {tag.strip().removeprefix("W/") for tag in exchange.header(b"if-none-match").split(",")}
    return "*" in tags or etag.decode() in tags


class CardForm(enum.Enum):
    """The form in which the card is written."""

    V1_0 = "1.0"
    V0_3 = "0.3"
    #: The 1.0 card with the fields of 0.3 added: clients do not say which version they speak when they fetch it.
    BOTH = "both"


#: The versions of the readers of each form.
_READERS = {CardForm.V1_0: ("1.0",), CardForm.V0_3: ("0.3",), CardForm.BOTH: ("1.0", "0.3")}
_WRITERS = {CardForm.V1_0: encode, CardForm.V0_3: v0_3.to_v0_3, CardForm.BOTH: v0_3.union}


class CardDocument(NamedTuple):
    """A card in bytes."""

    body: bytes
    etag: bytes


class CardPublisher:
    """Serves the public card: one cached document for each form and each address that clients use."""

    def __init__(
        self,
        config: AgentCardConfig,
        settings: Settings,
        started_at: float,
        *,
        versions: Sequence[str],
        signer: CardSigner | None = None,
    ) -> None:
        self._config = config
        self._settings = settings
        self.signer = signer
        self._warned = False
        self._versions = versions
        #: Where clients find the gRPC server, if there is one: `host:port`, or `:port` at the host they use.
        self.grpc_address: str | None = None
        self._modified = formatdate(started_at, usegmt=True)
        self._documents: OrderedDict[tuple[str, str | None, CardForm, bool], CardDocument] = OrderedDict()

    def build(
        self, config: AgentCardConfig, exchange: IncomingRequest, form: CardForm = CardForm.BOTH
    ) -> card.AgentCard:
        """Return a card, the public one or another, with the addresses that this client can use, signed if possible."""
        base_url = base_url_of(exchange, self._settings)
        grpc_address = self.grpc_address
        if grpc_address is not None and grpc_address.removeprefix("https://").startswith(":"):
            scheme, _, port = grpc_address.rpartition(":")
            grpc_address = scheme + host_port(urlsplit(base_url).hostname or "localhost", int(port))
        extensions = [] if self._settings.blobs is None else [blobs_extension(self._settings, base_url)]
        built = build_card(config, base_url, versions=self._versions, grpc_address=grpc_address, extensions=extensions)
        if self.signer is None or not self._signs(base_url, exchange):
            return built
        readers = [version for version in _READERS[form] if version in self._versions]
        return self.signer.sign(built, versions=readers, base_url=base_url)

    def _signs(self, base_url: str, exchange: IncomingRequest) -> bool:
        """Return whether there is a key, and the address is ours.

        That of a `Host` header is the client's, which may name any other.
        """
        if self.signer is None or self._settings.public_url:
            return self.signer is not None
        # For development. Others could have a card signed that leads readers to something on their own machine.
        server, _ = exchange.scope.get("server") or ("", None)
        host = "" if self._settings.trust_forwarded else urlsplit(base_url).hostname or ""
        if is_loopback(server) and is_loopback(host):
            return True
        if not self._warned:
            self._warned = True
            logger.warning("the card is not signed, because its address comes from the request; set public_url")
        return False

    def document(self, exchange: HttpExchange, form: CardForm) -> CardDocument:
        """Return the public card for this client."""
        base_url = base_url_of(exchange, self._settings)
        key = (base_url, self.grpc_address, form, self._signs(base_url, exchange))
        document = self._documents.get(key)
        if document is None:
            body = _WRITERS[form](self.build(self._config, exchange, form))
            etag = b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode()
            document = self._documents[key] = CardDocument(body, etag)
            # The address comes from the request, so a stranger could fill the memory with documents.
            if len(self._documents) > _CACHED_DOCUMENTS:
                self._documents.popitem(last=False)
        return document

    async def serve(self, exchange: HttpExchange, *, is_older_path: bool = False) -> None:
        """Send the public card in the form that the client expects, or 304 if the client has it."""
        form = CardForm.V0_3 if is_older_path else CardForm.BOTH
        asked = ".".join(exchange.header(b"a2a-version").split(".")[:2])
        if asked in self._versions:
            form = CardForm(asked)
        if len(self._versions) == 1:
            form = CardForm(self._versions[0])
        document = self.document(exchange, form)
        headers: tuple[Header, ...] = (
            (b"etag", document.etag),
            (b"last-modified", self._modified.encode()),
            (b"cache-control", b"public, max-age=%d" % _MAX_AGE),
            (b"vary", b"Host, A2A-Version"),
        )
        if exchange.header(b"if-none-match"):
            is_fresh = is_known(exchange, document.etag)
        else:
            since = exchange.header(b"if-modified-since")
            try:
                is_fresh = bool(since) and parsedate_to_datetime(since) >= parsedate_to_datetime(self._modified)
            except (TypeError, ValueError):
                is_fresh = False
        if is_fresh:
            await exchange.respond(304, b"", headers=headers)
        else:
            await exchange.respond(200, document.body, headers=headers)
