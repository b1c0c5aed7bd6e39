"""Middleware between a request and the task manager.

Of the envelope, only `params` and the owner are stored. A secret that middleware moves into `context` reaches the
worker as `ctx.request_context` and nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request

from errands.errors import AuthenticationRequiredError, ConfigurationError
from errands.model.core import Message, Task
from errands.model.requests import SendMessageRequest


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
    """Override what you need. Raise an `A2AError` to refuse the request."""

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
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        claims = await self._verify(token.strip()) if scheme.lower() == "bearer" and token.strip() else None
        if claims is None:
            raise AuthenticationRequiredError(scheme="Bearer", realm=self._realm)
        envelope.context["auth_claims"] = claims
        envelope.context["auth_token"] = token.strip()
        envelope.owner = str(claims.get("sub") or digest_of(token.strip()))
        if claims.get("email") and claims.get("email_verified") in (True, "true"):
            envelope.email = str(claims["email"])


class ApiKeyMiddleware(A2AMiddleware):
    """Admits callers with one of the keys; each key is a separate owner."""

    def __init__(
        self, valid_keys: Iterable[str], *, header: str = "X-API-Key", exclude_paths: set[str] | None = None
    ) -> None:
        if isinstance(valid_keys, str) or not all(valid_keys := list(valid_keys)):
            # Each letter of a string would be a key, and an empty key would admit everyone.
            raise ConfigurationError("valid_keys must be a list of keys that are not empty")
        self._valid_keys = [key.encode() for key in valid_keys]
        self._header = header
        self._exclude_paths = exclude_paths or set()

    @head_only
    async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
        if _path_of(request) in self._exclude_paths:
            return
        key = request.headers.get(self._header, "")
        # Every key is compared in constant time, so that the time of the response reveals nothing about them.
        matches = [hmac.compare_digest(key.encode(), valid) for valid in self._valid_keys]
        if not any(matches):
            raise AuthenticationRequiredError(scheme="ApiKey")
        envelope.context["api_key"] = key
        envelope.owner = digest_of(key)


def _path_of(request: Request) -> str:
    """Return the path that the router uses; `request.url` is built from the `Host` header, too."""
    path: str = request.scope["path"]
    return path


def digest_of(secret: str) -> str:
    """Return a name for the holder of a secret that does not reveal the secret."""
    return "key-" + hashlib.sha256(secret.encode()).hexdigest()[:32]
