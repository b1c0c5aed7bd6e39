"""From whatever was handed to `A2AServer(executor=…)` to an executor of ours."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol

from errands.errors import ConfigurationError
from errands.interop.executor import SdkExecutor
from errands.interop.generations import Generation, generation_of_executor
from errands.interop.sdk import Sdk
from errands.runtime.executor.agent import AgentExecutor
from errands.runtime.worker import Worker

#: Only one of them can be imported: that of the generation that is installed.
_MODULES = {Generation.V1: "errands.interop.v1", Generation.V0_3: "errands.interop.v0_3"}


class Executor(Protocol):
    """What can be handed over: our AgentExecutor and the SDK's are written alike."""

    async def execute(self, context: Any, event_queue: Any, /) -> None: ...
    async def cancel(self, context: Any, event_queue: Any, /) -> Any: ...


def is_executor_class(cls: type) -> bool:
    """Whether its objects can be handed over."""
    return issubclass(cls, AgentExecutor) or generation_of_executor(cls) is not None


def adapt(executor: object) -> AgentExecutor:
    """The executor itself when it is one of ours, wrapped when it is the SDK's. Raises `ConfigurationError`."""
    if isinstance(executor, AgentExecutor):
        return executor
    generation = generation_of_executor(type(executor))
    if generation is not None:
        return SdkExecutor(executor, _sdk(generation))
    raise ConfigurationError(
        f"executor must be an instance of a2a's AgentExecutor or of errands.AgentExecutor, not {_described(executor)}"
    )


def _sdk(generation: Generation) -> Sdk:
    sdk: Sdk = import_module(_MODULES[generation]).SDK
    return sdk


def _described(executor: object) -> str:
    if isinstance(executor, type):
        return f"the class {executor.__name__}; pass {executor.__name__}()"
    name = type(executor).__name__
    if isinstance(executor, Worker):
        return f"{name}, which is a Worker; pass it as worker="
    if callable(getattr(executor, "execute", None)):
        return f"{name}, which has an execute method but derives from neither"
    return name
