"""Middleware between a request and the task manager, and the caller whom it finds.

Of the envelope, only `params` and the owner are stored. A secret that middleware moves into `context` reaches the
worker as `ctx.request_context` and nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from errands.errors import AuthenticationRequiredError, ConfigurationError
from errands.model.core import Message, Task
from errands.model.requests import SendMessageRequest


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """An authenticated caller: who it is, and what its credentials say about it. It never has the credentials."""

    #: Tasks belong to their owner.
    owner: str
    #: The only tenant that the caller may use; "" leaves the choice to each request.
    tenant: str = ""
    #: The e-mail address, if it is verified.
    email: str = ""
    scopes: frozenset[str] = frozenset()
    #: The claims of a token.
    claims: dict[str, Any] = {}
    #: The name of the scheme that knows the caller, as on the agent card.
    scheme: str = ""


@dataclass
class RequestEnvelope:
    """A request on its way to the task manager. Middleware may read and change it."""

    #: The request of a send; None for every other operation.
    params: SendMessageRequest | None = None
    #: For the worker; never stored and never logged.
    context: dict[str, Any] = field(default_factory=dict, repr=False)
    #: The caller. Tasks belong to their owner, and other owners cannot see them. "" is every caller without a name.
    owner: str = ""
    tenant: str = ""
    #: The caller's e-mail address, if it is verified: reviews may name users by it, and policies see it as
    #: `context.user.email`. It is stored with the tasks that the caller creates.
    email: str = ""
    #: Who was authenticated by `A2AServer(auth=...)`; None without it.
    caller: Caller | None = None


BeforeDispatch = TypeVar("BeforeDispatch", bound=Callable[..., Awaitable[None]])


def head_only(before_dispatch: BeforeDispatch) -> BeforeDispatch:
    """Mark a `before_dispatch` that needs only the address and the headers of a request.

    It is called before the body is read, so that refusing a request is cheap, if no middleware before it in the list
    needs the body: the order is kept. `envelope.params` and `envelope.tenant` are empty then.
    """
    before_dispatch.head_only = True  # type: ignore[attr-defined]
    return before_dispatch


def is_head_only(middleware: A2AMiddleware) -> bool:
    """Return whether the middleware can be called before the body is read; subclasses have to be marked again."""
    return getattr(middleware.before_dispatch, "head_only", False)


class A2AMiddleware:
    """Code before and after every request: override what you need.

    Raise an `A2AError` to refuse the request.
    """

    async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
        """Called before the task manager sees the request. Change the envelope in place."""

    async def after_dispatch(self, envelope: RequestEnvelope, result: Task | Message | None = None) -> None:
        """Called after the task manager has answered; `result` is None for streams and for other operations."""


class BearerTokenMiddleware(A2AMiddleware):
    """Admits callers with a valid bearer token.

    `verify` returns the token's claims or None. The claim `sub` becomes the owner; without one, a digest of the
    token, so that callers are kept apart and no secret is stored. The claim `email` is the caller's address for
    reviews if `email_verified` is true: some providers let users write any address.
    """

    def __init__(
        self,
        verify: Callable[[str], Awaitable[dict[str, Any] | None]],
        *,
        realm: str = "a2a",
        exclude_paths: set[str] | None = None,
    ) -> None:
        self._verify = verify
        self._realm = realm
        self._exclude_paths = exclude_paths or set()

    @head_only
    async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
        if _path_of(request) in self._exclude_paths:
            return
        token = bearer_token(request)
        claims = await self._verify(token) if token else None
        if claims is None:
            raise AuthenticationRequiredError(scheme="Bearer", realm=self._realm)
        envelope.context["auth_claims"] = claims
        envelope.context["auth_token"] = token
        envelope.owner = str(claims.get("sub") or digest_of(token))
        envelope.email = verified_email(claims)


class ApiKeyMiddleware(A2AMiddleware):
    """Admits callers with one of the keys; each key is a separate owner."""

    def __init__(
        self, valid_keys: Iterable[str], *, header: str = "X-API-Key", exclude_paths: set[str] | None = None
    ) -> None:
        if isinstance(valid_keys, str) or not all(valid_keys := list(valid_keys)):
            # Each letter of a string would be a key, and an empty key would admit everyone.
            raise ConfigurationError("valid_keys must be a list of keys that are not empty")
        self._owners = ApiKeys({hash_of(key): digest_of(key) for key in valid_keys})
        self._header = header
        self._exclude_paths = exclude_paths or set()

    @head_only
    async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
        if _path_of(request) in self._exclude_paths:
            return
        key = request.headers.get(self._header, "")
        owner = self._owners.find(key)
        if owner is None:
            raise AuthenticationRequiredError(scheme="ApiKey")
        envelope.context["api_key"] = key
        envelope.owner = owner


Holder = TypeVar("Holder")


class ApiKeys(dict[bytes, Holder]):
    """The holders of keys, by the hash of each key (`hash_of`)."""

    def find(self, key: str) -> Holder | None:
        """Return the holder of a key, None for an unknown one.

        Every hash is compared in constant time, so that the time of the response reveals nothing about the keys.
        """
        given, found = hash_of(key), None
        for known, holder in self.items():
            if hmac.compare_digest(given, known):
                found = holder
        return found


def hash_of(key: str) -> bytes:
    """Return the hash of a key. Keys are random, so a fast hash is as safe as a slow one."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def bearer_token(request: Request) -> str:
    """Return the bearer token of a request, "" if it has none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def verified_email(claims: Mapping[str, Any]) -> str:
    """Return the e-mail address in the claims of a token if its issuer has verified it, else ""."""
    verified = claims.get("email_verified") in (True, "true")
    return str(claims["email"]) if verified and claims.get("email") else ""


def _path_of(request: Request) -> str:
    """Return the path that the router uses; `request.url` is built from the `Host` header, too."""
    path: str = request.scope["path"]
    return path


def digest_of(secret: str) -> str:
    """Return a name for the holder of a secret that does not reveal the secret."""
    return name_of(hash_of(secret))


def name_of(hashed: bytes) -> str:
    """Return the same for a secret of which only the hash is known."""
    return f"key-{hashed.hex()[:32]}"
