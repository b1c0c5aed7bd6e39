"""Python functions as tools.

    @tool
    async def find_order(number: str) -> dict[str, str]:
        "Finds an order by its number."

Manifests that are loaded with it, as in `load(path, tools=[find_order])`, name such a tool like any other. Its
parameters come from the signature. An error that the model should see is a `ToolError`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import re
import secrets
import typing
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, overload

import msgspec

from errands.agents.manifests.documents import TOOL_KIND, Action, Programmed, Python, Tool
from errands.agents.manifests.schemas import Schema, written_out
from errands.agents.tools.base import Backend, BrokenToolError, Invocation, ToolError, configuration
from errands.errors import ConfigurationError
from errands.policy.cel import Suspended
from errands.policy.cel.values import Json

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

#: `number: Description.`, also as `number (str): ...` and `:param number: ...`.
_DESCRIBED = re.compile(r"(?P<indent>\s*)(?::param\s+)?(?P<name>\w+)\s*(?:\([^)]*\))?:\s+(?P<text>\S.*)")


class PythonTool(Generic[P, R]):
    """A function that agents may call. Python code can still call it as before."""

    def __init__(self, function: Callable[P, R], *, name: str | None, synchronous: bool) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        #: Where it is defined, for messages.
        self.origin = f"{function.__module__}.{function.__qualname__}"
        self._signature = inspect.signature(function)
        try:
            types = typing.get_type_hints(function, include_extras=True)
        except NameError as error:
            raise self._refusal(f"{error}; types must be known where the function is defined") from None
        #: The parameters that errands sets, and a struct with those that the model sets.
        self._invocations: list[str] = []
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        for key, parameter in self._signature.parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise self._refusal(f"{parameter} cannot be described to a model; name every parameter")
            if key not in types:
                raise self._refusal(f"the parameter {key} has no type; add one, such as {key}: str")
            default: Any = parameter.default
            if types[key] is Invocation:
                self._invocations.append(key)
            elif default is inspect.Parameter.empty:
                fields.append((key, types[key]))
            elif isinstance(default, list | dict | set):
                fields.append((key, types[key], msgspec.field(default_factory=default.copy)))
            else:
                fields.append((key, types[key], default))
        self._arguments = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        try:
            parameters = _parameters(self._arguments, _descriptions(function, types))
        except (TypeError, ValueError) as error:
            raise self._refusal(f"its parameters cannot be described to a model: {error}") from None
        description = (inspect.getdoc(self) or "").strip().partition("\n")[0]
        if not description:
            raise self._refusal("the function has no docstring, which describes it to the model; add one")
        name = name or function.__name__
        action = Action(name, description, Programmed(python=Python(self)), {"properties": parameters})
        #: As manifests have tools; `load` sets its namespace.
        self.document = Tool(TOOL_KIND, "", name, description, synchronous=synchronous, actions=[action])

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def _refusal(self, problem: str) -> ConfigurationError:
        return ConfigurationError(f"{self.origin}: {problem}")

    async def run(self, invocation: Invocation) -> Json:
        """Call the function for an agent. Raises `ToolError` and `BrokenToolError`."""
        try:
            values = msgspec.convert(invocation.arguments, self._arguments)
        except msgspec.ValidationError as error:
            raise ToolError(str(error)) from None
        call = self._signature.bind_partial()
        for name in self._signature.parameters:
            call.arguments[name] = invocation if name in self._invocations else getattr(values, name)

        def in_thread() -> Any:
            try:
                return self._function(*call.args, **call.kwargs)
            except StopIteration as error:
                # A future cannot carry it and would never be done.
                raise RuntimeError("the tool raised StopIteration") from error

        try:
            if inspect.iscoroutinefunction(self._function):
                result = await self._function(*call.args, **call.kwargs)
            else:
                result = await asyncio.to_thread(in_thread)
            # Through JSON, so that the model sees what the log will have.
            return msgspec.json.decode(msgspec.json.encode(result))
        except (ToolError, BrokenToolError, Suspended):
            raise
        except (Exception, SystemExit) as error:
            reference = secrets.token_hex(4)
            logger.error("the tool %s failed [%s]", self.origin, reference, exc_info=error)
            raise ToolError(f"{self.document.name} failed (reference {reference})") from None


@overload
def tool(function: Callable[P, R], /) -> PythonTool[P, R]: ...


@overload
def tool(*, name: str | None = None, synchronous: bool = False) -> Callable[[Callable[P, R]], PythonTool[P, R]]: ...


def tool(function: Callable[..., Any] | None = None, /, *, name: str | None = None, synchronous: bool = False) -> Any:
    """Make a tool of a function, sync (it runs in a thread) or async. Raises `ConfigurationError`.

    A parameter of the type `Invocation` is set by errands and not by the model.
    """
    if function is None:
        return functools.partial(tool, name=name, synchronous=synchronous)
    return PythonTool(function, name=name, synchronous=synchronous)


class PythonBackend(Backend):
    """Runs Python functions."""

    async def invoke(self, invocation: Invocation) -> Json:
        return await configuration(self.equipment.tool, invocation.action, Python).tool.run(invocation)


def _parameters(struct: type[msgspec.Struct], descriptions: dict[str, str]) -> dict[str, Schema]:
    root = msgspec.json.schema(struct)
    declared: dict[str, Schema] = written_out(root, root).get("properties", {})
    for field in msgspec.structs.fields(struct):
        schema = declared[field.name]
        if not field.required:
            default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
            plain = msgspec.to_builtins(default, str_keys=True)
            # The order of sets differs between processes.
            is_set = isinstance(default, set | frozenset)
            schema["default"] = sorted(plain, key=msgspec.json.encode) if is_set else plain
        if field.name in descriptions:
            schema.setdefault("description", descriptions[field.name])
    return declared


def _descriptions(function: Callable[..., Any], types: dict[str, Any]) -> dict[str, str]:
    """Return what the docstring says about parameters, in lines that begin with their names."""
    found: dict[str, str] = {}
    current, indent = "", 0
    for line in (inspect.getdoc(function) or "").splitlines()[1:]:
        match = _DESCRIBED.match(line)
        if match is not None and match["name"] in types:
            current, indent = match["name"], len(match["indent"])
            found[current] = match["text"].strip()
        elif current and line.strip() and len(line) - len(line.lstrip()) > indent:
            found[current] += f" {line.strip()}"
        else:
            current = ""
    return found
