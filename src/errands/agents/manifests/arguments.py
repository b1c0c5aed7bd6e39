"""What a function is called with, and what an agent is given: values, bindings and defaults put together and checked.

The order is that of the specification: a binding wins over what the model says, and that over a default.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

from errands.agents.manifests import schemas
from errands.agents.manifests.documents import Agent
from errands.agents.manifests.extra import from_extra
from errands.agents.manifests.findings import Path, written
from errands.agents.manifests.functions import MESSAGE, Function
from errands.errors import ErrandsError

Values = dict[str, Any]

#: Of what is wrong with one value; it repeats the value.
_LONGEST = 200


class ArgumentsError(ErrandsError):
    """The values do not fit; the message may be shown to the model, and has no bound value in it."""


class Arguments:
    """The arguments of a function. Made once, used for every call."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._schema = _Schema(function.arguments)

    def resolve(self, given: Mapping[str, Any], bound: Mapping[str, Any]) -> Values:
        """All arguments; `given` by the model, `bound` by evaluating the bindings. Raises `ArgumentsError`."""
        function = self._function
        free = {name: value for name, value in given.items() if name not in function.hidden}
        values = {**function.defaults, **free, **bound}
        if not function.discovers:
            self._schema.check(values, secret=bound.keys())
        return values


class Inputs:
    """The inputs of an agent. Made once, used for every input."""

    def __init__(self, agent: Agent) -> None:
        declared = schemas.properties(agent.parameters)
        self._defaults = schemas.defaults(declared)
        #: Of what an input has beside its message.
        self.schema = schemas.object_of(declared, without=[MESSAGE])
        self._schema = _Schema(self.schema)

    def resolve(self, given: Mapping[str, Any]) -> Values:
        """The input with its defaults; it has a message. Raises `ArgumentsError`."""
        values = {**self._defaults, **given}
        message = values.pop(MESSAGE, None)
        if not message:
            raise ArgumentsError("message: is missing, and the agent has no default for it")
        self._schema.check(values)
        return {MESSAGE: message, **values}


class _Schema:
    def __init__(self, schema: schemas.Schema) -> None:
        self._source = schema

    @cached_property
    def _validator(self) -> Any:
        return from_extra("jsonschema").Draft202012Validator(self._source)

    def check(self, values: Values, secret: Collection[str] = ()) -> None:
        missing = [name for name in self._source["required"] if name not in values]
        unknown = [name for name in values if name not in self._source["properties"]]
        problems = [f"{name}: is missing" for name in missing] + [f"{name[:80]}: is unknown" for name in unknown]
        errors = self._validator.iter_errors(values)
        # Without a path it is about what is missing or unknown, and that was told.
        problems += [
            _told(tuple(error.absolute_path), error.message, secret) for error in errors if error.absolute_path
        ]
        if problems:
            raise ArgumentsError("; ".join(problems))


def _told(path: Path, problem: str, secret: Collection[str]) -> str:
    if path[0] in secret:
        return f"{path[0]}: has a binding whose value does not fit"
    return f"{written(path)}: {problem[:_LONGEST]}"
