"""What a function is called with, and what an agent is given: values, bindings and defaults put together and checked.

The order is that of the specification: a binding wins over what the model says, and that over a default.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from errands.agents.manifests import schemas
from errands.agents.manifests.documents import Agent
from errands.agents.manifests.findings import written
from errands.agents.manifests.functions import MESSAGE, Function
from errands.agents.manifests.validation import Parameters, Problem, ValidationStoppedError
from errands.errors import ErrandsError

Values = dict[str, Any]

#: Of what is wrong with one value; it repeats the value.
_LONGEST = 200
#: Problems that are told at once.
_MOST = 50


class ArgumentsError(ErrandsError):
    """The values do not fit; the message may be shown to the model, and has no bound value in it."""


class Arguments:
    """The arguments of a function. Made once, used for every call."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._schema = _Schema(function.arguments)

    async def resolve(self, given: Mapping[str, Any], bound: Mapping[str, Any]) -> Values:
        """All arguments; `given` by the model, `bound` by evaluating the bindings. Raises `ArgumentsError`."""
        function = self._function
        free = {name: value for name, value in given.items() if name not in function.hidden}
        values = {**function.defaults, **free, **bound}
        if not function.discovers:
            await self._schema.check(values, secret=bound.keys())
        return values


class Inputs:
    """The inputs of an agent. Made once, used for every input."""

    def __init__(self, agent: Agent) -> None:
        declared = schemas.properties(agent.parameters)
        self._defaults = schemas.defaults(declared)
        #: Of what an input has beside its message.
        self.schema = schemas.object_of(declared, without=[MESSAGE])
        self._schema = _Schema(self.schema)

    async def resolve(self, given: Mapping[str, Any]) -> Values:
        """The input with its defaults; it has a message. Raises `ArgumentsError`."""
        values = {**self._defaults, **given}
        message = values.pop(MESSAGE, None)
        if not message:
            raise ArgumentsError("message: is missing, and the agent has no default for it")
        await self._schema.check(values)
        return {MESSAGE: message, **values}


class _Schema:
    def __init__(self, schema: schemas.Schema) -> None:
        self._required: list[str] = schema["required"]
        self._declared: dict[str, schemas.Schema] = schema["properties"]
        self._parameters = Parameters(self._declared)

    async def check(self, values: Values, secret: Collection[str] = ()) -> None:
        problems = [f"{name}: is missing" for name in self._required if name not in values]
        problems += [f"{name[:80]}: is unknown" for name in values if name not in self._declared]
        try:
            found = await self._parameters.problems(values)
        except ValidationStoppedError as error:
            raise ArgumentsError(str(error)) from None
        problems += [_told(name, problem, secret) for name, problem in found]
        if problems:
            raise ArgumentsError("; ".join(problems[:_MOST]))


def _told(name: str, problem: Problem, secret: Collection[str]) -> str:
    if name in secret:
        return f"{name}: has a binding whose value does not fit"
    return f"{written((name, *problem.path))}: {problem.message[:_LONGEST]}"
