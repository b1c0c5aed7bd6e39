"""What providers bring themselves (`model_capabilities`), and how each of them is asked for it."""

from __future__ import annotations

import asyncio
import email.utils
import importlib
import inspect
import logging
import os
import random
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import httpx
import msgspec

from errands.agents.models.base import Answer, Model, ModelError, OnText, Question
from errands.agents.models.messages import MAX_BYTES, AnswerTooLongError, Assembly, messages, tools
from errands.clock import Clock, system_clock
from errands.errors import ConfigurationError
from errands.outbound import AnswerTooLargeError, Meter, Unpacking, ask_for_known

# builtins

#: By capability and provider: what is added to the request. `tools` are added to those of the agent.
BUILTINS: dict[str, dict[str, dict[str, Any]]] = {
    "web-search": {
        "gemini": {"tools": [{"google_search": {}}]},
        "openai": {"web_search_options": {}},
        "openrouter": {"extra_body": {"plugins": [{"id": "web"}]}},
        # Its models search anyway.
        "perplexity": {},
        "vertexai": {"tools": [{"google_search": {}}]},
    },
}


def options_for(provider: str, builtins: tuple[str, ...]) -> dict[str, Any]:
    """What is added to a request. Raises `ConfigurationError` for what we cannot ask the provider for."""
    options: dict[str, Any] = {}
    for name in builtins:
        by_provider = BUILTINS.get(name, {})
        if provider not in by_provider:
            others = f"use a model of {', '.join(sorted(by_provider))}, or " if by_provider else ""
            problem = f"errands cannot ask {provider} for {name}"
            raise ConfigurationError(f"model_capabilities: {problem}: {others}take it away")
        options.update(by_provider[provider])
    return options


# retrying

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: No single wait is longer: a provider that asks for more is not waited for.
LONGEST_WAIT = 60.0


class FailedTry(Exception):
    """One try has failed; the message is for the operator and has no secret in it."""

    #: The answer had begun.
    broke_off = False

    def __init__(
        self, message: str, *, told: str = "", is_passing: bool = False, retry_after: str | None = None
    ) -> None:
        super().__init__(message)
        #: What the caller of the agent can do something with.
        self.told = told
        #: Whether it may pass by itself.
        self.is_passing = is_passing
        #: As in the header: seconds, or a date.
        self.retry_after = retry_after


@dataclass
class Patience:
    """Exponential backoff with full jitter, and what the provider asks for on top."""

    tries: int = 4
    delay: float = 0.5
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    uniform: Callable[[float, float], float] = random.uniform
    clock: Clock = field(default=system_clock)

    async def run(self, attempt: Callable[[], Awaitable[T]], may_repeat: Callable[[], bool]) -> T:
        """The result of `attempt`. Raises `ModelError` for a failure that is final, or one too many."""
        failures = 0
        while True:
            try:
                return await attempt()
            except FailedTry as failure:
                failures += 1
                asked = self._seconds(failure.retry_after)
                if not failure.is_passing or not may_repeat():
                    raise _given_up(failure) from None
                if failures >= self.tries:
                    raise _given_up(failure, f" (tried {failures} times)") from None
                if asked > LONGEST_WAIT:
                    raise _given_up(failure, f" (it asks to wait {asked:.0f} s)") from None
                wait = asked + self.uniform(0, min(LONGEST_WAIT, self.delay * 2 ** (failures - 1)))
                logger.info("%s; asking again in %.1f s", failure, wait)
                await self.sleep(wait)

    def _seconds(self, retry_after: str | None) -> float:
        if retry_after is None:
            return 0.0
        try:
            return max(0.0, float(retry_after))
        except ValueError:
            pass
        try:
            moment = email.utils.parsedate_to_datetime(retry_after)
        except ValueError:
            return 0.0
        return max(0.0, moment.timestamp() - self.clock() / 1000)


def _given_up(failure: FailedTry, more: str = "") -> ModelError:
    told = {"told": failure.told} if failure.told else {}
    return ModelError(f"{failure}{more}", broke_off=failure.broke_off, **told)


# failures

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


# metering

#: JSON may write one character with six.
_WRITTEN_OUT = 6


def bound(provider: Any, max_bytes: int) -> None:
    """Has the provider's client stop reading an answer, or one event of a stream, that is longer than that.

    Nearly all of the packages use httpx or its successor; with one that does not, only what has come is counted.
    """
    client = getattr(getattr(provider, "client", None), "_client", None)
    hooks = getattr(client, "event_hooks", None)
    if client is None or not isinstance(hooks, dict):
        return

    async def ask(request: Any) -> None:
        ask_for_known(request.headers)

    async def meter(response: Any) -> None:
        meter = Meter(max_bytes * _WRITTEN_OUT, response.headers.get("content-type", ""))
        response.stream = _metered(response.stream, Unpacking(response.headers.pop("content-encoding", ""), meter))

    client.event_hooks = {
        **hooks,
        "request": [*hooks.get("request", []), ask],
        "response": [*hooks.get("response", []), meter],
    }


def _metered(stream: Any, unpacking: Unpacking) -> Any:
    """The stream again, unpacked. What a response is read from must be of its own library."""
    [base] = [kind for kind in type(stream).__mro__ if kind.__name__ == "AsyncByteStream"]

    class Metered(base):  # type: ignore[misc, valid-type]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for chunk in stream:
                for piece in unpacking.pieces(chunk):
                    yield piece

        async def aclose(self) -> None:
            await stream.aclose()

    return Metered()


# providers

#: For servers of one's own that want no key; their clients want one all the same.
_NO_KEY = "no-key"
_FORM = "models are written provider/model, such as openai/gpt-4o-mini; scripted is the one without a provider"


class Provider(Protocol):
    """What we use of any-llm's providers."""

    SUPPORTS_COMPLETION_STREAMING: bool
    TIMEOUT_SUPPORT: str

    async def acompletion(self, model: str, messages: list[dict[str, Any]], **options: Any) -> Any: ...


def split(model: str) -> tuple[str, str]:
    """Provider and model. Raises `ConfigurationError` when it is not written so."""
    provider, slash, name = model.partition("/")
    if not (provider and slash and name):
        raise ConfigurationError(f"the model is {model!r}: {_FORM}")
    return provider.strip().lower(), name


class Providers:
    """By name. A base URL and a key are for one provider: a key is never sent to another one."""

    def __init__(self, owner: str | None, base_url: str | None, api_key: str | None, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        #: Whose the URL and the key are. When nobody has said so, there may be only one provider.
        self._owner = owner
        _check_url(base_url)
        self._is_owner_told = owner is not None
        self._base_url = base_url
        self._api_key = api_key
        self._made: dict[str, Provider] = {}
        self._keys: dict[str, str] = {}

    def get(self, name: str) -> Provider:
        """Raises `ConfigurationError` when there is no such provider, or its package or key is missing."""
        if name not in self._made:
            self._made[name] = self._make(name)
            bound(self._made[name], self._max_bytes)
        return self._made[name]

    def asked(self, name: str, model: str) -> Asked:
        """For words about what went wrong."""
        return Asked(
            provider=name,
            model=model,
            base_url=self._base_url if self._owner == name else None,
            key_variables=self._keys.get(name, "ERRANDS_MODEL_API_KEY"),
            secrets=self._secrets(name),
        )

    async def close(self) -> None:
        made, self._made = self._made, {}
        for provider in made.values():
            client = getattr(provider, "client", None)
            close = getattr(client, "aclose", None) or getattr(client, "close", None)
            closing = close() if close is not None else None
            if inspect.isawaitable(closing):
                await closing

    def _make(self, name: str) -> Any:
        any_llm = _any_llm()
        owned = self._owns(name)
        kind = self._class_of(any_llm, name, owned)
        variable = getattr(kind, "ENV_API_KEY_NAME", "")
        self._keys[name] = " or ".join(filter(None, ["ERRANDS_MODEL_API_KEY" if owned else "", variable]))
        base_url, key = (self._base_url, self._api_key) if owned else (None, None)
        if base_url and not key and not os.environ.get(variable):
            key = _NO_KEY
        options: dict[str, Any] = {"api_key": key, "unified_exceptions": True}
        if getattr(kind, "MAX_RETRIES_SUPPORT", "unsupported") != "unsupported":
            options["max_retries"] = 0
        try:
            if kind is None:
                return any_llm.AnyLLM.create_openai_compatible(name, base_url, **options)
            return any_llm.AnyLLM.create(name, api_base=base_url, **options)
        except any_llm.exceptions.MissingApiKeyError:
            raise ConfigurationError(f"there is no API key for {name}: set {self._keys[name]}") from None
        except ImportError:
            raise ConfigurationError(f"{name} needs a package: pip install 'any-llm-sdk[{name}]'") from None
        except Exception as error:
            raise ConfigurationError(f"{name} cannot be used ({type(error).__name__}): check its settings") from None

    def _owns(self, name: str) -> bool:
        """Whether the URL and the key are meant for this provider."""
        if not (self._base_url or self._api_key):
            return False
        self._owner = self._owner or name
        if self._owner != name and not self._is_owner_told:
            raise ConfigurationError(
                f"ERRANDS_MODEL_BASE_URL and ERRANDS_MODEL_API_KEY could be meant for {self._owner} or for {name}: set "
                "ERRANDS_MODEL to a model of the right one, and give the other its key by its own variable"
            )
        return self._owner == name

    def _class_of(self, any_llm: Any, name: str, owned: bool) -> Any:
        """The class of a provider; None for one that is only known by its base URL."""
        try:
            return any_llm.AnyLLM.get_provider_class(name)
        except any_llm.exceptions.UnsupportedProviderError as error:
            if owned and self._base_url:
                return None
            known = ", ".join(sorted(error.supported_providers))
            raise ConfigurationError(
                f"there is no provider {name!r}: take one of {known}, or set ERRANDS_MODEL_BASE_URL to a server that "
                "speaks OpenAI's protocol"
            ) from None
        except ImportError:
            raise ConfigurationError(f"{name} needs a package: pip install 'any-llm-sdk[{name}]'") from None

    def _secrets(self, name: str) -> tuple[str, ...]:
        client = getattr(self._made.get(name), "client", None)
        keys = (self._api_key, getattr(client, "api_key", None))
        return tuple(key for key in keys if isinstance(key, str) and key and key != _NO_KEY)


def _check_url(url: str | None) -> None:
    """The URL is not repeated: there may be a password in it."""
    try:
        parts = httpx.URL(url or "https://example.com")
        is_usable = parts.scheme in ("http", "https") and bool(parts.host)
    except httpx.InvalidURL:
        is_usable = False
    if not is_usable:
        raise ConfigurationError("ERRANDS_MODEL_BASE_URL is no address: write it like https://models.example.com/v1")


def _any_llm() -> Any:
    try:
        return importlib.import_module("any_llm")
    except ImportError as error:
        raise ConfigurationError(f"models need an extra ({error}): pip install 'errands[models]'") from None


# any_llm

DEFAULT_TIMEOUT = 300.0


class AnyLlmModel(Model):
    """`default` answers agents that name no model; `base_url` and `api_key` are for its provider."""

    def __init__(
        self,
        default: str | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        max_bytes: int = MAX_BYTES,
        patience: Patience | None = None,
    ) -> None:
        self._default = default
        self._providers = Providers(split(default)[0] if default else None, base_url, api_key, max_bytes)
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._patience = patience or Patience()

    def resolve(self, model: str | None, builtins: tuple[str, ...] = ()) -> str:
        chosen = super().resolve(model or self._default)
        provider, name = split(chosen)
        self._providers.get(provider)
        options_for(provider, builtins)
        return f"{provider}/{name}"

    async def ask(self, question: Question, on_text: OnText | None = None) -> Answer:
        try:
            provider, name = split(question.model)
            found = self._providers.get(provider)
            exchange = _Exchange(found, self._providers.asked(provider, name), question, self._max_bytes)
            exchange.options.update(options_for(provider, question.builtins))
        except ConfigurationError as error:
            raise ModelError(str(error)) from None
        if exchange.provider.TIMEOUT_SUPPORT != "unsupported":
            # Ours must end first: it covers every try, and says what to do.
            exchange.options["timeout"] = 2 * self._timeout
        try:
            async with asyncio.timeout(self._timeout) as limit:
                return await self._patience.run(lambda: exchange.attempt(on_text), lambda: not exchange.has_told)
        except TimeoutError:
            if not limit.expired():
                raise
            told = f"{exchange.asked.address} did not finish its answer in {self._timeout:g} s{exchange.before}"
            raise ModelError(
                f"{told}: try again, or set ERRANDS_MODEL_TIMEOUT to more seconds",
                told="The model of this agent took too long; try again later",
                broke_off=exchange.has_told,
            ) from None

    async def close(self) -> None:
        await self._providers.close()


class _Exchange:
    """One question on its way to a provider, until it is answered."""

    def __init__(self, provider: Provider, asked: Asked, question: Question, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.provider = provider
        self.asked = asked
        self.question = question
        #: Beside the messages and the functions.
        self.options: dict[str, Any] = {}
        #: Whether somebody has heard a part of the answer.
        self.has_told = False
        #: What is to be said about the try before.
        self.before = ""
        #: What all tries together took, as far as they came to an end.
        self._prompt_tokens = self._completion_tokens = 0

    async def attempt(self, on_text: OnText | None) -> Answer:
        """One try. Raises `FailedTry`, and what `on_text` raises."""
        try:
            return await self._attempt(on_text)
        except FailedTry as failure:
            self.before = f" (before, {failure})"
            raise

    async def _attempt(self, on_text: OnText | None) -> Answer:
        assembly = Assembly(self.question, self.asked.provider, self._max_bytes)
        try:
            return await self._assembled(assembly, on_text)
        except FailedTry as failure:
            failure.broke_off = failure.is_passing and assembly.is_begun and not assembly.is_finished
            raise

    async def _assembled(self, assembly: Assembly, on_text: OnText | None) -> Answer:
        async with aclosing(self._texts(assembly, on_text is not None)) as texts:
            async for text in texts:
                if text and on_text is not None:
                    self.has_told = True
                    await on_text(text)
        if not assembly.is_finished:
            raise unfinished(self.asked, is_begun=assembly.is_begun)
        answer = assembly.answer()
        self._prompt_tokens += answer.prompt_tokens
        self._completion_tokens += answer.completion_tokens
        if assembly.is_empty and (answer.incomplete or not self.question.tells_results):
            raise empty(self.asked, answer.incomplete)
        return msgspec.structs.replace(
            answer, prompt_tokens=self._prompt_tokens, completion_tokens=self._completion_tokens
        )

    async def _texts(self, assembly: Assembly, streaming: bool) -> AsyncGenerator[str, None]:
        """The text of an answer as it comes. Nothing that the caller does with it is taken for a failure."""
        try:
            if not (streaming and self.provider.SUPPORTS_COMPLETION_STREAMING):
                yield assembly.whole(await self._send())
                return
            async with aclosing(await self._send(stream=True, stream_options={"include_usage": True})) as chunks:
                async for chunk in chunks:
                    yield assembly.piece(chunk)
        except Exception as error:
            if is_caused_by(error, AnswerTooLongError, AnswerTooLargeError):
                raise too_long(self.asked, self._max_bytes) from error
            raise failed_try(error, self.asked) from error

    async def _send(self, **streaming: Any) -> Any:
        options = dict(self.options)
        offered = [*tools(self.question.offers), *options.pop("tools", [])]
        if offered:
            options["tools"] = offered
        _, name = split(self.question.model)
        return await self.provider.acompletion(name, messages(self.question), **options, **streaming)
