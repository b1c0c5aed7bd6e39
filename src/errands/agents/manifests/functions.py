"""Functions: the capabilities of an agent as the model and the context have them, and the arguments of their calls."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from errands.agents.manifests import schemas
from errands.agents.manifests.documents import Action, Agent, Capability, Descriptor, Document, Mount, Tool
from errands.agents.manifests.findings import Place, quoted, written
from errands.errors import ErrandsError
from errands.policy.steps import StepConfig, capability_name

#: Namespace and name.
Key = tuple[str, str]

#: The key that every input has, and the only parameter that the model has for another agent.
MESSAGE = "message"
#: Backends that provide actions, and the field that makes an action one of them.
DISCOVERING = {"openapi": "operation", "mcp": "tool_name"}
#: Model providers accept function names of this length.
MAX_FUNCTION_NAME = 64
#: Reserved words of CEL.
CEL_RESERVED = frozenset(
    {
        *("as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in"),
        *("let", "loop", "namespace", "null", "package", "return", "true", "var", "void", "while"),
    }
)

#: The message to another agent, as the model sees it.
_QUESTION = {"type": "string", "description": "The question or task for the agent, with all it needs to know."}
_RESOURCE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Characters of the problem with one argument, which repeats its value, and problems that are reported at once.
_MAX_PROBLEM = 200
_MAX_PROBLEMS = 50


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """Something that an agent can call: an action of a tool, or another agent."""

    #: As the model calls it and as `context.capabilities` has it.
    name: str
    target: Literal["tool", "agent", "remote"]
    #: The key among the agent's capabilities: the name of the tool or agent.
    ref: str
    #: The name of the action; None for agents, and for a tool that has only discovered actions.
    action: str | None
    description: str
    #: Every parameter, including those that the model does not see.
    declared: dict[str, schemas.Schema]
    #: CEL for each parameter that the manifest sets instead of the model.
    bindings: dict[str, str]
    #: Whether the model sees it; it does not see what `include` leaves out and what only steps invoke.
    offered: bool = True
    #: Whether it represents everything that a server or an OpenAPI document has; see `discovered_name`.
    discovers: bool = False
    #: The name of a discovered operation on its server; None for an action of the manifest.
    operation: str | None = None

    @property
    def hidden(self) -> set[str]:
        """Return what the model neither sees nor sets: bound parameters, and those of an agent except its message."""
        others = set() if self.target == "tool" else self.declared.keys() - {MESSAGE}
        return others | self.bindings.keys()

    @property
    def parameters(self) -> schemas.Schema:
        """The JSON Schema that the model is given."""
        return schemas.object_of(self.declared, without=self.hidden)

    @property
    def defaults(self) -> dict[str, Any]:
        return schemas.defaults(self.declared)

    def discovered_name(self, operation: str) -> str:
        """Return the function name of a discovered operation, in characters and of a length that models accept."""
        name = capability_name(f"{self.name}_{operation}")
        plain = _NOT_IN_NAMES.sub("_", name)
        return plain if len(plain) <= MAX_FUNCTION_NAME else distinct(plain, name)


# Names


def distinct(plain: str, original: str) -> str:
    """Return the name with a hash of the original, so that two originals do not become one name."""
    mark = hashlib.sha256(original.encode()).hexdigest()[:8]
    return f"{plain[: MAX_FUNCTION_NAME - len(mark) - 1]}_{mark}"


def check_resource_name(name: str, place: Place) -> None:
    # Names become parts of paths below a mount.
    if not _RESOURCE_NAME.fullmatch(name) or ".." in name:
        place.error(
            f"is {quoted(name)}", "use up to 100 of a-z, A-Z, 0-9, '-', '_' and '.', and begin with a letter or a digit"
        )


def check_function_name(name: str, place: Place) -> None:
    if name == "_meta":
        place.error("becomes the function _meta, which is reserved", "rename it")
    elif not _IDENTIFIER.fullmatch(name):
        problem = f"becomes the function {quoted(name)}, which is not a valid function name"
        place.error(problem, "use letters, digits, '-' and '_' only, and begin with a letter")
    elif name in CEL_RESERVED:
        place.error(f"becomes the function {name}, a reserved word of CEL", "rename it")
    elif len(name) > MAX_FUNCTION_NAME:
        problem = f"becomes the function {quoted(name)} of {len(name)} characters; models take {MAX_FUNCTION_NAME}"
        place.error(problem, "use shorter names")


# Tools


def backends(action: Action) -> list[tuple[str, Document]]:
    """Return everything in `execute`; a valid action has exactly one entry."""
    named = ((name, getattr(action.execute, name)) for name in action.execute.__struct_fields__)
    return [(name, document) for name, document in named if document is not None]


def backend(tool: Tool, action: Action) -> tuple[str, Document]:
    """Return the backend of an action and its configuration, merged with what the tool says for all actions."""
    [(name, own)] = backends(action)
    shared = getattr(tool, name, None)
    return name, own if shared is None else _merged(shared, own)


def _merged(shared: Document, own: Document) -> Document:
    """Merge headers, variables and requests field by field; the action's own values win."""
    changes: dict[str, Any] = {}
    for name in own.__struct_fields__:
        mine, theirs = getattr(own, name), getattr(shared, name)
        if mine is None:
            changes[name] = theirs
        elif isinstance(mine, dict) and isinstance(theirs, dict) and name != "body":
            changes[name] = {**theirs, **mine}
        elif isinstance(mine, Document) and isinstance(theirs, Document):
            changes[name] = _merged(theirs, mine)
    return msgspec.structs.replace(own, **changes)


def _discovers(tool: Tool, action: Action) -> bool:
    """Return whether the action represents everything its server has."""
    if len(backends(action)) != 1:
        return False
    name, document = backend(tool, action)
    return name in DISCOVERING and getattr(document, DISCOVERING[name]) is None


def is_discovering(tool: Tool) -> bool:
    """Return whether some of the tool's actions are only known when it runs."""
    return not tool.actions or any(_discovers(tool, action) for action in tool.actions)


def declared_by(tool: Tool, action: Action | None) -> dict[str, schemas.Schema]:
    own = schemas.properties(action.parameters) if action else {}
    return {**schemas.properties(tool.parameters), **own}


def tool_functions(ref: str, tool: Tool, capability: Capability, *, offered: bool = True) -> list[Function]:
    """Return the functions of a tool. The number of its actions decides the names, so `include` renames nothing."""
    functions = []
    actions: Sequence[Action | None] = tool.actions or [None]
    for action in actions:
        declared = declared_by(tool, action)
        discovers = action is None or _discovers(tool, action)
        is_included = capability.include is None or action is None or action.name in capability.include
        bindings = capability.bindings or {}
        functions.append(
            Function(
                name=capability_name(f"{ref}_{action.name}" if action and len(tool.actions) > 1 else ref),
                target="tool",
                ref=ref,
                action=action.name if action else None,
                description=(action or tool).description,
                declared=declared,
                bindings={name: source for name, source in bindings.items() if discovers or name in declared},
                offered=offered and (is_included or (discovers and capability.include != [])),
                discovers=discovers,
            )
        )
    return functions


# All documents of one load


class Manifests:
    """The agents, tools and mount of one load. `load` returns only what is valid as a whole."""

    def __init__(self) -> None:
        #: Agents and tools, which share their names, and their places.
        self.named: dict[Key, Agent | Tool] = {}
        self.places: dict[Key, Place] = {}
        self.mount: Mount | None = None
        self.descriptors: list[Descriptor] = []
        #: Whether everything could be read. If not, what seems to be missing may be in an unreadable file, for which
        #: there is an error anyway.
        self.is_complete = True

    @property
    def agents(self) -> list[Agent]:
        return [document for document in self.named.values() if isinstance(document, Agent)]

    @property
    def tools(self) -> list[Tool]:
        return [document for document in self.named.values() if isinstance(document, Tool)]

    def find(self, agent: Agent, name: str) -> Agent | Tool | None:
        """Return a tool or another agent of the agent's namespace."""
        return self.named.get((agent.namespace, name))

    def place(self, document: Agent | Tool) -> Place:
        return self.places[document.namespace, document.name]

    def capability_functions(self, agent: Agent, ref: str, capability: Capability) -> list[Function]:
        """Return the functions of one capability; none if it names nothing that exists."""
        other = None if capability.url is not None else self.find(agent, ref)
        if isinstance(other, Tool):
            return tool_functions(ref, other, capability)
        if other is None and capability.url is None:
            return []
        # Of a remote agent only the bound parameters are known.
        bindings = dict(capability.bindings or {})
        declared = schemas.properties(other.parameters) if other else {name: {} for name in bindings}
        return [
            Function(
                name=capability_name(ref),
                target="agent" if other else "remote",
                ref=ref,
                action=None,
                description=other.description if other else f"Asks the agent {ref}.",
                declared={**declared, MESSAGE: _QUESTION},
                bindings=bindings,
            )
        ]

    def functions(self, agent: Agent) -> list[Function]:
        """Return all functions of an agent that have a record on the context, including those hidden from the model."""
        found = [
            function
            for ref, capability in agent.capabilities.items()
            for function in self.capability_functions(agent, ref, capability)
        ]
        invoked = {step.invoke.partition(":")[0] for step in steps_of(agent) if step.invoke}
        for name in sorted(invoked - agent.capabilities.keys()):
            if isinstance(tool := self.find(agent, name), Tool):
                found += tool_functions(name, tool, Capability(), offered=False)
        return found


def steps_of(agent: Agent) -> Iterator[StepConfig]:
    """Yield every step of an agent."""
    yield from agent.guardrails.before or []
    yield from agent.guardrails.after or []
    for capability in agent.capabilities.values():
        for steps in (capability.before_first, capability.before, capability.after):
            yield from steps or []


# Arguments: a binding wins over the model's value, and that over a default


class ArgumentsError(ErrandsError):
    """The values are invalid. The message may be shown to the model and contains no bound value."""


class Arguments:
    """Resolves the arguments of a function. Made once, used for every call."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._values = _Values(function.declared)

    async def resolve(self, given: Mapping[str, Any], bound: Mapping[str, Any]) -> dict[str, Any]:
        """Return all arguments, `given` by the model and `bound` by the manifest. Raises `ArgumentsError`."""
        function = self._function
        free = {name: value for name, value in given.items() if name not in function.hidden}
        values = {**function.defaults, **free, **bound}
        if not function.discovers:
            await self._values.check(values, secret=bound.keys())
        return values


class Inputs:
    """Resolves the inputs of an agent. Made once, used for every input."""

    def __init__(self, agent: Agent) -> None:
        declared = schemas.properties(agent.parameters)
        self._defaults = schemas.defaults(declared)
        others = {name: parameter for name, parameter in declared.items() if name != MESSAGE}
        #: The schema of what an input has beside its message.
        self.schema = schemas.object_of(others)
        self._values = _Values(others)

    async def resolve(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the input, which has a message, with its defaults. Raises `ArgumentsError`."""
        values = {**self._defaults, **given}
        message = values.pop(MESSAGE, None)
        if not message:
            raise ArgumentsError("message: is missing, and the agent has no default for it")
        await self._values.check(values)
        return {MESSAGE: message, **values}


class _Values:
    def __init__(self, declared: dict[str, schemas.Schema]) -> None:
        schema = schemas.object_of(declared)
        self._required: list[str] = schema["required"]
        self._parameters = schemas.Parameters(schema["properties"])
        self._declared = declared

    async def check(self, values: dict[str, Any], secret: Collection[str] = ()) -> None:
        problems = [f"{name}: is missing" for name in self._required if name not in values]
        problems += [f"{name[:80]}: is unknown" for name in values if name not in self._declared]
        try:
            found = await self._parameters.problems(values)
        except schemas.ValidationStoppedError as error:
            raise ArgumentsError(str(error)) from None
        for name, problem in found:
            if name in secret:
                problems.append(f"{name}: the bound value is invalid")
            else:
                problems.append(f"{written((name, *problem.path))}: {problem.message[:_MAX_PROBLEM]}")
        if problems:
            raise ArgumentsError("; ".join(problems[:_MAX_PROBLEMS]))
