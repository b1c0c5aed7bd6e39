"""From whatever was handed to `A2AServer(executor=…)` to an executor of ours."""

from __future__ import annotations

from errands.errors import ConfigurationError
from errands.interop.executor import SdkExecutor
from errands.interop.generations import Generation, generation_of_executor
from errands.interop.sdk import Sdk
from errands.runtime.executor import AgentExecutor
from errands.runtime.worker import Worker


def adapt(executor: object) -> AgentExecutor:
    """The executor itself when it is one of ours, wrapped when it is the SDK's. Raises `ConfigurationError`."""
    if isinstance(executor, AgentExecutor):
        return executor
    generation = generation_of_executor(executor)
    if generation is not None:
        return SdkExecutor(executor, _sdk(generation))
    raise ConfigurationError(f"executor must be an instance of AgentExecutor, errands' own or a2a's: {_why(executor)}")


def _sdk(generation: Generation) -> Sdk:
    # Only one of them can be imported: it is the generation that is installed.
    if generation is Generation.V1:
        from errands.interop.v1 import SDK  # noqa: PLC0415
    else:
        from errands.interop.v0_3 import SDK  # noqa: PLC0415
    return SDK


def _why(executor: object) -> str:
    if isinstance(executor, type):
        return f"{executor.__name__} is a class; pass {executor.__name__}()"
    name = type(executor).__name__
    if isinstance(executor, Worker):
        return f"{name} is a Worker; pass it as worker="
    if callable(getattr(executor, "execute", None)):
        return f"{name} has an execute method but does not derive from AgentExecutor"
    return f"{name} is none"
