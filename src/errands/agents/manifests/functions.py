"""Names: of resources, and of functions as the model calls them and as CEL finds them on the context."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Generic, Literal, TypeVar

import msgspec

from errands.agents.manifests import schemas
from errands.agents.manifests.documents import Action, Agent, Capability, Descriptor, Document, Mount, Tool
from errands.agents.manifests.findings import Place, quoted, written
from errands.agents.manifests.schemas import Parameters, Problem, ValidationStoppedError
from errands.errors import ErrandsError
from errands.policy.steps import StepConfig, capability_name

# names

#: Model providers take no longer function names.
MAX_FUNCTION_NAME = 64

#: What CEL keeps for itself.
CEL_RESERVED = frozenset(
    {
        *("as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in"),
        *("let", "loop", "namespace", "null", "package", "return", "true", "var", "void", "while"),
    }
)

_RESOURCE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_FOREIGN = re.compile(r"[^A-Za-z0-9_]")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def function_name(ref: str, action: str | None = None) -> str:
    """What the model calls; `action` is given for tools that have several."""
    return capability_name(ref if action is None else f"{ref}_{action}")


def fitting(name: str) -> str:
    """A name that nobody checked, in characters and of a length that models take; what was too long stays apart."""
    plain = _FOREIGN.sub("_", name)
    return plain if len(plain) <= MAX_FUNCTION_NAME else distinct(plain, name)


def distinct(plain: str, original: str) -> str:
    """The same name marked by what it was made of, so that two originals do not become one."""
    mark = hashlib.sha256(original.encode()).hexdigest()[:8]
    return f"{plain[: MAX_FUNCTION_NAME - len(mark) - 1]}_{mark}"


def check_resource_name(name: str, place: Place) -> None:
    # Names become parts of paths below a mount.
    if not _RESOURCE.fullmatch(name) or ".." in name:
        place.error(
            f"is {quoted(name)}", "use up to 100 of a-z, A-Z, 0-9, '-', '_' and '.', and begin with a letter or a digit"
        )


def check_function_name(name: str, place: Place) -> None:
    if name == "_meta":
        place.error("becomes the function _meta, which the context keeps for itself", "call it something else")
    elif not _IDENTIFIER.fullmatch(name):
        problem = f"becomes the function {quoted(name)}, which neither models nor CEL can write"
        place.error(problem, "use letters, digits, '-' and '_' only, and begin with a letter")
    elif name in CEL_RESERVED:
        place.error(f"becomes the function {name}, a reserved word of CEL", "call it something else")
    elif len(name) > MAX_FUNCTION_NAME:
        problem = f"becomes the function {quoted(name)} of {len(name)} characters; models take {MAX_FUNCTION_NAME}"
        place.error(problem, "use shorter names")


# functions

#: The well-known key of every input, and the one parameter that the model has for another agent.
MESSAGE = "message"

#: Backends that bring actions, and the field by which an action is one of these.
DISCOVERING = {"openapi": "operation", "mcp": "tool_name"}


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that an agent can do: an action of a tool, or to ask another agent."""

    #: As the model calls it and as `context.capabilities` has it.
    name: str
    target: Literal["tool", "agent", "remote"]
    #: The key among the agent's capabilities: the name of the tool or agent.
    ref: str
    #: The name of the action; None for agents, and for a tool that has only what it discovers.
    action: str | None
    description: str
    #: Every parameter, also those that the model does not see.
    declared: dict[str, schemas.Schema]
    #: CEL for each parameter that is given by the manifest instead of the model.
    bindings: dict[str, str]
    #: Whether the model sees it; what `include` leaves out, and what only steps invoke, it does not see.
    offered: bool = True
    #: Whether it stands for all that a server or an OpenAPI document has; see `discovered_name`.
    discovers: bool = False
    #: What was discovered, by the name it has there; None for an action that is written down.
    operation: str | None = None

    @property
    def hidden(self) -> set[str]:
        """What the model neither sees nor gives: what is bound, and all that an agent takes beside its message."""
        others = set() if self.target == "tool" else self.declared.keys() - {MESSAGE}
        return others | self.bindings.keys()

    @property
    def parameters(self) -> schemas.Schema:
        """The JSON Schema that the model is given."""
        return schemas.object_of(self.declared, without=self.hidden)

    @property
    def arguments(self) -> schemas.Schema:
        """The JSON Schema that a call must fit when bindings and defaults have been filled in."""
        return schemas.object_of(self.declared)

    @property
    def defaults(self) -> dict[str, Any]:
        """The values of parameters that have one without being given."""
        return schemas.defaults(self.declared)

    def discovered_name(self, operation: str) -> str:
        """The function of something that was discovered, in characters and of a length that models take."""
        return fitting(capability_name(f"{self.name}_{operation}"))


# Tools


def backend(tool: Tool, action: Action) -> tuple[str, Document]:
    """What runs an action, by its name in `execute`, with what the tool says about it for all actions."""
    [(name, own)] = backends(action)
    shared = getattr(tool, name, None)
    return name, own if shared is None else _merged(shared, own)


def backends(action: Action) -> list[tuple[str, Document]]:
    """All that stands in `execute`; a valid action has exactly one."""
    named = ((name, getattr(action.execute, name)) for name in action.execute.__struct_fields__)
    return [(name, document) for name, document in named if document is not None]


def _merged(shared: Document, own: Document) -> Document:
    """What the action says wins; headers, variables and requests are merged field by field."""
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


def discovers(tool: Tool, action: Action) -> bool:
    """Whether the action stands for everything its server has."""
    if len(backends(action)) != 1:
        return False
    name, document = backend(tool, action)
    return name in DISCOVERING and getattr(document, DISCOVERING[name]) is None


def is_discovering(tool: Tool) -> bool:
    """Whether some of the tool's actions are only known when it runs."""
    return not tool.actions or any(discovers(tool, action) for action in tool.actions)


def declared_by(tool: Tool, action: Action | None) -> dict[str, schemas.Schema]:
    own = schemas.properties(action.parameters) if action else {}
    return {**schemas.properties(tool.parameters), **own}


def tool_functions(ref: str, tool: Tool, capability: Capability, *, offered: bool = True) -> list[Function]:
    """How many actions the tool declares decides the names, so that `include` does not rename anything."""
    if not tool.actions:
        return [_action_function(ref, tool, None, capability, offered)]
    return [_action_function(ref, tool, action, capability, offered) for action in tool.actions]


def _action_function(ref: str, tool: Tool, action: Action | None, capability: Capability, offered: bool) -> Function:
    declared = declared_by(tool, action)
    discovering = action is None or discovers(tool, action)
    is_included = capability.include is None or action is None or action.name in capability.include
    return Function(
        name=function_name(ref, action.name if action and len(tool.actions) > 1 else None),
        target="tool",
        ref=ref,
        action=action.name if action else None,
        description=(action or tool).description,
        declared=declared,
        bindings={
            name: source for name, source in (capability.bindings or {}).items() if discovering or name in declared
        },
        offered=offered and (is_included or (discovering and capability.include != [])),
        discovers=discovering,
    )


# Agents


def agent_function(ref: str, agent: Agent | None, capability: Capability) -> Function:
    """To ask another agent; None for a remote one: nobody knows its parameters here, so all that is bound is one."""
    message = {"type": "string", "description": "What to ask or tell the agent, with all it needs to know."}
    bound: dict[str, schemas.Schema] = {name: {} for name in capability.bindings or {}}
    declared = schemas.properties(agent.parameters) if agent else bound
    return Function(
        name=function_name(ref),
        target="agent" if agent else "remote",
        ref=ref,
        action=None,
        description=agent.description if agent else f"Asks the agent {ref}.",
        declared={**declared, MESSAGE: message},
        bindings=dict(capability.bindings or {}),
    )


# library

D = TypeVar("D", bound=Document)

#: Namespace and name.
Key = tuple[str, str]


class Loaded(Generic[D]):
    """A document and where it stands."""

    def __init__(self, document: D, place: Place) -> None:
        self.document = document
        self.place = place


class Library:
    def __init__(self) -> None:
        self.agents: dict[Key, Loaded[Agent]] = {}
        self.tools: dict[Key, Loaded[Tool]] = {}
        self.mounts: list[Loaded[Mount]] = []
        self.descriptors: list[Loaded[Descriptor]] = []
        #: Whether everything could be read. If not, there is an error about it, and what seems to be missing may
        #: stand in what could not.
        self.is_complete = True

    def tool(self, agent: Agent, name: str) -> Tool | None:
        """A tool in the agent's namespace."""
        found = self.tools.get((agent.namespace, name))
        return found.document if found else None

    def agent(self, agent: Agent, name: str) -> Agent | None:
        """Another agent in the agent's namespace."""
        found = self.agents.get((agent.namespace, name))
        return found.document if found else None

    def names(self, agent: Agent) -> list[str]:
        """What the agent's capabilities can name."""
        return [name for namespace, name in (*self.tools, *self.agents) if namespace == agent.namespace]

    def namespaces_of(self, name: str) -> list[str]:
        """Where there is something of this name."""
        return sorted({namespace for namespace, known in (*self.tools, *self.agents) if known == name})

    def capability_functions(self, agent: Agent, ref: str, capability: Capability) -> list[Function]:
        """The functions of one capability; none if it names nothing that is there."""
        if capability.url is not None:
            return [agent_function(ref, None, capability)]
        if tool := self.tool(agent, ref):
            return tool_functions(ref, tool, capability)
        if other := self.agent(agent, ref):
            return [agent_function(ref, other, capability)]
        return []

    def functions(self, agent: Agent) -> list[Function]:
        """All that have a record on the context: those of the capabilities, and those that only steps invoke."""
        found = [
            function
            for ref, capability in agent.capabilities.items()
            for function in self.capability_functions(agent, ref, capability)
        ]
        invoked = {step.invoke.partition(":")[0] for step in steps_of(agent) if step.invoke}
        for name in sorted(invoked - agent.capabilities.keys()):
            if tool := self.tool(agent, name):
                found += tool_functions(name, tool, Capability(), offered=False)
        return found


def steps_of(agent: Agent) -> Iterator[StepConfig]:
    """Every step that stands in an agent."""
    yield from agent.guardrails.before or []
    yield from agent.guardrails.after or []
    for capability in agent.capabilities.values():
        for steps in (capability.before_first, capability.before, capability.after):
            yield from steps or []


# arguments

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
