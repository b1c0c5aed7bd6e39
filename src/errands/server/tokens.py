"""Bearer tokens: signed ones (`JWTAuth`, `OIDCAuth`), and those that the authorization server is asked about.

Keys, discovery documents and answers come through the outbound guard, over https, without redirects, and bounded in
size and time. Strangers cannot make the server ask more often: see `IssuerKeys` and `IntrospectionAuth`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import httpx
import msgspec
from starlette.requests import Request

from errands.errors import ConfigurationError, ErrandsError, UnavailableError
from errands.outbound import Outbound
from errands.runtime.middleware import Caller, bearer_token, hash_of, verified_email
from errands.server.auth import MAX_NAME, AuthScheme, RefusedCredentialsError, auth_extra, check_texts, only_value

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

logger = logging.getLogger(__name__)

MAX_TOKEN = 16_000
#: Seconds that a request to an issuer may take.
_TIMEOUT = 10.0
#: Seconds for which keys are used when the issuer cannot be reached.
_MAX_STALE = 3600.0
DISCOVERY_PATH = "/.well-known/openid-configuration"


class BearerAuth(AuthScheme):
    """What the schemes with bearer tokens have in common: from the claims of a token to its caller.

    `owner` and `tenant` are the names of claims; `a.b` is the claim `b` inside `a`. `prefix` begins the names of all
    owners, so that they differ from those of another issuer.
    """

    challenge = "Bearer"
    #: Bytes of the largest answer of an issuer.
    most_bytes = 512 * 1024

    def __init__(
        self,
        name: str,
        *,
        scopes: Iterable[str],
        token_url: str | None,
        owner: str,
        tenant: str | None,
        scope_claim: str | None,
        prefix: str | None,
        pass_token: bool,
    ) -> None:
        super().__init__(name, scopes)
        self._owner = owner
        self._tenant = tenant
        self._scope_claims = (scope_claim,) if scope_claim else ("scope", "scp")
        self.prefix = prefix
        self._token_url = token_url
        self.passes_token = pass_token
        self._client: httpx.AsyncClient | None = None

    @abstractmethod
    async def claims_of(self, token: str) -> Mapping[str, Any]:
        """Return the claims of a valid token. Raises as `authenticate` does."""

    async def authenticate(self, request: Request) -> Caller | None:
        only_value(request, "authorization")
        token = bearer_token(request)
        if not token:
            return None
        if len(token) > MAX_TOKEN or not token.isascii():
            raise RefusedCredentialsError("The token is not valid")
        return self._caller(dict(await self.claims_of(token)))

    def _caller(self, claims: dict[str, Any]) -> Caller:
        scopes: set[str] = set()
        for name in self._scope_claims:
            value = claim(claims, name)
            if isinstance(value, str):
                scopes.update(value.split())
            elif isinstance(value, list):
                scopes.update(scope for scope in value if isinstance(scope, str))
        return Caller(
            owner=(self.prefix or "") + self._name(claims, self._owner),
            tenant=self._name(claims, self._tenant) if self._tenant else "",
            email=verified_email(claims),
            scopes=frozenset(scopes),
            claims=claims,
            scheme=self.name,
        )

    def _name(self, claims: dict[str, Any], name: str) -> str:
        value = claim(claims, name)
        if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME:
            raise RefusedCredentialsError(f"The token has no claim {name} that names its holder")
        return value

    def on_card(self) -> dict[str, Any]:
        if self._token_url is None:
            return {"type": "http", "scheme": "bearer"}
        flow = {"tokenUrl": self._token_url, "scopes": dict.fromkeys(self.scopes, "")}
        return {"type": "oauth2", "flows": {"clientCredentials": flow}}

    # Asking the issuer

    def open(self, outbound: Outbound) -> None:
        if self._client is not None:
            raise ConfigurationError(f"{self!r} belongs to another server that runs; make one for each server")
        self._client = outbound.client(max_bytes=self.most_bytes, timeout=_TIMEOUT, follow_redirects=False)

    async def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.aclose()

    async def ask(self, method: str, url: str, **options: Any) -> Any:
        """Return the JSON that the issuer answers. Raises `IssuerError`."""
        assert self._client is not None, "the scheme is not open"
        try:
            async with asyncio.timeout(_TIMEOUT):
                response = await self._client.request(method, url, headers={"Accept": "application/json"}, **options)
            if response.status_code != 200:
                hint = "; redirects are not followed" if response.is_redirect else ""
                raise IssuerError(f"{url} answers with the status {response.status_code}{hint}")
            return msgspec.json.decode(response.content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise IssuerError(f"{url} does not answer with JSON") from None
        except (httpx.HTTPError, httpx.InvalidURL, ErrandsError, TimeoutError) as error:
            if isinstance(error, IssuerError):
                raise
            raise IssuerError(f"{url} cannot be used: {str(error) or type(error).__name__}") from None


class IssuerError(ErrandsError):
    """The issuer of tokens cannot be reached, or its answer cannot be used."""


class JWTAuth(BearerAuth):
    """Admits callers with a token that is signed by one of the issuer's keys. Needs `errands[auth]`.

    The keys are at `jwks_url`, or are given as `keys`: a JWKS, or a list of JWKs. A token needs the claims `iss`, equal
    to `issuer`, `aud`, with (one of) `audience`, and `exp`; clocks may differ by `leeway` seconds. `algorithms` are
    those that are accepted: by default, all that have public keys.

    `scopes` are needed by every caller. Keys are fetched again after `refresh_after` seconds, and at most every
    `retry_after` seconds when a token names an unknown one. `allow_http` is for development. With `pass_token`, workers
    find the token in `ctx.request_context["auth_token"]`. With `token_url`, the card says where clients get tokens.
    """

    def __init__(
        self,
        *,
        issuer: str,
        audience: str | list[str],
        jwks_url: str | None = None,
        keys: dict[str, Any] | list[dict[str, Any]] | None = None,
        algorithms: list[str] | None = None,
        leeway: int = 30,
        scopes: Sequence[str] = (),
        owner: str = "sub",
        tenant: str | None = None,
        scope_claim: str | None = None,
        prefix: str | None = None,
        token_url: str | None = None,
        refresh_after: float = 300.0,
        retry_after: float = 10.0,
        allow_http: bool = False,
        pass_token: bool = False,
        name: str = "bearer",
    ) -> None:
        super().__init__(
            name,
            scopes=scopes,
            token_url=token_url,
            owner=owner,
            tenant=tenant,
            scope_claim=scope_claim,
            prefix=prefix,
            pass_token=pass_token,
        )
        with auth_extra():
            from errands.server import jose  # noqa: PLC0415 - joserfc is an extra
        self._jose = jose
        if not issuer or not audience:
            raise ConfigurationError("issuer and audience must not be empty: tokens for others would be accepted")
        self._issuer = issuer
        self._audience = [audience] if isinstance(audience, str) else check_texts("audience", audience)
        self._leeway = leeway
        self._allow_http = allow_http
        self._algorithms = jose.check_algorithms(
            algorithms if algorithms is not None else jose.DEFAULT_ALGORITHMS, shared_keys=keys is not None
        )
        self._jwks_url = check_url("jwks_url", jwks_url, allow_http=allow_http) if jwks_url else ""
        self._keys: IssuerKeys | None = None
        self._static: KeySet | None = None
        if keys is not None:
            try:
                self._static = jose.read_keys(keys, shared=True)
            except ValueError as error:
                raise ConfigurationError(f"keys cannot be used: {error}") from None
        else:
            self._keys = IssuerKeys(self._fetch_keys, refresh_after=refresh_after, retry_after=retry_after)
        self._check_source()

    def _check_source(self) -> None:
        if bool(self._jwks_url) == (self._static is not None):
            raise ConfigurationError("JWTAuth needs either jwks_url or keys; OIDCAuth finds the keys by the issuer")

    async def claims_of(self, token: str) -> Mapping[str, Any]:
        if token.count(".") != 2:
            raise RefusedCredentialsError("The token is not valid")
        if self._jose.issuer_of(token) != self._issuer:
            # Tokens of others do not have the keys of this issuer fetched.
            raise RefusedCredentialsError("The token has no valid claim iss")
        try:
            if self._keys is None:
                assert self._static is not None
                return self._verified(token, self._static)
            keys = await self._keys.current()
            try:
                return self._verified(token, keys)
            except self._jose.UnknownKeyError:
                return self._verified(token, await self._keys.newer_than(keys))
        except self._jose.UnknownKeyError:
            raise RefusedCredentialsError("The token is not valid") from None
        except self._jose.InvalidTokenError as error:
            raise RefusedCredentialsError(str(error)) from None

    def _verified(self, token: str, keys: KeySet) -> Mapping[str, Any]:
        return self._jose.verify(
            token,
            keys,
            algorithms=self._algorithms,
            issuer=self._issuer,
            audience=self._audience,
            leeway=self._leeway,
        )

    async def _fetch_keys(self) -> KeySet:
        url = await self._keys_url()
        try:
            return self._jose.read_keys(await self.ask("GET", url))
        except ValueError as error:
            raise IssuerError(f"the keys at {url} cannot be used: {error}") from None

    async def _keys_url(self) -> str:
        return self._jwks_url

    async def close(self) -> None:
        if self._keys is not None:
            await self._keys.close()
        await super().close()

    def on_card(self) -> dict[str, Any]:
        scheme = super().on_card()
        return scheme if scheme["type"] == "oauth2" else {**scheme, "bearerFormat": "JWT"}


class OIDCAuth(JWTAuth):
    """Admits callers with a token of an OpenID provider, which is found by its `issuer`. Needs `errands[auth]`.

    The provider's discovery document says where its keys are. `console_client` is the id of the public client with
    which the console signs people in at the provider. The other arguments are those of `JWTAuth`.
    """

    def __init__(
        self,
        *,
        issuer: str,
        audience: str | list[str],
        console_client: str = "",
        name: str = "oidc",
        **options: Any,
    ) -> None:
        for unwanted in ("jwks_url", "keys", "token_url"):
            if unwanted in options:
                raise ConfigurationError(f"OIDCAuth asks the issuer for its addresses; omit {unwanted}, or use JWTAuth")
        check_url("issuer", issuer, allow_http=options.get("allow_http", False))
        super().__init__(issuer=issuer, audience=audience, name=name, **options)
        self.console_client = console_client
        self._discovery = issuer.rstrip("/") + DISCOVERY_PATH

    def _check_source(self) -> None:
        """There is nothing to check: the discovery document has the address of the keys."""

    async def _keys_url(self) -> str:
        document = await self.ask("GET", self._discovery)
        if not isinstance(document, dict) or document.get("issuer") != self._issuer:
            # A provider that names another issuer would make its tokens valid here.
            raise IssuerError(f"{self._discovery} is not about the issuer {self._issuer}; check the spelling")
        try:
            return check_url("jwks_uri", document.get("jwks_uri"), allow_http=self._allow_http)
        except ConfigurationError as error:
            raise IssuerError(f"{self._discovery} cannot be used: {error}") from None

    def on_card(self) -> dict[str, Any]:
        return {"type": "openIdConnect", "openIdConnectUrl": self._discovery}


class IssuerKeys:
    """The keys of an issuer: fetched when they are first needed, and again when they are old.

    A token that names an unknown key has them fetched at once, because issuers change their keys, but not more often
    than every `retry_after` seconds, so that strangers cannot make the server ask all the time. All requests wait for
    the same fetch. Old keys are used while new ones are fetched, and for an hour if the issuer cannot be reached.
    """

    def __init__(
        self,
        fetch: Callable[[], Awaitable[KeySet]],
        *,
        refresh_after: float,
        retry_after: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch = fetch
        self._refresh_after = refresh_after
        self._retry_after = retry_after
        self._clock = clock
        self._keys: KeySet | None = None
        self._fetched_at = self._asked_at = float("-inf")
        self._fetching: asyncio.Task[None] | None = None

    async def current(self) -> KeySet:
        """Return the keys. Raises `UnavailableError` without keys that may be used."""
        age = self._clock() - self._fetched_at
        if age > self._refresh_after and (fetching := self._start()) and age > _MAX_STALE:
            await asyncio.shield(fetching)
        if self._keys is None or self._clock() - self._fetched_at > _MAX_STALE:
            raise UnavailableError("Tokens cannot be checked now; try again later", retry_after=10)
        return self._keys

    async def newer_than(self, keys: KeySet) -> KeySet:
        """Return the keys that replace these ones, or the same if it is too early to ask again."""
        if self._keys is keys and (fetching := self._start()):
            await asyncio.shield(fetching)
        return self._keys or keys

    def _start(self) -> asyncio.Task[None] | None:
        """Return the fetch that is under way or begins now; None if it is too early for another."""
        now = self._clock()
        if self._fetching is None and now - self._asked_at >= self._retry_after:
            self._asked_at = now
            self._fetching = asyncio.create_task(self._refresh(), name="errands-issuer-keys")
        return self._fetching

    async def _refresh(self) -> None:
        try:
            self._keys = await self._fetch()
            self._fetched_at = self._clock()
        except IssuerError as error:
            logger.warning("the keys for tokens could not be fetched: %s", error)
        except Exception:
            logger.exception("the keys for tokens could not be fetched")
        finally:
            self._fetching = None

    async def close(self) -> None:
        """End a fetch that is under way."""
        if (fetching := self._fetching) is not None:
            fetching.cancel()
            await asyncio.wait([fetching])


class IntrospectionAuth(BearerAuth):
    """Admits callers whose token is active, as the authorization server at `url` says (RFC 7662).

    The server authenticates there with `client_id` and `client_secret`. With `audience` or `issuer`, the answer must
    name them. Answers are kept for `cache_for` seconds at most, so a revoked token is refused after that time. The
    other arguments are those of `JWTAuth`.
    """

    most_bytes = 64 * 1024
    #: Tokens whose answers are kept, of each kind: strangers with invented tokens do not displace valid ones.
    most_cached = 10_000
    #: Requests to the authorization server at the same time, and requests that wait for them.
    most_asked, most_waiting = 20, 500

    def __init__(
        self,
        *,
        url: str,
        client_id: str,
        client_secret: str,
        audience: str | list[str] | None = None,
        issuer: str | None = None,
        cache_for: float = 30.0,
        scopes: Sequence[str] = (),
        owner: str = "sub",
        tenant: str | None = None,
        scope_claim: str | None = None,
        prefix: str | None = None,
        token_url: str | None = None,
        allow_http: bool = False,
        pass_token: bool = False,
        name: str = "oauth2_introspection",
    ) -> None:
        super().__init__(
            name,
            scopes=scopes,
            token_url=token_url,
            owner=owner,
            tenant=tenant,
            scope_claim=scope_claim,
            prefix=prefix,
            pass_token=pass_token,
        )
        self._url = check_url("url", url, allow_http=allow_http)
        if not client_id or not client_secret:
            raise ConfigurationError("client_id and client_secret must not be empty")
        # RFC 6749, section 2.3.1: both are form-encoded first.
        self._credentials = httpx.BasicAuth(quote(client_id, safe=""), quote(client_secret, safe=""))
        self._audience = {audience} if isinstance(audience, str) else set(audience or ())
        self._issuer = issuer
        self._cache_for = cache_for
        self._clock: Callable[[], float] = time.time
        #: Claims and refusals, by the hash of the token, with the time until which they are kept.
        self._active: OrderedDict[bytes, tuple[float, Mapping[str, Any]]] = OrderedDict()
        self._refused: OrderedDict[bytes, tuple[float, str]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[Mapping[str, Any]]] = {}
        self._turns = asyncio.Semaphore(self.most_asked)

    async def claims_of(self, token: str) -> Mapping[str, Any]:
        key, now = hash_of(token), self._clock()
        if (known := self._active.get(key)) is not None and known[0] > now:
            self._active.move_to_end(key)
            return known[1]
        if (refused := self._refused.get(key)) is not None and refused[0] > now:
            raise RefusedCredentialsError(refused[1])
        asking = self._asking.get(key)
        if asking is None:
            if len(self._asking) >= self.most_waiting:
                raise UnavailableError("Too many tokens are being checked; try again later")
            asking = self._asking[key] = asyncio.create_task(self._introspect(key, token), name="errands-introspection")
            asking.add_done_callback(lambda done: (self._asking.pop(key, None), done.cancelled() or done.exception()))
        return await asyncio.shield(asking)

    async def _introspect(self, key: bytes, token: str) -> Mapping[str, Any]:
        async with self._turns:
            form = {"token": token, "token_type_hint": "access_token"}
            try:
                answer = await self.ask("POST", self._url, data=form, auth=self._credentials)
            except IssuerError as error:
                logger.warning("a token could not be introspected: %s", error)
                raise UnavailableError("Tokens cannot be checked now; try again later", retry_after=10) from None
        now = self._clock()
        problem = self._problem(answer, now)
        if problem:
            _keep(self._refused, key, (now + self._cache_for, problem), self.most_cached)
            raise RefusedCredentialsError(problem)
        until = min(now + self._cache_for, answer.get("exp") or float("inf"))
        _keep(self._active, key, (until, answer), self.most_cached)
        self._refused.pop(key, None)
        found: dict[str, Any] = answer
        return found

    def _problem(self, answer: Any, now: float) -> str:
        """Return why a token is refused, "" if it is valid."""
        if not isinstance(answer, dict) or answer.get("active") is not True:
            return "The token is not valid"
        expires, audience = answer.get("exp"), answer.get("aud")
        if expires is not None and (type(expires) not in (int, float) or expires <= now):
            return "The token has expired"
        listed = audience if isinstance(audience, list) else [audience]
        named = {one for one in listed if isinstance(one, str)}
        if self._audience and not self._audience & named:
            return "The token has no valid claim aud"
        if self._issuer is not None and answer.get("iss") != self._issuer:
            return "The token has no valid claim iss"
        return ""

    async def close(self) -> None:
        if asking := list(self._asking.values()):
            for one in asking:
                one.cancel()
            await asyncio.wait(asking)
        await super().close()


def _keep(cache: OrderedDict[bytes, Any], key: bytes, value: Any, most: int) -> None:
    cache[key] = value
    cache.move_to_end(key)
    if len(cache) > most:
        cache.popitem(last=False)


def claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim by its name or, as `a.b`, a claim inside another; None if the token lacks it."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for step in name.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return found


def check_url(name: str, url: Any, *, allow_http: bool) -> str:
    """Return a URL at which an issuer may be asked. Raises `ConfigurationError`, which does not contain secrets."""
    if not isinstance(url, str) or not url or any(character <= " " or character == "\x7f" for character in url):
        raise ConfigurationError(f"{name} must be a URL such as https://id.example.com, without spaces or line breaks")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ConfigurationError(f"{name} is not a valid URL") from None
    if parts.scheme not in (("https", "http") if allow_http else ("https",)) or not host:
        raise ConfigurationError(
            f"{name} must begin with https://; for development on one machine, allow_http allows http://"
        )
    if "@" in parts.netloc or parts.fragment or "\\" in url:
        raise ConfigurationError(f"{name} must have neither a user nor a fragment nor a backslash")
    return url
