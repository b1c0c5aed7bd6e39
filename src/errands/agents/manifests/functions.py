"""Functions: what an agent's capabilities are to the model, and on the context."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from errands.agents.manifests import schemas
from errands.agents.manifests.documents import Action, Agent, Capability, Document, Tool
from errands.agents.manifests.names import fitting, function_name
from errands.policy.steps import capability_name

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
