"""Checks that agent cards are signed with keys that the caller trusts. Needs `errands[signing]`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import httpx

from errands.client.errors import A2AClientError, CardSignatureError
from errands.client.http_requests import is_protected, origin_of, request_json
from errands.errors import ConfigurationError
from errands.model.card import AgentCard
from errands.wire.card_signing import (
    KeySource,
    TrustedKeys,
    UnverifiedCardError,
    VerifiedSignature,
    key_addresses,
    verify_card,
)

#: Seconds for which a fetched key set is used, and after which an unknown key is a reason to fetch it again.
_FRESH, _AGAIN = 300.0, 10.0
_MAX_KEY_SET = 256 * 1024


class CardVerifier:
    """Accepts the agent cards that one of the trusted keys has signed.

    `keys` are PEM, JWK or JWKS, as text, decoded or in a `Path`. `jwks_url` is an address of a key set that is trusted;
    it is fetched when needed, and again after five minutes. The signature of a card may name such an address itself
    (`jku`), which anyone could have written; only those in `allowed_jku` are fetched: complete addresses, or origins
    such as `https://keys.example.com`. Raises `ConfigurationError`.
    """

    def __init__(
        self,
        *keys: KeySource | TrustedKeys,
        jwks_url: str | None = None,
        allowed_jku: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = TrustedKeys()
        for source in keys:
            self._keys += source if isinstance(source, TrustedKeys) else TrustedKeys(source)
        for url in (*([jwks_url] if jwks_url else ()), *allowed_jku):
            if not is_protected(url):
                raise ConfigurationError(f"{url!r} is not an address of a key set: expected https://HOST/PATH")
        if not self._keys and jwks_url is None and not allowed_jku:
            raise ConfigurationError("a card cannot be verified without keys: pass keys, jwks_url or allowed_jku")
        self._jwks_url = jwks_url
        self._allowed = frozenset(allowed_jku)
        self._clock = clock
        #: The key sets by address, and when each was fetched.
        self._fetched: dict[str, tuple[TrustedKeys, float]] = {}

    async def verify(
        self, http: httpx.AsyncClient, card: AgentCard, document: bytes | None = None
    ) -> VerifiedSignature:
        """Return the signature that makes the card trustworthy; `document` is the JSON that it was read from.

        Raises `CardSignatureError`, which says what is wrong with each signature.
        """
        named = key_addresses(card)
        allowed = [url for url in named if url in self._allowed or origin_of(url) in self._allowed]
        urls = list(dict.fromkeys([*([self._jwks_url] if self._jwks_url else ()), *allowed]))
        keys = await self._gather(http, urls, _FRESH)
        try:
            return verify_card(card, keys, document=document)
        except UnverifiedCardError as error:
            refused = [url for url in named if url not in allowed and url != self._jwks_url]
            hint = f" (the key set {refused[0][:200]!r} that the card names is not an allowed one)" if refused else ""
            problem = f"{error}{hint}"
        if not any(self._clock() - self._fetched[url][1] > _AGAIN for url in urls):
            raise CardSignatureError(card.name, problem)
        keys = await self._gather(http, urls, _AGAIN)  # the signer may have a new key
        try:
            return verify_card(card, keys, document=document)
        except UnverifiedCardError:
            raise CardSignatureError(card.name, problem) from None

    async def _gather(self, http: httpx.AsyncClient, urls: Iterable[str], max_age: float) -> TrustedKeys:
        keys = self._keys
        for url in urls:
            known = self._fetched.get(url)
            if known is None or self._clock() - known[1] > max_age:
                known = self._fetched[url] = (await _fetch(http, url), self._clock())
            keys += known[0]
        return keys


async def _fetch(http: httpx.AsyncClient, url: str) -> TrustedKeys:
    try:
        status, body = await request_json(http, "GET", url, max_bytes=_MAX_KEY_SET)
    except A2AClientError as error:
        raise A2AClientError(f"the key set at {url} cannot be fetched: {error}") from error
    if status != httpx.codes.OK:
        raise A2AClientError(f"the key set at {url} cannot be fetched: HTTP {status}")
    try:
        return TrustedKeys(body)
    except ConfigurationError as error:
        raise A2AClientError(f"the key set at {url} cannot be used: {error}") from None
