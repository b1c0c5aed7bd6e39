"""Credentials of a client: what proves who calls, chosen by the security schemes on the agent's card.

A card lists requirements, of which one must be met, and a requirement may need several schemes at once. The client
looks for the first requirement that its credentials meet. Tokens are fetched when they are needed, kept until shortly
before they expire, and fetched once more when the agent refuses one.

Secrets go to the agent's own origin and to the token endpoints that the caller names; no card can send them elsewhere.
They are never part of a `repr`, an error or a log.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, Unpack
from urllib.parse import quote, quote_plus, urlsplit

import httpx

from errands.client.errors import A2AClientError, CredentialsError
from errands.client.http_requests import (
    NO_SECRETS,
    RequestSecrets,
    checked_headers,
    grpc_origin,
    is_header_value,
    is_protected,
    origin_of,
    request_json,
)
from errands.errors import AuthenticationRequiredError, ConfigurationError
from errands.model.card import AgentCard, SecurityScheme

#: A token, or what returns one: called for each request, so it should keep what it has fetched.
Token = str | Callable[[], str | Awaitable[str]]

#: A token is replaced this many seconds before it expires, or after nine tenths of a shorter life.
_MARGIN = 30.0
#: Seconds for which a token without a stated life is kept.
_DEFAULT_LIFE = 300.0
_LONGEST_LIFE = 1e9
#: Tokens that one object keeps, for different users and scopes.
_MAX_TOKENS = 1000
_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - the name of a type


class Origins(NamedTuple):
    """Where secrets may go: to the origin of the agent's address, and to those that the caller allows."""

    agent: str
    allowed: frozenset[str] = frozenset()

    def admits(self, url: str) -> bool:
        """Return whether secrets may be sent to an address of HTTP."""
        return origin_of(url) in {self.agent, *self.allowed}

    def admits_grpc(self, url: str) -> bool:
        """Return the same for an address of gRPC: any port of the agent's host is admitted, but not without its TLS."""
        origin, agent = urlsplit(grpc_origin(url)), urlsplit(self.agent)
        is_secure_enough = origin.scheme == "https" or agent.scheme == "http"
        return (origin.hostname == agent.hostname and is_secure_enough) or grpc_origin(url) in self.allowed


class Occasion(NamedTuple):
    """What credentials are needed for. There is a scheme only once the card is known."""

    http: httpx.AsyncClient
    origins: Origins
    scheme: SecurityScheme | None = None
    scopes: tuple[str, ...] = ()


# Kinds of credentials


class Credential(ABC):
    """One thing that proves who calls."""

    @abstractmethod
    def fits(self, scheme: SecurityScheme) -> bool:
        """Return whether it is what a security scheme asks for."""

    @property
    def is_complete(self) -> bool:
        """Return whether it can be used without a card that says how."""
        return True

    @abstractmethod
    async def secrets(self, occasion: Occasion, *, refused: RequestSecrets | None = None) -> RequestSecrets:
        """Return what a request carries; `refused` was just refused by the agent. Raises `CredentialsError`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


class ApiKey(Credential):
    """A key in a header, the query or a cookie. The card says which, unless `name` does."""

    def __init__(
        self, key: str, *, name: str | None = None, location: Literal["header", "query", "cookie"] = "header"
    ) -> None:
        if location not in ("header", "query", "cookie"):
            raise ConfigurationError(f"invalid location {location!r}: expected one of header, query, cookie")
        self._key = key
        self.name = name
        self.location = location
        self._place(name or "X-API-Key", location)

    def fits(self, scheme: SecurityScheme) -> bool:
        found = scheme.api_key_security_scheme
        return found is not None and (self.name is None or self.name.lower() == found.name.lower())

    @property
    def is_complete(self) -> bool:
        return self.name is not None

    async def secrets(self, occasion: Occasion, *, refused: RequestSecrets | None = None) -> RequestSecrets:
        found = None if occasion.scheme is None else occasion.scheme.api_key_security_scheme
        if found is None:
            return self._place(self.name or "X-API-Key", self.location)
        return self._place(found.name, found.location.lower())

    def _place(self, name: str, location: str) -> RequestSecrets:
        if location == "query":
            return RequestSecrets(query={name: self._key})
        return _headers({"Cookie": f"{name}={quote(self._key)}"} if location == "cookie" else {name: self._key})


class BearerToken(Credential):
    """A token that the caller has, or a function that returns the current one."""

    def __init__(self, token: Token) -> None:
        self._token = token
        if isinstance(token, str):
            _bearer(token)

    def fits(self, scheme: SecurityScheme) -> bool:
        return _takes_bearer(scheme)

    async def secrets(self, occasion: Occasion, *, refused: RequestSecrets | None = None) -> RequestSecrets:
        return _bearer(await _current(self._token))


class BasicAuth(Credential):
    """A name and a password."""

    def __init__(self, username: str, password: str) -> None:
        self._pair = base64.b64encode(f"{username}:{password}".encode()).decode()

    def fits(self, scheme: SecurityScheme) -> bool:
        http = scheme.http_auth_security_scheme
        return http is not None and http.scheme.lower() == "basic"

    async def secrets(self, occasion: Occasion, *, refused: RequestSecrets | None = None) -> RequestSecrets:
        return _headers({"Authorization": f"Basic {self._pair}"})


class ClientCertificate(Credential):
    """A certificate for mutual TLS, in PEM files. `ca` are the authorities that may sign the agent's certificate."""

    def __init__(self, certificate: str | Path, key: str | Path | None = None, *, ca: str | Path | None = None) -> None:
        self.certificate = Path(certificate)
        self.key = Path(key or certificate)
        self.ca = None if ca is None else Path(ca)
        self.ssl_context()  # report a wrong file now

    def ssl_context(self) -> ssl.SSLContext:
        """Return the context for HTTP. Raises `ConfigurationError`."""
        try:
            context = httpx.create_ssl_context() if self.ca is None else ssl.create_default_context(cafile=self.ca)
            context.load_cert_chain(self.certificate, self.key, password="")
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"the client certificate {self.certificate} cannot be used: {error.strerror or type(error).__name__}"
            ) from None
        return context

    def fits(self, scheme: SecurityScheme) -> bool:
        return scheme.mtls_security_scheme is not None

    async def secrets(self, occasion: Occasion, *, refused: RequestSecrets | None = None) -> RequestSecrets:
        return NO_SECRETS


class _FetchedToken(NamedTuple):
    value: str
    expires_at: float


class TokenEndpointOptions(TypedDict, total=False):
    """The options of credentials that come from a token endpoint."""

    token_url: str | None
    #: The OAuth 2 or OpenID Connect server whose metadata name the token endpoint.
    issuer: str | None
    #: The scopes to ask for; by default those that the card asks for.
    scopes: Sequence[str] | None
    audience: str | None
    resource: str | None
    #: Send id and secret of the client in the form, for servers that do not take HTTP basic.
    secret_in_body: bool
    clock: Callable[[], float]


class _TokenEndpoint(Credential):
    """A bearer token from a token endpoint, kept until shortly before it expires.

    The endpoint is `token_url`, or discovered from the `issuer`. Without either it is the one on the card, if that is
    at the agent's own origin or an allowed one: otherwise any card could ask for the secret of the client.
    """

    def __init__(
        self, client_id: str | None, client_secret: str | None, **options: Unpack[TokenEndpointOptions]
    ) -> None:
        if unknown := options.keys() - TokenEndpointOptions.__annotations__.keys():
            raise TypeError(f"unknown option of {type(self).__name__}: {', '.join(unknown)}")
        self._client_id = client_id
        self._client_secret = client_secret
        self._token_url = options.get("token_url")
        self._issuer = options.get("issuer")
        for url in (self._token_url, self._issuer):
            if url is not None:
                _check_endpoint(url, ConfigurationError)
        scopes = options.get("scopes")
        self._scopes = None if scopes is None else tuple(scopes)
        named = {"audience": options.get("audience"), "resource": options.get("resource")}
        self._extra = {name: value for name, value in named.items() if value}
        self._secret_in_body = options.get("secret_in_body", False)
        self._clock = options.get("clock", time.monotonic)
        self._tokens: dict[tuple[object, ...], _FetchedToken] = {}
        self._endpoints: dict[str, str] = {}
        self._fetching = asyncio.Lock()

    @property
    def is_complete(self) -> bool:
        return self._token_url is not None or self._issuer is not None

    async def secrets(self, occasion: Occasion, *, refused: RequestSecrets | None = None) -> RequestSecrets:
        scopes = occasion.scopes if self._scopes is None else self._scopes
        async with self._fetching:  # callers that come at the same time wait for one token
            endpoint = await self._endpoint(occasion)
            grant = await self._grant()
            place = (endpoint, scopes, *grant.items())  # a token for one user must not be used for another
            token = self._tokens.get(place)
            is_refused = (
                token is not None
                and refused is not None
                and refused.headers.get("Authorization") == _bearer(token.value).headers["Authorization"]
            )
            if token is None or is_refused or token.expires_at <= self._clock():
                self._tokens.pop(place, None)
                token = self._tokens[place] = await self._fetch(occasion.http, endpoint, grant, scopes)
                if len(self._tokens) > _MAX_TOKENS:
                    del self._tokens[next(iter(self._tokens))]
        return _bearer(token.value)

    @abstractmethod
    async def _grant(self) -> dict[str, str]:
        """Return the fields of the request that are special to this kind of grant."""

    async def _fetch(
        self, http: httpx.AsyncClient, endpoint: str, grant: Mapping[str, str], scopes: Sequence[str]
    ) -> _FetchedToken:
        data = {**grant, **self._extra}
        if scopes:
            data["scope"] = " ".join(scopes)
        headers = {}
        if self._client_id is not None and self._client_secret is not None and not self._secret_in_body:
            # RFC 6749 wants both encoded as in a form before they are joined.
            pair = f"{quote_plus(self._client_id)}:{quote_plus(self._client_secret)}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        elif self._client_id is not None:
            data["client_id"] = self._client_id
            if self._client_secret is not None:
                data["client_secret"] = self._client_secret
        asked_at = self._clock()
        status, answer = await _ask(http, "POST", endpoint, data=data, headers=headers)
        value = answer.get("access_token")
        if status != httpx.codes.OK or not isinstance(value, str) or not value or not is_header_value(value):
            code = answer.get("error")
            why = code if isinstance(code, str) and code.isascii() and code.isprintable() else f"HTTP {status}"
            raise CredentialsError(f"the token endpoint {_shown(endpoint)} gave no token: {why[:100]}")
        if str(answer.get("token_type", "Bearer")).lower() != "bearer":
            raise CredentialsError(f"the token endpoint {_shown(endpoint)} gave a token that is not a bearer token")
        life = answer.get("expires_in")
        try:
            seconds = float(life) if isinstance(life, int | float | str) else _DEFAULT_LIFE
        except ValueError:
            seconds = _DEFAULT_LIFE
        seconds = seconds if 0 <= seconds < _LONGEST_LIFE else _DEFAULT_LIFE
        return _FetchedToken(value, asked_at + seconds - min(_MARGIN, seconds / 10))

    async def _endpoint(self, occasion: Occasion) -> str:
        if self._token_url is not None:
            return self._token_url
        if self._issuer is not None:
            paths = ("openid-configuration", "oauth-authorization-server")
            base = self._issuer.rstrip("/")
            return await self._discovered(occasion, *(f"{base}/.well-known/{path}" for path in paths))
        named, metadata, scheme = None, None, occasion.scheme
        if scheme is not None and (oauth2 := scheme.oauth2_security_scheme) is not None:
            flow, metadata = oauth2.flows.client_credentials, oauth2.oauth2_metadata_url
            named = None if flow is None else flow.token_url
        elif scheme is not None and (oidc := scheme.open_id_connect_security_scheme) is not None:
            metadata = oidc.open_id_connect_url
        if named is None and metadata is not None:
            self._check_named(occasion, metadata)
            named = await self._discovered(occasion, metadata)
        if named is None:
            raise CredentialsError("the card names no token endpoint: pass token_url or issuer")
        self._check_named(occasion, named)
        return named

    def _check_named(self, occasion: Occasion, url: str) -> None:
        if not occasion.origins.admits(url):
            raise CredentialsError(
                f"the card names the token endpoint {_shown(url)}, which is not at the agent's origin "
                f"{occasion.origins.agent}; if you trust it, pass token_url={_shown(url)!r}"
            )
        _check_endpoint(url, CredentialsError)

    async def _discovered(self, occasion: Occasion, *addresses: str) -> str:
        """Return the token endpoint in the metadata of an authorization server."""
        if (known := self._endpoints.get(addresses[0])) is not None:
            return known
        for address in addresses:
            status, metadata = await _ask(occasion.http, "GET", address)
            endpoint = metadata.get("token_endpoint")
            if status == httpx.codes.OK and isinstance(endpoint, str):
                break
        else:
            raise CredentialsError(f"the metadata at {_shown(addresses[0])} does not name a token endpoint")
        stated = str(metadata.get("issuer", "")).rstrip("/")
        if self._issuer is not None and stated != self._issuer.rstrip("/"):
            raise CredentialsError(f"the metadata of {self._issuer} is that of another issuer")
        _check_endpoint(endpoint, CredentialsError)
        self._endpoints[addresses[0]] = endpoint
        return endpoint


class ClientCredentials(_TokenEndpoint):
    """The client's own identity at an OAuth 2 or OpenID Connect server: the client credentials grant."""

    def __init__(self, client_id: str, client_secret: str, **options: Unpack[TokenEndpointOptions]) -> None:
        super().__init__(client_id, client_secret, **options)

    def fits(self, scheme: SecurityScheme) -> bool:
        oauth2 = scheme.oauth2_security_scheme
        if oauth2 is not None:
            return self.is_complete or oauth2.flows.client_credentials is not None
        return scheme.open_id_connect_security_scheme is not None or (self.is_complete and _takes_bearer(scheme))

    async def _grant(self) -> dict[str, str]:
        return {"grant_type": "client_credentials"}


class TokenExchange(_TokenEndpoint):
    """A token for the agent in exchange for one of the user's (RFC 8693)."""

    def __init__(
        self,
        subject_token: Token,
        *,
        client_id: str | None = None,
        client_secret: str | None = None,
        subject_token_type: str = _ACCESS_TOKEN,
        actor_token: Token | None = None,
        **options: Unpack[TokenEndpointOptions],
    ) -> None:
        """Take the user's token. `token_url` or `issuer` is required."""
        super().__init__(client_id, client_secret, **options)
        if not self.is_complete:
            raise ConfigurationError("TokenExchange needs token_url or issuer: a user's token goes to no other server")
        self._subject_token = subject_token
        self._type = subject_token_type
        self._actor_token = actor_token

    def fits(self, scheme: SecurityScheme) -> bool:
        return _takes_bearer(scheme)

    async def _grant(self) -> dict[str, str]:
        fields = {
            "grant_type": _EXCHANGE,
            "subject_token": await _current(self._subject_token),
            "subject_token_type": self._type,
            "requested_token_type": _ACCESS_TOKEN,
        }
        if self._actor_token is not None:
            fields |= {"actor_token": await _current(self._actor_token), "actor_token_type": _ACCESS_TOKEN}
        return fields


#: What `credentials=` takes: a text is a bearer token; a mapping says for which scheme of the card each one is.
CredentialsLike = Credential | str | Sequence[Credential] | Mapping[str, Credential]


# Choosing


class Offered(NamedTuple):
    """A credential that the caller gave, and the name of the only scheme that it is for."""

    credential: Credential
    scheme: str | None = None

    def fits(self, name: str, scheme: SecurityScheme) -> bool:
        """Return whether it is what a named scheme of the card asks for."""
        return self.scheme in (None, name) and self.credential.fits(scheme)


def offered(credentials: CredentialsLike | None) -> list[Offered]:
    """Return the credentials that the caller gave. Raises `ConfigurationError`."""
    if credentials is None:
        return []
    if isinstance(credentials, str):
        return [Offered(BearerToken(credentials))]
    if isinstance(credentials, Mapping):
        found = [Offered(one, name) for name, one in credentials.items()]
    else:
        found = [Offered(one) for one in ([credentials] if isinstance(credentials, Credential) else credentials)]
    for one in found:
        if not isinstance(one.credential, Credential):
            raise ConfigurationError(
                f"credentials must be ApiKey, BearerToken and the like, not {type(one.credential).__name__}"
            )
    return found


@dataclass
class ChosenCredentials:
    """The credentials that go with every request to one agent."""

    http: httpx.AsyncClient | None = None
    origins: Origins | None = None
    #: The credentials in use, with the scheme and the scopes that each is used for.
    parts: list[tuple[Credential, SecurityScheme | None, tuple[str, ...]]] = field(default_factory=list)
    #: What the card asks for, in words.
    wanted: str = ""

    async def secrets(self, refused: RequestSecrets | None = None) -> RequestSecrets:
        """Return what a request carries: new ones, if possible, in place of those that the agent has `refused`."""
        if self.http is None or self.origins is None or not self.parts:
            return NO_SECRETS
        headers: dict[str, str] = {}
        query: dict[str, str] = {}
        cookies: list[str] = []
        for credential, scheme, scopes in self.parts:
            found = await credential.secrets(Occasion(self.http, self.origins, scheme, scopes), refused=refused)
            cookies += [value for name, value in found.headers.items() if name == "Cookie"]
            headers = {**found.headers, **headers}
            query = {**found.query, **query}
        if cookies:
            headers["Cookie"] = "; ".join(cookies)
        return RequestSecrets(headers, query)

    def explain(self, refusal: AuthenticationRequiredError) -> AuthenticationRequiredError:
        """Return the agent's refusal with the schemes that its card asks for and the credentials that were sent."""
        if not self.wanted and not self.parts:
            return refusal
        tried = ", ".join(dict.fromkeys(type(credential).__name__ for credential, *_ in self.parts)) or "no credentials"
        wanted = f"the card asks for {self.wanted}" if self.wanted else "the card does not say what it asks for"
        error = AuthenticationRequiredError(
            f"{refusal.message.rstrip('.')} ({wanted}; {tried} sent)", scheme=refusal.scheme, realm=refusal.realm
        )
        error.wanted, error.tried = self.wanted, tried
        return error


def without_card(credentials: Sequence[Offered], http: httpx.AsyncClient, origins: Origins) -> ChosenCredentials:
    """Return the authorization to fetch the card itself with: the credentials that need no card."""
    parts = [(one.credential, None, ()) for one in credentials if one.credential.is_complete]
    return ChosenCredentials(http, origins, list(parts))


def authorize(
    card: AgentCard,
    http: httpx.AsyncClient,
    origins: Origins,
    credentials: Sequence[Offered],
    for_call: Sequence[Offered] = (),
) -> ChosenCredentials:
    """Return the credentials that meet a requirement of the card, those `for_call` before the others.

    Raises `CredentialsError` if there are credentials and none meets a requirement.
    """
    wanted = describe(card)
    given = [*for_call, *credentials]
    if not given:
        return ChosenCredentials(http, origins, wanted=wanted)
    if not card.security_requirements:
        everything = without_card(given, http, origins)
        everything.wanted = wanted
        return everything
    schemes = card.security_schemes or {}
    for requirement in card.security_requirements:
        parts: list[tuple[Credential, SecurityScheme | None, tuple[str, ...]]] = []
        for name, scopes in requirement.schemes.items():
            scheme = schemes.get(name)
            found = next((one for one in given if scheme is not None and one.fits(name, scheme)), None)
            if found is None:
                break
            parts.append((found.credential, scheme, tuple(scopes.scopes)))
        else:
            used = [credential for credential, *_ in parts]
            if parts and all(one.credential in used for one in for_call):
                return ChosenCredentials(http, origins, parts, wanted)
    if any(not requirement.schemes for requirement in card.security_requirements) and not for_call:
        return ChosenCredentials(http, origins, wanted=wanted)  # anonymous callers are welcome
    names = ", ".join(dict.fromkeys(type(one.credential).__name__ for one in given))
    raise CredentialsError(f"agent {card.name!r} asks for {wanted}, which is not met by {names}")


def describe(card: AgentCard) -> str:
    """Return in words what the card asks for, an empty text for nothing."""
    schemes = card.security_schemes or {}
    choices = []
    for requirement in card.security_requirements or ():
        needed = [
            _describe_scheme(name, schemes.get(name))
            + (f" with the scopes {' '.join(one.scopes)}" if one.scopes else "")
            for name, one in requirement.schemes.items()
        ]
        choices.append(" and ".join(needed) or "nothing")
    return " or ".join(dict.fromkeys(choices))


def _describe_scheme(name: str, scheme: SecurityScheme | None) -> str:
    kind = "an undefined scheme"
    if scheme is not None:
        if (key := scheme.api_key_security_scheme) is not None:
            kind = f"an API key in the {key.location} {key.name!r}"
        elif (http := scheme.http_auth_security_scheme) is not None:
            kind = f"HTTP {http.scheme} authentication"
        elif (oauth2 := scheme.oauth2_security_scheme) is not None:
            flows = ("client_credentials", "authorization_code", "device_code", "password", "implicit")
            found = (flow.replace("_", " ") for flow in flows if getattr(oauth2.flows, flow) is not None)
            kind = f"an OAuth 2 token ({next(found, 'any flow')})"
        elif (oidc := scheme.open_id_connect_security_scheme) is not None:
            kind = f"an OpenID Connect token ({oidc.open_id_connect_url})"
        elif scheme.mtls_security_scheme is not None:
            kind = "a client certificate"
    return f"{kind} [{name}]"


def _takes_bearer(scheme: SecurityScheme) -> bool:
    http = scheme.http_auth_security_scheme
    is_bearer = http is not None and http.scheme.lower() == "bearer"
    return is_bearer or bool(scheme.oauth2_security_scheme or scheme.open_id_connect_security_scheme)


def _bearer(token: str) -> RequestSecrets:
    return _headers({"Authorization": f"Bearer {token}"})


def _headers(headers: dict[str, str]) -> RequestSecrets:
    with suppress(ConfigurationError):
        checked_headers(headers)
        return RequestSecrets(headers)
    # Not the error itself, which has the name of the header, and in the case of a cookie its value.
    raise ConfigurationError("a credential must be printable ASCII without line breaks")


async def _current(token: Token) -> str:
    if isinstance(token, str):
        return token
    value = token()
    return str(await value if inspect.isawaitable(value) else value)


def _check_endpoint(url: str, error: type[Exception]) -> None:
    if not is_protected(url):
        raise error(f"{_shown(url)!r} cannot be given secrets: expected https://HOST/PATH")


def _shown(url: str) -> str:
    """Return an address without user, query and fragment, which may be secret."""
    parts = urlsplit(url)
    return f"{origin_of(url)}{parts.path}"


async def _ask(http: httpx.AsyncClient, method: str, url: str, **options: Any) -> tuple[int, dict[str, Any]]:
    try:
        return await request_json(http, method, url, **options)
    except A2AClientError as error:
        raise CredentialsError(f"{_shown(url)} cannot be asked for a token: {error}") from None
