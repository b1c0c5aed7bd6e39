"""Models of every provider that any-llm supports, and of any server that speaks OpenAI's protocol.

Retrying a request that fails (connection errors, 408, 409, 429, 5xx) is left to the package of the provider. What is
done here: an answer that is empty or breaks off before any of it was passed on is asked for again, errors become
messages for the operator without secrets, and a key is never sent to another provider than its own.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from errands.agents.models.base import Answer, Model, ModelError, OnText, Question
from errands.agents.models.completions import MAX_BYTES, AnswerTooLongError, Assembly, messages, tools
from errands.errors import ConfigurationError

DEFAULT_TIMEOUT = 300.0
#: Retries of a failed request by the package of the provider.
RETRIES = 3
#: Requests for one answer when it comes back empty or breaks off.
_ATTEMPTS = 3
#: API key for local servers that need none: their client libraries require one.
_NO_KEY = "no-key"
#: Characters of a provider's own error message that are repeated.
_MAX_QUOTED = 300
#: Text that looks like a key, complete or partly masked.
_KEYS = re.compile(r"\b(?:(?:sk|pk|rk|gsk|xai|key)[-_]|AIza|Bearer\s+|Basic\s+)[\w.*+/=-]{6,}", re.IGNORECASE)

_TRY_LATER = "The model of this agent cannot answer now; try again later"
_TOO_LONG = "The answer of the model of this agent became too long; ask for less"
_REFUSED = "The model of this agent does not answer this; ask for something else"
#: By exception of any-llm: the message for the operator and, if the caller can do something about it, for the caller.
_FAILURES = {
    "AuthenticationError": ("{address} rejected the API key: set {keys} to a key that may use {model}", ""),
    "ModelNotFoundError": (
        "{address} has no model {model}: check the agent's model, ERRANDS_MODEL and ERRANDS_MODEL_BASE_URL",
        "",
    ),
    "ContextLengthExceededError": (
        "the conversation is too long for {model} of {provider}: start a new task, or use one with a larger context",
        "The conversation is too long for the model of this agent; start a new task",
    ),
    "ContentFilterError": ("{provider} refused the content: {quoted}", _REFUSED),
    "InsufficientFundsError": (
        "the account at {provider} has no credit left: add some, or use another key or model",
        "",
    ),
    "InvalidRequestError": ("{address} refused the request for {model}: {quoted}", ""),
    "UnsupportedParameterError": ("{address} refused the request for {model}: {quoted}", ""),
}

#: What to add to a request for a capability of the provider (`model_capabilities`), by capability and provider.
BUILTINS: dict[str, dict[str, dict[str, Any]]] = {
    "web-search": {
        "gemini": {"tools": [{"google_search": {}}]},
        "openai": {"web_search_options": {}},
        "openrouter": {"extra_body": {"plugins": [{"id": "web"}]}},
        # Its models always search.
        "perplexity": {},
        "vertexai": {"tools": [{"google_search": {}}]},
    },
}


class AnyLlmModel(Model):
    """`default` answers agents that name no model; `base_url` and `api_key` belong to its provider.

    Without a default, they belong to the only provider that agents name.
    """

    def __init__(
        self,
        default: str | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        max_bytes: int = MAX_BYTES,
        retries: int = RETRIES,
    ) -> None:
        try:
            parts = httpx.URL(base_url or "https://example.com")
            is_usable = parts.scheme in ("http", "https") and bool(parts.host)
        except httpx.InvalidURL:
            is_usable = False
        if not is_usable:
            # Without the URL, which may contain a password.
            raise ConfigurationError("ERRANDS_MODEL_BASE_URL is not a URL: write it like https://models.example.com/v1")
        self._default = default
        #: The provider that the base URL and the key belong to.
        self._owner = split(default)[0] if default else None
        self._base_url = base_url
        self._api_key = api_key
        self._timeout = timeout
        self._max_bytes = max_bytes
        self._retries = retries
        #: Providers by name, created when an agent first names one, and the variables that set the key of each.
        self._made: dict[str, Any] = {}
        self._keys: dict[str, str] = {}

    def resolve(self, model: str | None, builtins: tuple[str, ...] = ()) -> str:
        provider, name = split(super().resolve(model or self._default))
        self._provider(provider)
        _builtin_options(provider, builtins)
        return f"{provider}/{name}"

    async def ask(self, question: Question, on_text: OnText | None = None) -> Answer:
        try:
            name, model = split(question.model)
            provider = self._provider(name)
            options = _builtin_options(name, question.builtins)
        except ConfigurationError as error:
            raise ModelError(str(error)) from None
        if provider.TIMEOUT_SUPPORT != "unsupported":
            # The timeout below must end first: it covers all attempts, and its message says what to do.
            options["timeout"] = 2 * self._timeout
        keys = (self._api_key, getattr(getattr(provider, "client", None), "api_key", None))
        asked = Asked(
            provider=name,
            model=model,
            base_url=self._base_url if self._owner == name else None,
            keys=self._keys[name],
            secrets=tuple(key for key in keys if isinstance(key, str) and key and key != _NO_KEY),
        )
        exchange = _Exchange(provider, asked, question, options, self._max_bytes)
        try:
            async with asyncio.timeout(self._timeout) as limit:
                return await exchange.answer(on_text)
        except TimeoutError:
            if not limit.expired():
                raise
            problem = f"{exchange.asked.address} did not finish its answer within {self._timeout:g} s"
            raise ModelError(
                f"{problem}: try again, or increase ERRANDS_MODEL_TIMEOUT",
                for_caller="The model of this agent took too long; try again later",
                broke_off=exchange.has_told,
            ) from None

    async def close(self) -> None:
        made, self._made = self._made, {}
        for provider in made.values():
            client = getattr(provider, "client", None)
            close = getattr(client, "aclose", None) or getattr(client, "close", None)
            closing = close() if close is not None else None
            if inspect.isawaitable(closing):
                await closing

    def _provider(self, name: str) -> Any:
        """Return a provider of any-llm. Raises `ConfigurationError` if it is unknown, or lacks its package or key."""
        if name in self._made:
            return self._made[name]
        try:
            any_llm = importlib.import_module("any_llm")
        except ImportError as error:
            raise ConfigurationError(f"models need an extra ({error}): pip install 'errands[models]'") from None
        owned = False
        if self._base_url or self._api_key:
            self._owner = self._owner or name
            owned = self._owner == name
            if not owned and not self._default:
                raise ConfigurationError(
                    f"ERRANDS_MODEL_BASE_URL and ERRANDS_MODEL_API_KEY could be meant for {self._owner} or for {name}: "
                    "set ERRANDS_MODEL to a model of the right one, and give the other its key by its own variable"
                )
        base_url, key = (self._base_url, self._api_key) if owned else (None, None)
        try:
            kind = any_llm.AnyLLM.get_provider_class(name)
        except any_llm.exceptions.UnsupportedProviderError as error:
            if not base_url:
                known = ", ".join(sorted(error.supported_providers))
                raise ConfigurationError(
                    f"unknown provider {name!r}: use one of {known}, or set ERRANDS_MODEL_BASE_URL to a server that "
                    "speaks OpenAI's protocol"
                ) from None
            kind = None
        except ImportError:
            raise ConfigurationError(f"{name} needs a package: pip install 'any-llm-sdk[{name}]'") from None
        variable = getattr(kind, "ENV_API_KEY_NAME", "")
        self._keys[name] = " or ".join(filter(None, ["ERRANDS_MODEL_API_KEY" if owned else "", variable]))
        if base_url and not key and not os.environ.get(variable):
            key = _NO_KEY
        options: dict[str, Any] = {"api_key": key, "unified_exceptions": True}
        if kind is None or getattr(kind, "MAX_RETRIES_SUPPORT", "unsupported") != "unsupported":
            options["max_retries"] = self._retries
        try:
            if kind is None:
                self._made[name] = any_llm.AnyLLM.create_openai_compatible(name, base_url, **options)
            else:
                self._made[name] = any_llm.AnyLLM.create(name, api_base=base_url, **options)
        except any_llm.exceptions.MissingApiKeyError:
            raise ConfigurationError(f"{name} needs an API key: set {self._keys[name]}") from None
        except ImportError:
            raise ConfigurationError(f"{name} needs a package: pip install 'any-llm-sdk[{name}]'") from None
        except Exception as error:
            raise ConfigurationError(f"{name} cannot be used ({type(error).__name__}): check its settings") from None
        return self._made[name]


def split(model: str) -> tuple[str, str]:
    """Return provider and model of `provider/model`. Raises `ConfigurationError` for anything else."""
    provider, slash, name = model.partition("/")
    if not (provider and slash and name):
        raise ConfigurationError(
            f"invalid model {model!r}: write provider/model, such as openai/gpt-4o-mini, or scripted"
        )
    return provider.strip().lower(), name


def _builtin_options(provider: str, builtins: tuple[str, ...]) -> dict[str, Any]:
    """Return the request options for the capabilities. Raises `ConfigurationError` if the provider lacks one."""
    options: dict[str, Any] = {}
    for name in builtins:
        providers = BUILTINS.get(name, {})
        if provider not in providers:
            others = f"use a model of {', '.join(sorted(providers))}, or " if providers else ""
            raise ConfigurationError(
                f"model_capabilities: errands cannot request {name} of {provider}: {others}remove it"
            )
        options.update(providers[provider])
    return options


class _UnfinishedError(ModelError):
    """The answer was empty or broke off; asking again may help."""


@dataclass
class _Exchange:
    """One question and the attempts to have it answered."""

    provider: Any
    asked: Asked
    question: Question
    options: dict[str, Any]
    max_bytes: int
    #: Whether a part of an answer was passed on.
    has_told: bool = False
    #: Tokens of all attempts that came to an end.
    prompt_tokens: int = 0
    completion_tokens: int = 0

    async def answer(self, on_text: OnText | None) -> Answer:
        """Ask until there is a complete answer. Raises `ModelError`, and what `on_text` raises."""
        for left in reversed(range(_ATTEMPTS)):
            try:
                return await self._attempt(on_text)
            except _UnfinishedError:
                if self.has_told or not left:
                    raise
        raise AssertionError("unreachable")

    async def _attempt(self, on_text: OnText | None) -> Answer:
        assembly = Assembly(self.question, self.asked.provider, self.max_bytes)
        async with aclosing(self._texts(assembly, streaming=on_text is not None)) as texts:
            async for text in texts:
                if text and on_text is not None:
                    self.has_told = True
                    await on_text(text)
        address, incomplete = self.asked.address, assembly.incomplete
        if not assembly.is_finished:
            problem = "broke off its answer" if assembly.is_begun else f"gave no answer{self.asked.base_url_hint}"
            raise _UnfinishedError(
                f"{address} {problem}; try again", for_caller=_TRY_LATER, broke_off=assembly.is_begun
            )
        answer = assembly.answer()
        self.prompt_tokens += answer.prompt_tokens
        self.completion_tokens += answer.completion_tokens
        if assembly.is_empty and incomplete == "length":
            problem = f"{self.asked.model} of {address} reached the length limit of an answer before it said anything"
            raise ModelError(f"{problem}: ask for less, or use a model that may say more", for_caller=_TOO_LONG)
        if assembly.is_empty and incomplete:
            raise ModelError(
                f"{address} withheld the whole answer ({incomplete}): ask for something else", for_caller=_REFUSED
            )
        if assembly.is_empty and not self.question.tells_results:
            raise _UnfinishedError(f"{address} gave an empty answer; try again", for_caller=_TRY_LATER)
        return msgspec.structs.replace(
            answer, prompt_tokens=self.prompt_tokens, completion_tokens=self.completion_tokens
        )

    async def _texts(self, assembly: Assembly, *, streaming: bool) -> AsyncGenerator[str, None]:
        """Yield the text of an answer as it arrives. Errors of the caller in between are not taken for failures."""
        in_stream = False
        try:
            if not (streaming and self.provider.SUPPORTS_COMPLETION_STREAMING):
                yield assembly.add(await self._send(), is_whole=True)
                return
            async with aclosing(await self._send(stream=True, stream_options={"include_usage": True})) as chunks:
                in_stream = True
                async for chunk in chunks:
                    yield assembly.add(chunk, is_whole=False)
        except AnswerTooLongError:
            problem = f"the answer of {self.asked.address} is longer than {self.max_bytes:,} bytes"
            raise ModelError(
                f"{problem}: ask for less, or increase ERRANDS_MODEL_MAX_BYTES", for_caller=_TOO_LONG
            ) from None
        except Exception as error:
            raise _failure(error, self.asked, in_stream=in_stream, is_begun=assembly.is_begun) from None

    async def _send(self, **streaming: Any) -> Any:
        options = dict(self.options)
        if offered := [*tools(self.question.offers), *options.pop("tools", [])]:
            options["tools"] = offered
        return await self.provider.acompletion(self.asked.model, messages(self.question), **options, **streaming)


# Failures


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Who was asked for what: for messages."""

    provider: str
    model: str
    #: None for the provider's usual address.
    base_url: str | None
    #: The variables that set the key.
    keys: str
    #: What must not be repeated.
    secrets: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        if self.base_url is None:
            return self.provider
        url = httpx.URL(self.base_url).copy_with(userinfo=b"", query=None, fragment=None)
        return f"{self.provider} at {url}"

    @property
    def base_url_hint(self) -> str:
        if self.base_url is None:
            return ""
        return ": check ERRANDS_MODEL_BASE_URL, which usually ends in /v1, and what answers there"


def _failure(error: Exception, asked: Asked, *, in_stream: bool, is_begun: bool) -> ModelError:
    """Return what an exception of any-llm or of the provider's package means, without secrets."""
    kind, status = type(error).__name__, getattr(error, "status_code", None)
    if getattr(error, "code", None) == "insufficient_quota":
        kind = "InsufficientFundsError"
    if kind in _FAILURES:
        problem, told = _FAILURES[kind]
        quoted = _quoted(error, asked)
        text = problem.format(
            address=asked.address, provider=asked.provider, model=asked.model, keys=asked.keys, quoted=quoted
        )
        return ModelError(text, for_caller=told) if told else ModelError(text)
    if kind == "RateLimitError" or (status is not None and status >= 400):
        failed = "refused the request for now" if status is None else f"failed with status {status}"
        return ModelError(f"{asked.address} {failed}: {_quoted(error, asked)}", for_caller=_TRY_LATER)
    causes: list[BaseException] = [error]
    # At most a few steps back.
    while len(causes) < 8:
        one = causes[-1]
        cause = getattr(one, "original_exception", None) or one.__cause__ or one.__context__
        if cause is None:
            break
        causes.append(cause)
    is_connection = any(
        isinstance(one, httpx.TransportError | ConnectionError | TimeoutError)
        or type(one).__name__.endswith(("ConnectionError", "ConnectError", "TimeoutError"))
        for one in causes
    )
    if is_connection and not is_begun:
        reason = type(causes[-1]).__name__
        text = f"{asked.address} cannot be reached ({reason}): check the network and ERRANDS_MODEL_BASE_URL"
    else:
        text = f"the answer of {asked.address} cannot be read ({_quoted(error, asked)}){asked.base_url_hint}"
    # Before a stream begins, the package of the provider has retried already.
    made = _UnfinishedError if in_stream else ModelError
    return made(text, for_caller=_TRY_LATER, broke_off=is_begun)


def _quoted(error: Exception, asked: Asked) -> str:
    """Return the provider's own words without secrets."""
    body = getattr(getattr(error, "original_exception", None), "body", None)
    said = body.get("message") if isinstance(body, dict) else None
    text = " ".join(str(said or getattr(error, "message", None) or error).split())
    for secret in asked.secrets:
        text = text.replace(secret, "…")
    text = _KEYS.sub("…", text)
    return text if len(text) <= _MAX_QUOTED else text[: _MAX_QUOTED - 1] + "…"
