"""`errands agents show`: agents as their models see them, and what the models do not see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
from rich.text import Text

from errands.agents.manifests import Agent, Capability, Function, Manifests, examine
from errands.cli.agents_validate import ManifestPath, described_limits, tell
from errands.cli.failures import CommandError, reporting
from errands.cli.options import AsJson
from errands.cli.terminal import clean, err, one_line, out, print_json
from errands.policy.limits import with_defaults
from errands.policy.steps import CAPABILITY_PHASES, Phase, StepConfig

#: Space for the names of facts.
_WIDTH = 14


def show_agents(path: ManifestPath, as_json: AsJson = False) -> None:
    """Show agents as their models see them: functions and parameters; and their bindings and policy.

    Example:

        errands agents show examples/support-agent
    """
    with reporting():
        report = examine(path)
        if report.manifests is None:
            tell(report.findings, err())
            raise CommandError(f"{path} cannot be shown, as it is not valid")
        if as_json:
            print_json([_described(agent, report.manifests) for agent in report.manifests.agents])
        else:
            for agent in report.manifests.agents:
                _show(agent, report.manifests)


def _described(agent: Agent, manifests: Manifests) -> dict[str, Any]:
    functions = [_described_function(function) for function in manifests.functions(agent)]
    return {**msgspec.to_builtins(agent), "functions": functions}


def _described_function(function: Function) -> dict[str, Any]:
    return {
        "name": function.name,
        "description": function.description,
        "parameters": function.parameters,
        "bindings": function.bindings,
        "target": function.target,
        "ref": function.ref,
        "action": function.action,
        "offered": function.offered,
        "discovers": function.discovers,
    }


def _show(agent: Agent, manifests: Manifests) -> None:
    console = out()
    console.print(clean(f"{agent.namespace}/{agent.name}"), style="bold")
    _print_facts("", [("", agent.description), *_facts(agent)])
    console.print()
    for function in manifests.functions(agent):
        console.print(clean(f"  {_signature(function)}"), style="cyan")
        capability = agent.capabilities.get(function.ref, Capability())
        _print_facts("    ", [("", function.description), *_function_facts(function, capability)])
        console.print()


def _print_facts(indent: str, facts: list[tuple[str, str]]) -> None:
    for name, value in facts:
        label = f"{indent}  {name:<{_WIDTH}}" if name else f"{indent}  "
        out().print(Text.assemble((label, "dim"), one_line(value, 160)))


def _facts(agent: Agent) -> Iterator[tuple[str, str]]:
    yield "model", agent.model or "what the server is set to"
    yield "mount", agent.mount
    yield "limits", described_limits(msgspec.structs.asdict(with_defaults(agent.limits)))
    yield "parameters", ", ".join((agent.parameters or {}).get("properties", {})) or "none but the message"
    if agent.model_capabilities:
        yield "built in", ", ".join(agent.model_capabilities)
    if agent.close_after is not None:
        yield "close after", f"{agent.close_after} answer{'' if agent.close_after == 1 else 's'}"
    if agent.script:
        yield "scripts", "several functions in one expression, with run_script"
    for name, source in (agent.exposes or {}).items():
        yield "exposes", f"{name} = {source}"
    for step in agent.guardrails.before or []:
        yield "guard before", _told(step, Phase.GUARDRAIL_BEFORE)
    for step in agent.guardrails.after or []:
        yield "guard after", _told(step, Phase.GUARDRAIL_AFTER)


def _signature(function: Function) -> str:
    schema = function.parameters
    required = set(schema["required"])
    parameters = [
        f"{name}: {_type(one)}" + ("" if name in required else f" = {json.dumps(one['default'])}")
        for name, one in schema["properties"].items()
    ]
    return f"{function.name}{'_*' if function.discovers else ''}({', '.join(parameters)})"


def _type(schema: dict[str, Any]) -> str:
    if isinstance(schema.get("enum"), list):
        return " | ".join(json.dumps(value) for value in schema["enum"])
    kind = schema.get("type", "any")
    return " | ".join(map(str, kind)) if isinstance(kind, list) else str(kind)


def _function_facts(function: Function, capability: Capability) -> Iterator[tuple[str, str]]:
    yield function.target, f"{function.ref}:{function.action}" if function.action else function.ref
    if capability.url is not None:
        yield "url", capability.url
    if not function.offered:
        yield "hidden", "the model does not see it"
    elif function.discovers and capability.include is not None:
        yield "include", ", ".join(capability.include)
    for name, source in function.bindings.items():
        yield "bound", f"{name} = {source}"
    for phase in CAPABILITY_PHASES:
        for step in getattr(capability, phase.value) or []:
            if step.match in (None, function.action):
                yield phase.value.replace("_", " "), _told(step, phase)
            elif function.discovers:
                yield phase.value.replace("_", " "), f"{step.match}: {_told(step, phase)}"


def _told(step: StepConfig, phase: Phase) -> str:
    """A step in one line."""
    doing = {"assert": step.assert_, "invoke": step.invoke, "transform": step.transform}
    [text] = [f"{name} {source}" for name, source in doing.items() if source is not None]
    bound = ", ".join(f"{name} = {source}" for name, source in (step.bindings or {}).items())
    with_ = f" with {bound}" if bound else ""
    when = f", when {step.condition}" if step.condition else ""
    return f"{text}{with_}{when}, else {step.on_fail or ('lock_task' if phase.guards else 'block')}"
