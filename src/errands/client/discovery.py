"""Finding an agent: where its card is, and reading a card of any version."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import httpx
import msgspec

from errands.client.errors import AgentNotFoundError, ProtocolError
from errands.client.http_transport import retry_after, translated_failures
from errands.client.retry import RetryPolicy
from errands.client.transport import TransientError
from errands.errors import ConfigurationError, UnavailableError
from errands.model.card import AgentCard
from errands.wire import v1_0
from errands.wire.dialect import MalformedAnswerError
from errands.wire.v0_3_card import from_v0_3

WELL_KNOWN_PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")

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
        #: Where the card was found, and what the server there calls itself.
        self.found_at: str | None = None
        self.software = b""
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
        self.software = response.headers.get("x-powered-by", "").encode()
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
    """A card of either version as a 1.0 card, or `ProtocolError`. A document of both is read as 1.0."""
    try:
        fields = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"no JSON ({error})") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("name"), str):
        raise ProtocolError("no agent card")
    is_old = not {"supportedInterfaces", "supported_interfaces"} & fields.keys()
    try:
        return from_v0_3(raw) if is_old else v1_0.read_answer(AgentCard, raw)
    except MalformedAnswerError as error:
        raise ProtocolError(str(error)) from None
