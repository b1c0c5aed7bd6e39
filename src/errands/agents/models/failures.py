"""What is said when a provider does not answer, and whether asking again may help. No secret is repeated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec

from errands.agents.models.retrying import FailedTry

#: So much of a provider's own words is repeated.
_QUOTED = 300
_LATER = "The model of this agent cannot answer now; try again later"
#: What looks like a key, whole or half hidden.
_KEYS = re.compile(r"\b(?:(?:sk|pk|rk|gsk|xai|key)[-_]|AIza|Bearer\s+|Basic\s+)[\w.*+/=-]{6,}", re.IGNORECASE)
_LESS = "The answer of the model of this agent became too long; ask for less"
#: What a caller can do about errors of any-llm; everything else is for the operator alone.
_TOLD = {
    "ContextLengthExceededError": "The conversation is longer than the model of this agent takes; begin a new task",
    "ContentFilterError": "The model of this agent does not answer this; ask for something else",
}
_PASSING_STATUSES = (408, 409, 425, 429)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Who was asked for what."""

    provider: str
    model: str
    #: Where, when it is not the provider's usual address.
    base_url: str | None
    #: How the key can be set.
    key_variables: str
    #: What must not be repeated.
    secrets: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """Where people would look, without anything that is only for machines."""
        if self.base_url is None:
            return self.provider
        url = httpx.URL(self.base_url).copy_with(userinfo=b"", query=None, fragment=None)
        return f"{self.provider} at {url}"


def failed_try(error: Exception, asked: Asked) -> FailedTry:
    """What an exception of any-llm or of the provider's own package means."""
    kind = type(error).__name__
    status: int | None = getattr(error, "status_code", None)
    if kind == "RateLimitError":
        return _too_many(error, asked)
    if _is_connection(error):
        told = f"{asked.address} cannot be reached ({_cause(error)}): check the network and ERRANDS_MODEL_BASE_URL"
        return FailedTry(told, told=_LATER, is_passing=True)
    if status is not None and (status >= 500 or status in _PASSING_STATUSES):
        told = f"{asked.address} answers with status {status}: {_quoted(error, asked)}; try again later"
        return FailedTry(told, told=_LATER, is_passing=True, retry_after=_retry_after(error))
    if kind == "ProviderError" and status is None and _body(error):
        # A stream that had begun well, and in which the provider tells of an error.
        failed = f"{asked.address} failed: {_quoted(error, asked)}; try again later"
        return FailedTry(failed, told=_LATER, is_passing=True)
    return FailedTry(_final(kind, error, asked), told=_TOLD.get(kind, ""))


def unfinished(asked: Asked, *, is_begun: bool) -> FailedTry:
    """The answer ended, and nobody had said that this was all."""
    if is_begun:
        broken = f"the answer of {asked.address} broke off before its end; try again"
        return FailedTry(broken, told=_LATER, is_passing=True)
    return FailedTry(f"{asked.address} gives no answer{_is_it_there(asked)}", told=_LATER, is_passing=True)


def empty(asked: Asked, incomplete: str | None) -> FailedTry:
    """The answer has neither a word nor a call in it. Another try may have; one that was cut would be again."""
    if incomplete == "length":
        told = f"{asked.model} of {asked.address} reached the greatest length of an answer before it said anything"
        return FailedTry(f"{told}: ask for less, or use a model that thinks less or may say more", told=_LESS)
    if incomplete == "content_filter":
        held_back = f"{asked.address} holds the whole answer back (content_filter): ask for something else"
        return FailedTry(held_back, told=_TOLD["ContentFilterError"])
    return FailedTry(
        f"{asked.address} answers without a word and without a call; try again", told=_LATER, is_passing=True
    )


def too_long(asked: Asked, max_bytes: int) -> FailedTry:
    """Asking again would most likely end the same way."""
    told = f"{asked.address} did not come to an end within {max_bytes:,} bytes, and its answer was not read any further"
    return FailedTry(f"{told}: ask for less, or set ERRANDS_MODEL_MAX_BYTES to more", told=_LESS)


def is_caused_by(error: Exception, *kinds: type[Exception]) -> bool:
    return any(isinstance(one, kinds) for one in _chain(error))


def _too_many(error: Exception, asked: Asked) -> FailedTry:
    if getattr(error, "code", None) == "insufficient_quota":
        return FailedTry(f"the account at {asked.provider} has no credit left: add some, or use another key or model")
    told = f"{asked.address} gets too many requests (429): ask less often, or raise the limits of the account"
    return FailedTry(told, told=_LATER, is_passing=True, retry_after=getattr(error, "retry_after", None))


def _final(kind: str, error: Exception, asked: Asked) -> str:
    match kind:
        case "AuthenticationError":
            # Providers like to repeat the key here.
            return (
                f"{asked.address} does not accept the API key, or not for {asked.model}: set {asked.key_variables} "
                "to a key that may use it"
            )
        case "ModelNotFoundError":
            return (
                f"{asked.address} has no model {asked.model}, or nothing answers there: check the agent's model, "
                "ERRANDS_MODEL and ERRANDS_MODEL_BASE_URL"
            )
        case "ContextLengthExceededError":
            return (
                f"the conversation is longer than {asked.model} of {asked.provider} takes: begin a new task, or use "
                "a model with a larger context"
            )
        case "ContentFilterError":
            return f"{asked.provider} refuses the content: {_quoted(error, asked)}"
        case "InsufficientFundsError":
            return f"the account at {asked.provider} has no credit left: add some, or use another key or model"
        case "InvalidRequestError" | "UnsupportedParameterError":
            return f"{asked.address} refuses the request for {asked.model}: {_quoted(error, asked)}"
    return f"the answer of {asked.address} cannot be read ({_quoted(error, asked)}){_is_it_there(asked)}"


def _is_it_there(asked: Asked) -> str:
    if asked.base_url is None:
        return ""
    return ": check ERRANDS_MODEL_BASE_URL, which usually ends in /v1, and what answers there"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from, at most a few steps back."""
    seen: BaseException | None = error
    for _ in range(8):
        if seen is None:
            return
        yield seen
        seen = getattr(seen, "original_exception", None) or seen.__cause__ or seen.__context__


def _is_connection(error: Exception) -> bool:
    return getattr(error, "status_code", None) is None and any(
        isinstance(one, httpx.TransportError | ConnectionError | TimeoutError)
        or type(one).__name__.endswith(("ConnectionError", "ConnectError", "TimeoutError"))
        for one in _chain(error)
    )


def _cause(error: Exception) -> str:
    return type(list(_chain(error))[-1]).__name__


def _retry_after(error: Exception) -> str | None:
    response = getattr(getattr(error, "original_exception", None), "response", None)
    headers: Any = getattr(response, "headers", None)
    found = headers.get("retry-after") if hasattr(headers, "get") else None
    return found if isinstance(found, str) else None


def _body(error: Exception) -> dict[str, Any]:
    """What the provider said in place of an answer."""
    body = getattr(getattr(error, "original_exception", None), "body", None)
    return body if isinstance(body, dict) else {}


def _quoted(error: Exception, asked: Asked) -> str:
    text = " ".join(str(_body(error).get("message") or getattr(error, "message", None) or error).split())
    for secret in asked.secrets:
        text = text.replace(secret, "…")
    text = _KEYS.sub("…", text)
    return text if len(text) <= _QUOTED else text[: _QUOTED - 1] + "…"
