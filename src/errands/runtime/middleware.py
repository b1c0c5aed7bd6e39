"""What happens between the HTTP request and the task manager, for everybody's use.

The envelope carries two kinds of things: `params`, which are stored, and everything else, which is not. A secret
that a middleware moves into `context` reaches the worker as `ctx.request_context` and nothing else.
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
    """A request on its way to the task manager, for middleware to look at and to change."""

    #: The request of a send; None for every other operation.
    params: SendMessageRequest | None = None
    #: For the worker, never stored and never logged.
    context: dict[str, Any] = field(default_factory=dict, repr=False)
    #: Who calls: tasks belong to their owner and nobody else can see them. "" is everybody without a name.
    owner: str = ""
    tenant: str = ""
    #: The caller's e-mail address, if it is certain: a review may ask for them by it, and policies see it as
    #: `context.user.email`. It is kept with the tasks that they create.
    email: str = ""


BeforeDispatch = TypeVar("BeforeDispatch", bound=Callable[..., Awaitable[None]])


def head_only(before_dispatch: BeforeDispatch) -> BeforeDispatch:
    """Mark a `before_dispatch` that needs the address and the headers of a request, and nothing else.

    It is called before the body is read, so that what it refuses costs nothing, if no middleware before it in the list
    needs the request: the order is kept. `envelope.params` and `envelope.tenant` are empty then.
    """
    before_dispatch.head_only = True  # type: ignore[attr-defined]
    return before_dispatch


def is_head_only(middleware: A2AMiddleware) -> bool:
    """Return whether the middleware can be asked before the body is read; a subclass has to say so again."""
    return getattr(middleware.before_dispatch, "head_only", False)


class A2AMiddleware:
    """Override what you need. Raising an `A2AError` refuses the request."""

    async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
        """Before the task manager sees the request; change the envelope in place."""

    async def after_dispatch(self, envelope: RequestEnvelope, result: Task | Message | None = None) -> None:
        """After the task manager has answered; `result` is None for streams and for other operations."""


class BearerTokenMiddleware(A2AMiddleware):
    """Lets through who has a good bearer token.

    `verify` gives the token's claims or None. The claim `sub` becomes the owner; without one, a digest of the
    token, so that callers are kept apart and no secret is stored. The claim `email` is the caller's address for
    reviews when `email_verified` says that somebody has checked it: some providers let users write what they like.
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
    """Lets through who has one of the keys; each key is an owner of its own."""

    def __init__(
        self, valid_keys: Iterable[str], *, header: str = "X-API-Key", exclude_paths: set[str] | None = None
    ) -> None:
        if isinstance(valid_keys, str) or not all(valid_keys := list(valid_keys)):
            # Each letter would be a key, and no key at all would do.
            raise ConfigurationError("valid_keys is a list of keys, and none of them is empty")
        self._valid_keys = [key.encode() for key in valid_keys]
        self._header = header
        self._exclude_paths = exclude_paths or set()

    @head_only
    async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
        if _path_of(request) in self._exclude_paths:
            return
        key = request.headers.get(self._header, "")
        # Every key is compared in constant time, so that the answer's time says nothing about them.
        matches = [hmac.compare_digest(key.encode(), valid) for valid in self._valid_keys]
        if not any(matches):
            raise AuthenticationRequiredError(scheme="ApiKey")
        envelope.context["api_key"] = key
        envelope.owner = digest_of(key)


def _path_of(request: Request) -> str:
    """The path that the router goes by. `request.url` is made of more, the `Host` header for one, and read again."""
    path: str = request.scope["path"]
    return path


def digest_of(secret: str) -> str:
    """A name for the holder of a secret that does not give the secret away."""
    return "key-" + hashlib.sha256(secret.encode()).hexdigest()[:32]
