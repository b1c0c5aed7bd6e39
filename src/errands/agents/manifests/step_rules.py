"""What the steps of capabilities and guardrails must be like."""

from __future__ import annotations

from errands.agents.manifests import schemas
from errands.agents.manifests.documents import Action, Agent, Capability, Tool
from errands.agents.manifests.expressions import Check, Role, check_expression
from errands.agents.manifests.findings import Place, quoted, suggestion
from errands.agents.manifests.functions import declared_by, is_discovering
from errands.agents.manifests.library import Library
from errands.agents.manifests.templates import check_template
from errands.agents.manifests.tool_rules import needs_mount
from errands.policy.cel import Scope
from errands.policy.steps import Phase, StepConfig


class StepForm:
    """The rules for steps that stand anywhere."""

    def __init__(self, check: Check) -> None:
        self._check = check

    def scope(self, phase: Phase) -> Scope:
        """What the expressions of a phase may use."""
        return phase.scope

    def check(self, steps: list[StepConfig] | None, phase: Phase, place: Place) -> None:
        for index, step in enumerate(steps or []):
            self._check_step(step, phase, place / index)

    def _check_step(self, step: StepConfig, phase: Phase, place: Place) -> None:
        scope = self.scope(phase)
        check_expression(step.assert_, scope, self._check, place / "assert", "assert")
        check_expression(step.condition, scope, self._check, place / "condition", "condition")
        role: Role = "map" if phase.subject == "input" else "value"
        check_expression(step.transform, scope, self._check, place / "transform", role)
        if step.error_message is not None:
            check_template(step.error_message, scope, {}, self._check, place / "error_message")
        for key, source in (step.bindings or {}).items():
            check_expression(source, scope, self._check, place / "bindings" / key)
        if phase.guards:
            self._check_guardrail(step, place)
        self._check_doing(step, place)

    def _check_guardrail(self, step: StepConfig, place: Place) -> None:
        if step.on_fail == "block":
            remedy = "write lock_task, which is the default, or continue"
            (place / "on_fail").error("is block, and a guardrail has no call to block", remedy)
        if step.match is not None:
            (place / "match").error("means nothing in a guardrail", "take it away, or use condition")

    def _check_doing(self, step: StepConfig, place: Place) -> None:
        said = {"assert": step.assert_, "invoke": step.invoke, "transform": step.transform}
        found = [name for name, value in said.items() if value is not None]
        if not found and place.is_wrong_inside:
            return None
        if len(found) != 1:
            problem = f"has {' and '.join(found)}" if found else "has none of assert, invoke and transform"
            return place.error(problem, "write exactly one of assert, invoke and transform in each step")
        if step.invoke is not None:
            return self.check_invoke(step.invoke, step.bindings or {}, place)
        if step.bindings is not None:
            return (place / "bindings").error(f"means nothing beside {found[0]}", "take it away, or use invoke")
        return None

    def check_invoke(self, invoke: str, bindings: dict[str, str], place: Place) -> None:
        """Says what is wrong with an invoke."""
        raise NotImplementedError


class StepRules(StepForm):
    """The rules for the steps of one agent."""

    def __init__(self, agent: Agent, library: Library, check: Check) -> None:
        super().__init__(check)
        self._agent = agent
        self._library = library

    def check_invoke(self, invoke: str, bindings: dict[str, str], place: Place) -> None:
        name, colon, action_name = invoke.partition(":")
        if not colon or not name or not action_name:
            return (place / "invoke").error(f"is {quoted(invoke)}", "write TOOL:ACTION, such as crm:find-customer")
        tool = self._library.tool(self._agent, name)
        if tool is None:
            if self._library.is_complete:
                tools = [tool for namespace, tool in self._library.tools if namespace == self._agent.namespace]
                problem = f"names {quoted(name)}, which is no tool of the namespace"
                (place / "invoke").error(problem, suggestion(name, tools, "load the tool, too"))
            return None
        action = action_of(tool, action_name)
        if action is None and not is_discovering(tool):
            problem = f"names {quoted(action_name)}, which is no action of {name}"
            names = [action.name for action in tool.actions]
            return (place / "invoke").error(problem, suggestion(action_name, names, "change the name"))
        return self._check_arguments(tool, action, bindings, place)

    def _check_arguments(self, tool: Tool, action: Action | None, bindings: dict[str, str], place: Place) -> None:
        """Nobody but the manifest can give what an invoked action needs."""
        if action is None:
            return
        if self._agent.mount == "none" and needs_mount(tool, action):
            problem = f"uses files, as {tool.name}:{action.name} does, and the agent's mount is none"
            (place / "invoke").error(problem, "add mount: task")
        declared = declared_by(tool, action)
        check_declared(bindings, declared, tool, place / "bindings")
        given = bindings.keys() | (self._agent.capabilities.get(tool.name, Capability()).bindings or {}).keys()
        for name, parameter in declared.items():
            if name not in given and (schemas.is_required(parameter) or schemas.needs_binding(parameter)):
                remedy = f"add bindings: {{{name}: input.{name}}}, or what it should be"
                (place / "bindings").error(f"lacks {name}, which {tool.name} needs and nobody else gives", remedy)


def action_of(tool: Tool, name: str) -> Action | None:
    return next((action for action in tool.actions if action.name == name), None)


def check_declared(bindings: dict[str, str], declared: dict[str, schemas.Schema], tool: Tool, place: Place) -> None:
    """Only what a tool declares can be bound; what it discovers when it runs is checked then."""
    if is_discovering(tool):
        return
    for name in bindings:
        if name not in declared:
            problem = f"is no parameter of {tool.name}"
            (place / name).error(problem, suggestion(name, declared, "take it away, or declare it there"))
