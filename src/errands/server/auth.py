"""Authentication: `A2AServer(auth=[...])`. The same objects check the callers and are published on the agent card.

    ApiKeyAuth          a key in a header, a query parameter or a cookie
    JWTAuth             a bearer token that is signed by one of an issuer's keys          (`errands.server.tokens`)
    OIDCAuth            the same for an OpenID provider, which is asked for its keys      (`errands.server.tokens`)
    IntrospectionAuth   a bearer token that the authorization server is asked about       (`errands.server.tokens`)
    MutualTLSAuth       the client certificate of the connection, or the one that a trusted proxy forwards
    CallableAuth        a function of the program

The schemes are alternatives: the first one that knows the caller decides. `Authentication` is a middleware that needs
only the head of a request, so it runs before the body is read, in every binding. What a caller may do is decided in
`errands.server.authorization`.

Credentials are never logged, stored or sent back.
"""

from __future__ import annotations

import copy
import inspect
import ipaddress
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, Literal

import msgspec
from starlette.requests import Request

from errands.console.routes import SIGN_IN_EXTENSION
from errands.errors import AuthenticationRequiredError, ConfigurationError, PermissionDeniedError, UnavailableError
from errands.model.card_config import AgentCardConfig, ExtensionConfig
from errands.outbound import Outbound
from errands.runtime.middleware import (
    A2AMiddleware,
    ApiKeys,
    Caller,
    RequestEnvelope,
    bearer_token,
    hash_of,
    head_only,
    name_of,
)
from errands.runtime.streams import EventStream, StreamItem

logger = logging.getLogger(__name__)

#: Begins a key that is given as its SHA-256 hash.
HASHED = "sha256:"
#: Seconds after which the credentials of an open stream are checked again.
STREAM_CHECK = 60.0
#: The longest name of an owner or a tenant, in characters: databases index them.
MAX_NAME = 500

Check = Callable[[Request], Caller | Awaitable[Caller | None] | None]


@contextmanager
def auth_extra() -> Iterator[None]:
    """Turn the failure to import a module of the extra into a `ConfigurationError`."""
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(
            f"tokens and client certificates need an extra ({error}): pip install 'errands[auth]'"
        ) from None


class RefusedCredentialsError(Exception):
    """A request has credentials of a scheme, but they are not valid. The text is shown to the client."""


class AuthScheme(ABC):
    """One way in which callers authenticate. `name` is its name on the agent card.

    `scopes` are those that every caller needs, and is told to ask for.
    """

    #: The authentication scheme in `WWW-Authenticate`.
    challenge: str
    #: Whether workers are shown the token.
    passes_token = False
    #: The id of the OAuth client with which the console signs people in; "" if it cannot.
    console_client = ""

    def __init__(self, name: str, scopes: Iterable[str] = ()) -> None:
        self.name = name
        self.scopes = tuple(check_texts("scopes", scopes))

    @abstractmethod
    async def authenticate(self, request: Request) -> Caller | None:
        """Return the caller, None for a request without credentials of this scheme.

        Raises `RefusedCredentialsError`, and `UnavailableError` if they cannot be checked now.
        """

    @abstractmethod
    def on_card(self) -> dict[str, Any]:
        """Return the security scheme for the agent card, in the form of OpenAPI."""

    def open(self, outbound: Outbound) -> None:  # noqa: B027 - most schemes need nothing
        """Prepare for requests; `outbound` makes HTTP clients."""

    async def close(self) -> None:  # noqa: B027
        """Release what `open` has acquired."""

    def challenged(self, realm: str, *, error: str = "", description: str = "") -> str:
        """Return the challenge for `WWW-Authenticate`, in the form of RFC 6750."""
        values = {"realm": realm, "error": error, "error_description": description, "scope": " ".join(self.scopes)}
        shown = ", ".join(f'{name}="{_quoted(value)}"' for name, value in values.items() if value)
        return f"{self.challenge} {shown}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"


class ApiKeyAuth(AuthScheme):
    """Admits callers with one of the keys, in the `header`, or in a `query` parameter or a `cookie` if one is named.

    `keys` are the callers by key: each is the name of an owner, or a `Caller`. A list of keys makes each key an owner
    of its own. A key may be given as its hash: `sha256:` and 64 hexadecimal digits. gRPC has neither queries nor
    cookies.
    """

    challenge = "ApiKey"

    def __init__(
        self,
        keys: Mapping[str, str | Caller] | Iterable[str],
        *,
        header: str = "X-API-Key",
        query: str | None = None,
        cookie: str | None = None,
        name: str = "api_key",
    ) -> None:
        super().__init__(name)
        if query is not None and cookie is not None:
            raise ConfigurationError("ApiKeyAuth takes either query or cookie, and not both")
        self._location: Literal["header", "query", "cookie"] = "query" if query else "cookie" if cookie else "header"
        self._parameter = query or cookie or header
        self.use(keys)

    def use(self, keys: Mapping[str, str | Caller] | Iterable[str]) -> None:
        """Admit the holders of these keys and of no others, from the next request on."""
        if isinstance(keys, str | bytes):
            # Each letter of a string would be a key.
            raise ConfigurationError("keys must be a list of keys, or callers by key, not a single string")
        holders: dict[Any, Any] = dict(keys) if isinstance(keys, Mapping) else dict.fromkeys(keys, "")
        found = ApiKeys[Caller]()
        for key, holder in holders.items():
            if not isinstance(key, str) or not key.strip():
                raise ConfigurationError("keys must be texts that are not empty: an empty key would admit every caller")
            hashed = _hash_in(key) if key.startswith(HASHED) else hash_of(key)
            caller = Caller(owner=holder or name_of(hashed)) if isinstance(holder, str) else check_caller(holder)
            found[hashed] = msgspec.structs.replace(caller, scheme=self.name)
        if not found:
            raise ConfigurationError("ApiKeyAuth needs at least one key; without one, no caller could use the agent")
        self._keys = found

    async def authenticate(self, request: Request) -> Caller | None:
        if self._location == "header":
            key = only_value(request, self._parameter)
        else:
            place: Mapping[str, str] = request.query_params if self._location == "query" else request.cookies
            key = place.get(self._parameter, "")
        if not key:
            return None
        caller = self._keys.find(key)
        if caller is None:
            raise RefusedCredentialsError("The API key is not valid")
        return caller

    def on_card(self) -> dict[str, Any]:
        return {"type": "apiKey", "in": self._location, "name": self._parameter}

    def challenged(self, realm: str, *, error: str = "", description: str = "") -> str:
        place = f'in="{self._location}", name="{_quoted(self._parameter)}"'
        return f"{super().challenged(realm, error=error, description=description)}, {place}"


def _hash_in(key: str) -> bytes:
    try:
        digest = bytes.fromhex(key.removeprefix(HASHED))
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise ConfigurationError(f"a key that begins with {HASHED} must have 64 hexadecimal digits after it")
    return digest


class MutualTLSAuth(AuthScheme):
    """Admits callers by their client certificate. Needs `errands[auth]`.

    It is the certificate of the connection, if the server knows it (the `tls` extension of ASGI). Behind a proxy, name
    the `header` in which it forwards certificates (as RFC 9440, or as percent-encoded PEM), and the addresses or
    networks of the `trusted_proxies`: the header of other clients is ignored. The server or the proxy verifies that
    certificates come from an authority that is trusted to name callers.

    `identity` says what of a certificate names the owner: `subject` (as in RFC 4514), `common_name`, `uri`, `dns` or
    `email` (the first such alternative name), or `fingerprint` (SHA-256). With `callers`, only those named there are
    admitted: each is the name of an owner, or a `Caller`.
    """

    challenge = "MutualTLS"

    def __init__(
        self,
        *,
        identity: Literal["subject", "common_name", "uri", "dns", "email", "fingerprint"] = "subject",
        callers: Mapping[str, str | Caller] | None = None,
        header: str | None = None,
        trusted_proxies: Sequence[str] = (),
        name: str = "mutual_tls",
    ) -> None:
        super().__init__(name)
        with auth_extra():
            from errands.server import certificates  # noqa: PLC0415 - cryptography is an extra
        if identity not in certificates.IDENTITIES:
            expected = ", ".join(certificates.IDENTITIES)
            raise ConfigurationError(f"invalid identity {identity!r}: expected one of {expected}")
        self._read = certificates.read
        self._identity_of = certificates.IDENTITIES[identity]
        self._header = header
        try:
            self._proxies = [ipaddress.ip_network(one) for one in check_texts("trusted_proxies", trusted_proxies)]
        except ValueError as error:
            raise ConfigurationError(f"invalid trusted_proxies: {error}") from None
        if bool(header) != bool(self._proxies):
            raise ConfigurationError(
                "header and trusted_proxies belong together: name the proxies that set the header, as other "
                "clients could write any certificate into it"
            )
        self._callers: dict[str, Caller] | None = None
        if callers is not None:
            self._callers = {
                identity: check_caller(Caller(owner=caller) if isinstance(caller, str) else caller)
                for identity, caller in callers.items()
            }

    async def authenticate(self, request: Request) -> Caller | None:
        found = self._certificate(request)
        if not found:
            return None
        try:
            identity = self._identity_of(self._read(found))
        except ValueError as error:
            raise RefusedCredentialsError(f"The client certificate {error}") from None
        if self._callers is None:
            return Caller(owner=_bounded("The name in the client certificate", identity), scheme=self.name)
        if identity not in self._callers:
            raise RefusedCredentialsError("The client certificate is not one of those that are admitted")
        return msgspec.structs.replace(self._callers[identity], scheme=self.name)

    def _certificate(self, request: Request) -> str:
        if self._header is None:
            tls = (request.scope.get("extensions") or {}).get("tls") or {}
            return next(iter(tls.get("client_cert_chain") or ()), "")
        # Only a proxy may send the header.
        try:
            address = ipaddress.ip_address(request.client.host if request.client else "")
        except ValueError:
            return ""
        address = getattr(address, "ipv4_mapped", None) or address
        is_proxy = any(address in network for network in self._proxies)
        return only_value(request, self._header) if is_proxy else ""

    def on_card(self) -> dict[str, Any]:
        return {"type": "mutualTLS"}


class CallableAuth(AuthScheme):
    """Admits callers that a function knows.

    `check` gets the Starlette `Request`, without its body, and returns a `Caller`, or None to refuse; it may be async.
    `scheme` is the security scheme for the agent card, in the form of A2A or of OpenAPI.
    """

    def __init__(
        self, check: Check, *, scheme: Mapping[str, Any], name: str = "custom", challenge: str = "Bearer"
    ) -> None:
        super().__init__(name)
        if not callable(check):
            raise ConfigurationError(f"check must be a function that takes a Request, not {type(check).__name__}")
        self._check = check
        self._scheme = dict(scheme)
        self.challenge = challenge

    async def authenticate(self, request: Request) -> Caller | None:
        found = self._check(request)
        caller = await found if inspect.isawaitable(found) else found
        if caller is None:
            return None
        if not isinstance(caller, Caller):
            raise TypeError(f"the function of CallableAuth must return a Caller or None, not {type(caller).__name__}")
        return msgspec.structs.replace(check_caller(caller), scheme=self.name)

    def on_card(self) -> dict[str, Any]:
        return self._scheme


class Authentication(A2AMiddleware):
    """Authenticates every request with the first scheme that knows its caller."""

    def __init__(self, schemes: Sequence[AuthScheme], *, realm: str = "a2a") -> None:
        self.schemes = check_schemes(schemes)
        self._realm = realm

    @head_only
    async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
        caller = await self.authenticated(request)
        envelope.caller = envelope.context["caller"] = caller
        envelope.owner, envelope.tenant, envelope.email = caller.owner, caller.tenant, caller.email
        if any(scheme.passes_token for scheme in self.schemes if scheme.name == caller.scheme):
            envelope.context["auth_token"] = bearer_token(request)

    async def authenticated(self, request: Request) -> Caller:
        """Return the caller.

        Raises `AuthenticationRequiredError`, `PermissionDeniedError`, and `UnavailableError` if a scheme that may know
        the caller cannot be asked now.
        """
        problems: dict[str, str] = {}
        unavailable: UnavailableError | None = None
        for scheme in self.schemes:
            try:
                caller = await scheme.authenticate(request)
            except RefusedCredentialsError as error:
                problems[scheme.name] = str(error)
                continue
            except UnavailableError as error:
                unavailable = error
                continue
            if caller is None:
                continue
            if missing := [scope for scope in scheme.scopes if scope not in caller.scopes]:
                raise self.lacks_scopes(scheme.name, missing)
            return caller
        if unavailable is not None:
            raise unavailable
        for name, problem in problems.items():
            # Not at a higher level: strangers could fill the log.
            logger.debug("a request to %r was refused by %s: %s", request.scope["path"], name, problem)
        raise AuthenticationRequiredError(
            next(iter(problems.values()), None),
            challenges=[
                scheme.challenged(self._realm, error="invalid_token", description=problems[scheme.name])
                if scheme.name in problems
                else scheme.challenged(self._realm)
                for scheme in self.schemes
            ],
            schemes=", ".join(scheme.name for scheme in self.schemes),
        )

    def watched(self, stream: EventStream, request: Request, caller: Caller) -> EventStream:
        """Return the stream of a caller, which fails when the credentials of its request are no longer accepted.

        They are checked when the stream shows something, which it does at least every `keep_alive` seconds.
        """

        async def batches() -> AsyncIterator[list[StreamItem]]:
            checked_at = monotonic()
            try:
                async for items in stream:
                    if monotonic() - checked_at >= STREAM_CHECK:
                        await self._check_again(request, caller)
                        checked_at = monotonic()
                    yield items
            finally:
                stream.close()

        return EventStream(batches(), lambda: stream.close())

    async def _check_again(self, request: Request, caller: Caller) -> None:
        try:
            found = await self.authenticated(request)
        except UnavailableError:
            return  # their issuer is asked again later
        if (found.tenant, found.owner) != (caller.tenant, caller.owner):
            raise AuthenticationRequiredError("The credentials belong to another caller now")

    def lacks_scopes(self, name: str, missing: Sequence[str]) -> PermissionDeniedError:
        """Return the error for a caller of the scheme `name` whose credentials lack scopes."""
        [scheme] = [scheme for scheme in self.schemes if scheme.name == name]
        needed = f'{scheme.challenge} realm="{_quoted(self._realm)}", error="insufficient_scope"'
        error = PermissionDeniedError(f"The credentials lack the scopes {', '.join(missing)}", scopes=" ".join(missing))
        error.challenges = [f'{needed}, scope="{_quoted(" ".join(missing))}"']
        return error

    def published(self, card: AgentCardConfig) -> AgentCardConfig:
        """Return a copy of the card that says how to authenticate: by any one of the schemes."""
        described = AgentCardConfig(
            name=card.name,
            description=card.description,
            security_schemes={scheme.name: scheme.on_card() for scheme in self.schemes},  # type: ignore[misc]
            security=[{scheme.name: list(scheme.scopes)} for scheme in self.schemes],
        )
        if card.security_schemes not in (None, described.security_schemes):
            logger.warning("the security_schemes of the card of %s are replaced by those of auth", card.name)
        published = copy.copy(card)
        published.security_schemes, published.security = described.security_schemes, described.security
        published.extensions = [one for one in card.extensions if one.uri != SIGN_IN_EXTENSION]
        if clients := {scheme.name: scheme.console_client for scheme in self.schemes if scheme.console_client}:
            about = "People sign in at these OpenID providers as these public clients."
            published.extensions.append(
                ExtensionConfig(uri=SIGN_IN_EXTENSION, description=about, params={"clients": clients})
            )
        return published


def check_schemes(schemes: Any) -> tuple[AuthScheme, ...]:
    """Return the schemes. Raises `ConfigurationError` unless they can be used together."""
    if not isinstance(schemes, list | tuple) or not schemes:
        raise ConfigurationError("auth must be a list of at least one scheme, such as [ApiKeyAuth(...)]")
    for scheme in schemes:
        if not isinstance(scheme, AuthScheme):
            kind = scheme.__name__ if isinstance(scheme, type) else type(scheme).__name__
            raise ConfigurationError(f"auth must be a list of schemes such as ApiKeyAuth(...), not of {kind}")
    names = [scheme.name for scheme in schemes]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"the schemes of auth need different names, not {', '.join(names)}: pass name=...")
    issuers = [scheme for scheme in schemes if hasattr(scheme, "prefix")]
    undecided = [scheme.name for scheme in issuers if scheme.prefix is None]
    if len(issuers) > 1 and undecided:
        raise ConfigurationError(
            f"two issuers may give the same name to different callers, so {', '.join(undecided)} needs a prefix for "
            'the names of its callers, such as prefix="partner:"; prefix="" says that the names mean the same callers'
        )
    return tuple(schemes)


# Values


def check_caller(caller: Any) -> Caller:
    """Return a caller that the program has made. Raises `ConfigurationError` if it could not own a task."""
    if not isinstance(caller, Caller):
        raise ConfigurationError(f"a caller must be a name or a Caller, not {type(caller).__name__}")
    owner: Any = caller.owner
    if not isinstance(owner, str) or not 0 < len(owner) <= MAX_NAME:
        raise ConfigurationError(f"the owner of a Caller must be a name of 1 to {MAX_NAME} characters")
    return msgspec.structs.replace(caller, scopes=frozenset(check_texts("scopes", caller.scopes)))


def check_texts(name: str, values: Any) -> list[str]:
    """Return the values. Raises `ConfigurationError` unless they are a list of texts."""
    if not isinstance(values, list | tuple | set | frozenset) or not all(
        isinstance(one, str) and one for one in values
    ):
        raise ConfigurationError(f"{name} must be a list of texts that are not empty")
    return list(values)


def only_value(request: Request, header: str) -> str:
    """Return the value of a header. Raises `RefusedCredentialsError` for more than one: which is meant is not clear."""
    values = request.headers.getlist(header)
    if len(values) > 1:
        raise RefusedCredentialsError(f"The request has more than one {header} header")
    return values[0] if values else ""


def _bounded(what: str, name: str) -> str:
    if not 0 < len(name) <= MAX_NAME:
        raise RefusedCredentialsError(f"{what} has not 1 to {MAX_NAME} characters")
    return name


def _quoted(value: str) -> str:
    """Return a value for a quoted string in a header."""
    printable = "".join(character if " " <= character <= "~" else "?" for character in value)
    return printable.replace("\\", "\\\\").replace('"', '\\"')
