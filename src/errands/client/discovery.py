"""Finding an agent: its card, and the interface on it that this client speaks best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

import httpx
import msgspec

from errands.client.bindings import BINDINGS
from errands.client.errors import AgentNotFoundError, NoCommonProtocolError, ProtocolError
from errands.client.http_transport import retry_after, translated_failures
from errands.client.retry import RetryPolicy
from errands.client.transport import TransientError
from errands.errors import ConfigurationError, UnavailableError
from errands.model.card import AgentCard, AgentInterface
from errands.wire import v1_0
from errands.wire.dialect import Dialect, MalformedAnswerError

WELL_KNOWN_PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
#: The dialects this client speaks, by the version on the card.
DIALECTS: dict[str, Dialect] = {v1_0.JSON.version: v1_0.JSON}

CardValidator = Callable[[AgentCard, bytes], None]

_PASSING_STATUSES = frozenset({429, 502, 503, 504})


def card_urls(url: str) -> list[str]:
    """Where to look: at `url` itself when it is a card's address, else at the well-known paths."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigurationError(f"url {url!r}: the address of an agent begins with http:// or https://")
    if parts.path.endswith(".json"):
        return [url]
    return [url.rstrip("/") + path for path in WELL_KNOWN_PATHS]


class CardSource:
    """Fetches the card of one agent and remembers enough of the answer to ask "has it changed?" later."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        url: str,
        *,
        headers: Mapping[str, str],
        retry: RetryPolicy,
        timeout: float | None,
        validator: CardValidator | None = None,
    ) -> None:
        self._client = client
        self._url = url
        self._headers = headers
        self._retry = retry
        self._timeout = timeout
        self._validator = validator
        #: Where the card was found.
        self.found_at: str | None = None
        self._conditions: dict[str, str] = {}

    async def fetch(self) -> AgentCard | None:
        """The card, or None when it is the one that was fetched last. Raises `AgentNotFoundError`."""
        urls = card_urls(self._url) if self.found_at is None else [self.found_at]
        reasons: list[str] = []
        for url in urls:
            response = await self._get(url)
            if response.status_code == httpx.codes.NOT_MODIFIED and self._conditions:
                return None
            if response.status_code == httpx.codes.OK:
                try:
                    return self._accept(url, response)
                except ProtocolError as error:
                    reasons.append(f"{urlsplit(url).path}: {error.description}")
            else:
                reasons.append(f"{urlsplit(url).path}: {_explain(response)}")
        raise AgentNotFoundError(self._url, "; ".join(reasons))

    async def _get(self, url: str) -> httpx.Response:
        async def attempt() -> httpx.Response:
            with translated_failures():
                response = await self._client.get(
                    url,
                    headers=self._request_headers(),
                    timeout=self._timeout,
                    follow_redirects=False,
                )
            if response.status_code in _PASSING_STATUSES:
                cause = UnavailableError(f"HTTP {response.status_code}")
                raise TransientError(cause, reached=True, retry_after=retry_after(response.headers))
            return response

        try:
            return await self._retry.run(attempt, idempotent=True)
        except TransientError as failure:
            raise AgentNotFoundError(self._url, str(failure)) from failure.cause

    def _request_headers(self) -> httpx.Headers:
        headers = httpx.Headers(self._headers)
        headers.update({**self._conditions, "A2A-Version": v1_0.JSON.version, "Accept": "application/json"})
        return headers

    def _accept(self, url: str, response: httpx.Response) -> AgentCard:
        card = read_card(response.content)
        if self._validator is not None:
            self._validator(card, response.content)
        self.found_at = url
        conditions = {
            "If-None-Match": response.headers.get("etag", ""),
            "If-Modified-Since": response.headers.get("last-modified", ""),
        }
        self._conditions = {name: value for name, value in conditions.items() if value}
        return card


def _explain(response: httpx.Response) -> str:
    if response.is_redirect:
        # Followed blindly, a redirect would carry the caller's credentials to wherever it points.
        return f"HTTP {response.status_code}, a redirect; use {response.headers.get('location')!r} instead"
    return f"HTTP {response.status_code}"


def read_card(raw: bytes) -> AgentCard:
    """The card, or `ProtocolError`; `NoCommonProtocolError` for a card of before 1.0."""
    try:
        fields = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"no JSON ({error})") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("name"), str):
        raise ProtocolError("no agent card")
    if not {"supportedInterfaces", "supported_interfaces"} & fields.keys():
        raise NoCommonProtocolError(fields["name"], _wanted(None), _old_offers(fields))
    try:
        return v1_0.read_answer(AgentCard, raw)
    except MalformedAnswerError as error:
        raise ProtocolError(str(error)) from None


def _old_offers(fields: dict[str, Any]) -> list[str]:
    """What a card in the form of 0.3 offers: one main interface and perhaps others."""
    version = fields.get("protocolVersion", "0.3")
    offers = [f"{fields.get('preferredTransport', 'JSONRPC')} {version} at {fields.get('url')}"]
    others = fields.get("additionalInterfaces")
    offers += [
        f"{other.get('transport')} {version} at {other.get('url')}"
        for other in (others if isinstance(others, list) else ())
        if isinstance(other, dict)
    ]
    return offers


class Choice(NamedTuple):
    """The interface to use; `url` is absolute."""

    protocol: str
    url: str
    dialect: Dialect
    tenant: str | None


def protocol_name(name: str) -> str:
    """A binding's name as this client spells it. Raises `ConfigurationError` for one it does not speak."""
    if name.lower() not in BINDINGS:
        raise ConfigurationError(f"protocol {name!r}: possible are {', '.join(map(repr, BINDINGS))}")
    return name.lower()


def choose_interface(
    card: AgentCard, *, card_url: str, protocol: str | None = None, tenant: str | None = None
) -> Choice:
    """The first interface on the card that fits. Raises `NoCommonProtocolError` with what is offered."""
    for interface in card.supported_interfaces:
        choice = _usable(interface, card_url)
        if choice is None or (protocol is not None and choice.protocol != protocol):
            continue
        # The specification binds an interface to its tenant, so another tenant's interface is no choice.
        if tenant is not None and interface.tenant not in (None, "", tenant):
            continue
        return choice._replace(tenant=interface.tenant or tenant)
    offers = [_describe(interface) for interface in card.supported_interfaces]
    raise NoCommonProtocolError(card.name, _wanted(protocol, tenant), offers)


def _usable(interface: AgentInterface, card_url: str) -> Choice | None:
    protocol = interface.protocol_binding.lower()
    # Patch numbers do not take part in negotiation.
    dialect = DIALECTS.get(".".join(interface.protocol_version.split(".")[:2]))
    url = urljoin(card_url, interface.url)
    if protocol not in BINDINGS or dialect is None or urlsplit(url).scheme not in {"http", "https"}:
        return None
    return Choice(protocol, url, dialect, interface.tenant)


def _describe(interface: AgentInterface) -> str:
    tenant = f" for tenant {interface.tenant!r}" if interface.tenant else ""
    return f"{interface.protocol_binding} {interface.protocol_version} at {interface.url}{tenant}"


def _wanted(protocol: str | None, tenant: str | None = None) -> str:
    bindings: Sequence[str] = [protocol] if protocol else list(BINDINGS)
    wanted = f"A2A {' or '.join(DIALECTS)} over {' or '.join(bindings)}"
    return f"{wanted} for tenant {tenant!r}" if tenant else wanted
