"""The providers of any-llm, made when an agent first names one, and kept: all that concerns keys and addresses."""

from __future__ import annotations

import importlib
import inspect
import os
from typing import Any, Protocol

import httpx

from errands.agents.models.failures import Asked
from errands.agents.models.metering import bound
from errands.errors import ConfigurationError

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
