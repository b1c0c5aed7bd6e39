"""From what was handed to `A2AServer(executor=…, request_context_builder=…)` to ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any, Protocol

from errands.errors import ConfigurationError
from errands.interop.executor import SdkExecutor
from errands.interop.generations import Generation, generation_of_executor, is_builder, is_store
from errands.interop.sdk import Sdk
from errands.runtime.executor.agent import AgentExecutor
from errands.runtime.executor.request import RequestContextBuilder, SimpleRequestContextBuilder
from errands.runtime.worker import Worker

#: Only one of them can be imported: that of the generation that is installed.
_MODULES = {Generation.V1: "errands.interop.v1", Generation.V0_3: "errands.interop.v0_3"}


class Executor(Protocol):
    """What can be handed over: our AgentExecutor and the SDK's are written alike."""

    async def execute(self, context: Any, event_queue: Any, /) -> None: ...
    async def cancel(self, context: Any, event_queue: Any, /) -> Any: ...


class Builder(Protocol):
    """What can be handed over: the build methods of our RequestContextBuilder and the SDK's are called alike."""

    @property
    def build(self) -> Callable[..., Awaitable[Any]]: ...


def is_executor_class(cls: type) -> bool:
    """Whether its objects can be handed over."""
    return issubclass(cls, AgentExecutor) or generation_of_executor(cls) is not None


def adapt(executor: object, builder: object = None) -> tuple[AgentExecutor, RequestContextBuilder]:
    """Return the executor and the request context builder as ours; those of the SDK are wrapped.

    An SDK's builder is called by the wrapped executor with the SDK's own types. Raises `ConfigurationError`.
    """
    if isinstance(executor, AgentExecutor):
        if is_builder(builder):
            raise ConfigurationError(
                f"request_context_builder={_named(builder)} is of the a2a package and {_named(executor)} is not: use "
                "errands.SimpleRequestContextBuilder or a subclass of errands.RequestContextBuilder"
            )
        return executor, _our_builder(builder)
    generation = generation_of_executor(type(executor))
    if generation is None:
        raise ConfigurationError(
            "executor must be an instance of a2a's AgentExecutor or of errands.AgentExecutor, "
            f"not {_described(executor)}"
        )
    sdk = _sdk(generation)
    if is_builder(builder):
        return SdkExecutor(executor, sdk, builder), sdk.around(builder)
    return SdkExecutor(executor, sdk), _our_builder(builder)


def _our_builder(builder: object) -> RequestContextBuilder:
    if builder is None:
        return SimpleRequestContextBuilder()
    if not isinstance(builder, RequestContextBuilder):
        raise ConfigurationError(
            "request_context_builder must be an instance of errands.RequestContextBuilder or, with an executor of the "
            f"a2a package, of a2a's RequestContextBuilder, not {_named(builder)}"
        )
    if isinstance(builder, SimpleRequestContextBuilder) and is_store(builder.task_store):
        raise ConfigurationError(
            f"task_store={_named(builder.task_store)} is of the a2a package and holds its types: leave task_store out "
            "to find the caller's tasks on this server, or use a2a's SimpleRequestContextBuilder"
        )
    return builder


def _sdk(generation: Generation) -> Sdk:
    sdk: Sdk = import_module(_MODULES[generation]).SDK
    return sdk


def _named(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}; pass {value.__name__}()"
    return type(value).__name__


def _described(executor: object) -> str:
    if isinstance(executor, type):
        return _named(executor)
    name = type(executor).__name__
    if isinstance(executor, Worker):
        return f"{name}, which is a Worker; pass it as worker="
    if callable(getattr(executor, "execute", None)):
        return f"{name}, which has an execute method but derives from neither"
    return name
