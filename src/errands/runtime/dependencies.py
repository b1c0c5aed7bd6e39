"""Dependencies of workers: a container whose values may have a lifecycle."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

logger = logging.getLogger(__name__)


class Dependency(ABC):
    """A resource that is opened before the first request and closed after the last."""

    @abstractmethod
    async def startup(self) -> None:
        """Open it. An exception keeps the server from starting."""

    @abstractmethod
    async def shutdown(self) -> None:
        """Close it. An exception is logged."""


class DependencyContainer:
    """Values by type or by name: `ctx.deps[Database]`, which raises `KeyError`, and `ctx.deps.get("api_key")`."""

    def __init__(self, registry: Mapping[Any, Any] | None = None) -> None:
        self._registry: dict[Any, Any] = dict(registry or {})
        self._started: AsyncExitStack | None = None

    def __getitem__(self, key: Any) -> Any:
        try:
            return self._registry[key]
        except KeyError:
            known = ", ".join(getattr(k, "__name__", repr(k)) for k in self._registry) or "none"
            name = getattr(key, "__name__", repr(key))
            raise KeyError(f"no dependency {name}; registered: {known}") from None

    def __contains__(self, key: Any) -> bool:
        return key in self._registry

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value, or `default` if the key is not registered."""
        return self._registry.get(key, default)

    async def startup(self) -> None:
        """Start every `Dependency` in order. If one fails, those already started are shut down again."""
        if self._started is not None:
            return
        async with AsyncExitStack() as stack:
            for value in self._registry.values():
                if isinstance(value, Dependency):
                    await value.startup()
                    stack.push_async_callback(_shut_down, value)
            self._started = stack.pop_all()

    async def shutdown(self) -> None:
        """Shut down in reverse order. One that fails is logged and does not keep the others open."""
        stack, self._started = self._started, None
        if stack is not None:
            await stack.aclose()


async def _shut_down(dependency: Dependency) -> None:
    try:
        await dependency.shutdown()
    except Exception:
        logger.exception("%s did not shut down", type(dependency).__name__)
