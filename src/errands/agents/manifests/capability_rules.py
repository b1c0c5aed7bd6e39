"""What an agent's capabilities must be like: that they name something, and fit it."""

from __future__ import annotations

from errands.agents.manifests import schemas
from errands.agents.manifests.documents import Action, Agent, Capability, Tool
from errands.agents.manifests.expressions import Check, check_expression
from errands.agents.manifests.findings import Place, quoted, suggestion
from errands.agents.manifests.functions import MESSAGE, declared_by, is_discovering
from errands.agents.manifests.library import Library
from errands.agents.manifests.step_rules import StepRules, check_declared
from errands.agents.manifests.tool_rules import check_address, needs_mount
from errands.policy.cel.scopes import binding
from errands.policy.steps import CAPABILITY_PHASES, StepConfig, capability_name

_MISSING = "load it, too; a function in Python is given as A2AServer.from_manifest(..., tools=[...])"


class CapabilityRules:
    """The rules for the capabilities of one agent."""

    def __init__(self, agent: Agent, library: Library, check: Check, steps: StepRules) -> None:
        self._agent = agent
        self._library = library
        self._check = check
        self._steps = steps

    def check(self, ref: str, capability: Capability, place: Place) -> None:
        scope = binding(mount=self._agent.mount != "none")
        for key, source in (capability.bindings or {}).items():
            check_expression(source, scope, self._check, place / "bindings" / key, "binding")
        for phase in CAPABILITY_PHASES:
            self._steps.check(getattr(capability, phase.value), phase, place / phase.value)
        if capability.url is not None:
            self._check_remote(ref, capability, place)
        elif tool := self._library.tool(self._agent, ref):
            self._check_tool(tool, capability, place)
        elif other := self._library.agent(self._agent, ref):
            self._check_agent(other, capability, place)
        elif self._library.is_complete:
            problem = f"is neither a tool nor an agent of the namespace {self._agent.namespace}"
            elsewhere = self._library.namespaces_of(ref)
            remedy = f"{ref} is in {' and '.join(elsewhere)}; put both into one namespace" if elsewhere else ""
            place.error(problem, remedy or suggestion(ref, self._library.names(self._agent), _MISSING))

    # Tools

    def _check_tool(self, tool: Tool, capability: Capability, place: Place) -> None:
        names = [action.name for action in tool.actions]
        if not is_discovering(tool):
            for index, name in enumerate(capability.include or []):
                if name not in names:
                    problem = f"is {quoted(name)}, which is no action of {tool.name}"
                    (place / "include" / index).error(problem, suggestion(name, names, "take it away"))
            self._check_matches(tool, capability, names, place)
        declared = {name: one for action in tool.actions for name, one in declared_by(tool, action).items()}
        check_declared(capability.bindings or {}, declared, tool, place / "bindings")
        self._check_bound(tool, capability.bindings or {}, place)
        for action in tool.actions:
            if self._agent.mount == "none" and needs_mount(tool, action) and _includes(capability, action):
                problem = f"uses files, as {tool.name}:{action.name} does, and the agent's mount is none"
                place.error(problem, "add mount: task")

    def _check_matches(self, tool: Tool, capability: Capability, names: list[str], place: Place) -> None:
        known = set(map(capability_name, names))
        for name, index, step in _steps(capability):
            if step.match is not None and capability_name(step.match) not in known:
                problem = f"is {quoted(step.match)}, which is no action of {tool.name}"
                (place / name / index / "match").error(problem, suggestion(step.match, names, "take it away"))

    def _check_bound(self, tool: Tool, bound: dict[str, str], place: Place) -> None:
        """Require bindings for an agent that uses the tool at all: `include` decides only what the model sees."""
        declared = declared_by(tool, None)
        for action in tool.actions:
            declared.update(declared_by(tool, action))
        for name, parameter in declared.items():
            if schemas.needs_binding(parameter) and name not in bound:
                _lacks_binding(name, tool.name, place)

    # Agents

    def _check_agent(self, other: Agent, capability: Capability, place: Place) -> None:
        self._refuse_actions(other.name, capability, place)
        declared = schemas.properties(other.parameters)
        for name in capability.bindings or {}:
            if name not in declared and name != MESSAGE:
                remedy = suggestion(name, [*declared, MESSAGE], "take it away, or declare it there")
                (place / "bindings" / name).error(f"is no parameter of {other.name}", remedy)
        for name, parameter in declared.items():
            if name == MESSAGE or name in (capability.bindings or {}):
                continue
            if schemas.needs_binding(parameter):
                _lacks_binding(name, other.name, place)
            elif schemas.is_required(parameter):
                problem = f"gives {other.name} no {name}, which it needs; the model can only give it a message"
                place.error(problem, f"add bindings: {{{name}: ...}}, or give it a default there")

    def _check_remote(self, ref: str, capability: Capability, place: Place) -> None:
        check_address(capability.url or "", place / "url")
        if ref in self._library.names(self._agent):
            place.error("has a url, and is a tool or an agent of the namespace, too", "take the url away, or rename it")
        self._refuse_actions(ref, capability, place)

    def _refuse_actions(self, name: str, capability: Capability, place: Place) -> None:
        if capability.include is not None:
            (place / "include").error(f"means nothing, as {name} is an agent and has no actions", "take it away")
        for field, index, step in _steps(capability):
            if step.match is not None:
                problem = f"means nothing, as {name} is an agent and has no actions"
                (place / field / index / "match").error(problem, "take it away")


def _includes(capability: Capability, action: Action) -> bool:
    return capability.include is None or action.name in capability.include


def _steps(capability: Capability) -> list[tuple[str, int, StepConfig]]:
    fields = [phase.value for phase in CAPABILITY_PHASES]
    return [(name, index, step) for name in fields for index, step in enumerate(getattr(capability, name) or [])]


def _lacks_binding(name: str, target: str, place: Place) -> None:
    problem = f"does not bind {name}, and {target} requires it"
    place.error(problem, f"add bindings: {{{name}: ...}} with an expression such as context.user.id")
