"""`@agent`: makes an agent of a plain function."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any, overload

import msgspec

from errands.errors import ConfigurationError
from errands.model.card_config import AgentCardConfig, CapabilitiesConfig
from errands.runtime.context import TaskContext, read_as
from errands.runtime.handler import BlockingTaskContext
from errands.runtime.worker import Worker

Function = Callable[..., Any]


class FunctionWorker(Worker):
    """Calls a function with what its parameters ask for, and ends the turn with what it returns.

    A parameter annotated `TaskContext` gets the context, one annotated `str` or not at all the user's text, one of
    any other type the message's first JSON value as that type. A string becomes a text artifact, any other value
    a JSON artifact, None an empty completion; a generator is streamed. A function that takes the context may end
    the turn itself.
    """

    def __init__(self, function: Function, agent_card: AgentCardConfig) -> None:
        self._function = function
        self.agent_card = agent_card
        self._parameters = _parameters(function)
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, in tests and in other code."""
        return self._function(*args, **kwargs)

    async def handle(self, ctx: TaskContext) -> None:
        result = self._function(**self._arguments(ctx))
        if inspect.isasyncgen(result):
            artifact = ctx.artifact(artifact_id="answer")
            async for chunk in result:
                await (artifact.write(chunk) if isinstance(chunk, str) else artifact.write(data=chunk))
            result = None
            if not ctx.turn_ended:
                await artifact.seal()
        else:
            result = await result
        if ctx.turn_ended:
            return
        if result is None or isinstance(result, str):
            await ctx.complete(result)
        else:
            await ctx.complete_json(msgspec.to_builtins(result))

    def _arguments(self, ctx: TaskContext) -> dict[str, Any]:
        return {name: _argument(kind, ctx) for name, kind in self._parameters.items()}


class BlockingFunctionWorker(FunctionWorker):
    """Does the same for a `def`, which runs in a thread."""

    def handle(self, ctx: Any) -> None:  # type: ignore[override]
        result = self._function(**self._arguments(ctx))
        if inspect.isgenerator(result):
            artifact = ctx.artifact(artifact_id="answer")
            for chunk in result:
                if isinstance(chunk, str):
                    artifact.write(chunk)
                else:
                    artifact.write(data=chunk)
            result = None
            if not ctx.turn_ended:
                artifact.seal()
        if ctx.turn_ended:
            return
        if result is None or isinstance(result, str):
            ctx.complete(result)
        else:
            ctx.complete_json(msgspec.to_builtins(result))


@overload
def agent(function: Function, **card: Any) -> FunctionWorker: ...
@overload
def agent(
    function: None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    version: str = "1.0.0",
    streaming: bool = True,
    **card: Any,
) -> Callable[[Function], FunctionWorker]: ...
def agent(
    function: Function | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    version: str = "1.0.0",
    streaming: bool = True,
    **card: Any,
) -> FunctionWorker | Callable[[Function], FunctionWorker]:
    """Make a function an agent. Other keyword arguments are those of `AgentCardConfig`.

    Raise `ConfigurationError` for a parameter that cannot be given a value, such as `*args`.
    """

    def decorate(function: Function) -> FunctionWorker:
        config = AgentCardConfig(
            name=name or function.__name__.replace("_", " "),
            description=description or inspect.getdoc(function) or f"The function {function.__name__}.",
            version=version,
            **{"capabilities": CapabilitiesConfig(streaming=streaming), **card},
        )
        is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        return (FunctionWorker if is_async else BlockingFunctionWorker)(function, config)

    return decorate if function is None else decorate(function)


def _parameters(function: Function) -> dict[str, Any]:
    hints = typing.get_type_hints(function)
    kinds: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigurationError(
                f"{function.__name__}: the parameters of an agent must be plain names, not {parameter}"
            )
        kinds[parameter.name] = hints.get(parameter.name, str)
    return kinds


def _argument(kind: Any, ctx: TaskContext) -> Any:
    if kind in (TaskContext, BlockingTaskContext):
        return ctx
    if kind is str:
        return ctx.user_text
    return read_as(ctx, kind)
