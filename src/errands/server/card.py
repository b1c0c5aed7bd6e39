"""The agent card: built from what the person wrote and the address the client used, cached and revalidated."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from email.utils import formatdate, parsedate_to_datetime
from typing import NamedTuple

from errands.errors import ConfigurationError
from errands.model.base import encode
from errands.model.card import (
    AgentCapabilities,
    AgentCard,
    AgentCardSignature,
    AgentExtension,
    AgentInterface,
    AgentProvider,
    AgentSkill,
    SecurityRequirement,
    StringList,
)
from errands.model.card_config import AgentCardConfig, SkillConfig
from errands.runtime.settings import Settings
from errands.server.exchange import Exchange, Header
from errands.wire import v1_0

#: How each binding is called on the card, by the name people write.
BINDINGS = {"jsonrpc": "JSONRPC", "http+json": "HTTP+JSON"}
_MAX_AGE = 300
_CACHED_URLS = 64


def check_binding(name: str) -> str:
    """The binding in our spelling. Raises `ConfigurationError` for one that is not served."""
    normal = name.lower().replace(" ", "")
    normal = "http+json" if normal in ("http", "rest") else normal
    if normal not in BINDINGS:
        raise ConfigurationError(f"unknown protocol {name!r}; possible are {', '.join(BINDINGS)}")
    return normal


def extensions_of(config: AgentCardConfig) -> list[AgentExtension]:
    declared = [
        AgentExtension(uri=e.uri, description=e.description, required=e.required, params=e.params or None)
        for e in config.extensions
    ]
    return declared + (config.capabilities.extensions or [])


def build_card(config: AgentCardConfig, base_url: str) -> AgentCard:
    base = base_url.rstrip("/")
    preferred = check_binding(config.protocol)
    order = [preferred, *(name for name in BINDINGS if name != preferred)]
    urls = {"jsonrpc": base + "/", "http+json": base}
    capabilities = config.capabilities
    return AgentCard(
        name=config.name,
        description=config.description,
        version=config.version,
        supported_interfaces=[
            AgentInterface(url=urls[name], protocol_binding=BINDINGS[name], protocol_version=v1_0.JSON.version)
            for name in order
        ],
        capabilities=AgentCapabilities(
            streaming=capabilities.streaming,
            push_notifications=capabilities.push_notifications,
            extended_agent_card=offers_extended_card(config),
            extensions=extensions_of(config) or None,
        ),
        default_input_modes=config.input_modes,
        default_output_modes=config.output_modes,
        skills=[_skill(skill) for skill in config.skills] or [_only_skill(config)],
        provider=_provider(config),
        icon_url=config.icon_url,
        documentation_url=config.documentation_url,
        security_schemes=config.security_schemes,
        security_requirements=_requirements(config.security),
        signatures=[
            AgentCardSignature(protected=s.protected, signature=s.signature, header=s.header)
            for s in config.signatures or []
        ]
        or None,
    )


def offers_extended_card(config: AgentCardConfig) -> bool:
    return config.capabilities.extended_agent_card or config.supports_authenticated_extended_card


def _skill(skill: SkillConfig) -> AgentSkill:
    return AgentSkill(
        id=skill.id,
        name=skill.name,
        description=skill.description,
        tags=skill.tags,
        examples=skill.examples or None,
        input_modes=skill.input_modes,
        output_modes=skill.output_modes,
        security_requirements=_requirements(skill.security),
    )


def _provider(config: AgentCardConfig) -> AgentProvider | None:
    if config.provider is None:
        return None
    return AgentProvider(organization=config.provider.organization, url=config.provider.url)


def _only_skill(config: AgentCardConfig) -> AgentSkill:
    """The protocol wants at least one skill: an agent that names none has the one it is about."""
    slug = "-".join(config.name.lower().split()) or "agent"
    return AgentSkill(id=slug, name=config.name, description=config.description, tags=[slug])


def _requirements(security: list[dict[str, list[str]]] | None) -> list[SecurityRequirement] | None:
    if not security:
        return None
    return [
        SecurityRequirement(schemes={name: StringList(scopes=scopes) for name, scopes in needed.items()})
        for needed in security
    ]


def base_url_of(exchange: Exchange, settings: Settings) -> str:
    """The address the client reached us at, unless the operator knows better."""
    if settings.public_url:
        return settings.public_url
    scope = exchange.scope
    scheme = scope.get("scheme", "http")
    host = exchange.header(b"host")
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


class CardDocument(NamedTuple):
    body: bytes
    etag: bytes


class CardShelf:
    """The public card in bytes, one per address it was asked for under."""

    def __init__(self, config: AgentCardConfig, settings: Settings, started_at: float) -> None:
        self._config = config
        self._settings = settings
        self._modified = formatdate(started_at, usegmt=True)
        self._cards: OrderedDict[str, CardDocument] = OrderedDict()

    def _document(self, base_url: str) -> CardDocument:
        document = self._cards.get(base_url)
        if document is None:
            body = encode(build_card(self._config, base_url))
            etag = b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode()
            document = self._cards[base_url] = CardDocument(body, etag)
            # The address comes from the request, so a stranger could fill the memory with them.
            if len(self._cards) > _CACHED_URLS:
                self._cards.popitem(last=False)
        return document

    async def serve(self, exchange: Exchange) -> None:
        document = self._document(base_url_of(exchange, self._settings))
        headers: tuple[Header, ...] = (
            (b"etag", document.etag),
            (b"last-modified", self._modified.encode()),
            (b"cache-control", b"public, max-age=%d" % _MAX_AGE),
            (b"vary", b"Host, A2A-Version"),
        )
        if self._is_fresh(exchange, document):
            await exchange.respond(304, b"", headers=headers)
        else:
            await exchange.respond(200, document.body, headers=headers)

    def _is_fresh(self, exchange: Exchange, document: CardDocument) -> bool:
        tags = exchange.header(b"if-none-match")
        if tags:
            known = {tag.strip().removeprefix("W/") for tag in tags.split(",")}
            return "*" in known or document.etag.decode() in known
        since = exchange.header(b"if-modified-since")
        try:
            return bool(since) and parsedate_to_datetime(since) >= parsedate_to_datetime(self._modified)
        except (TypeError, ValueError):
            return False
