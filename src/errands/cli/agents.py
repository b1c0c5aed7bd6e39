"""`errands agents`: validate manifests, and show agents as their models see them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from rich.console import Console
from rich.text import Text
from typer import Argument

from errands.agents.manifests import Agent, Capability, Finding, Function, examine
from errands.agents.manifests.documents import editor_schema
from errands.cli.failures import CommandError, ExitCode, command
from errands.cli.options import AsJson
from errands.cli.printing import clean, count_severities, counted, err, finding_text, one_line, out, print_json
from errands.policy.limits import DEFAULT_LIMITS, with_defaults
from errands.policy.steps import CAPABILITY_PHASES, Phase, StepConfig

ManifestPath = Annotated[str, Argument(metavar="PATH", help="A file with manifests, or a folder of them.")]
#: What JSON shows of a function.
_FUNCTION_FIELDS = ("name", "description", "parameters", "bindings", "target", "ref", "action", "offered", "discovers")


@command
def validate_agents(path: ManifestPath, as_json: AsJson = False) -> ExitCode:
    """Report what is wrong with manifests, and how to fix it.

    All findings are reported, not only the first. Manifests with nothing but warnings are valid.

    Example:

        errands agents validate examples/support-agent
    """
    report = examine(path)
    agents = report.manifests.agents if report.manifests is not None else []
    limits = {
        f"{agent.namespace}/{agent.name}": msgspec.structs.asdict(with_defaults(agent.limits)) for agent in agents
    }
    if as_json:
        print_json({"valid": report.valid, "findings": msgspec.to_builtins(report.findings), "limits": limits})
    else:
        console = out()
        print_findings(report.findings, console)
        for name, limits_of_agent in limits.items():
            console.print(clean(f"{name}: {_describe_limits(limits_of_agent)}"))
        verdict, counts = "not valid", count_severities(report.findings)
        if report.manifests is not None:
            manifests = f"{counted(len(agents), 'agent')} and {counted(len(report.manifests.tools), 'tool')}"
            verdict, counts = "valid", f"{manifests}, {counts}" if counts else manifests
        console.print(clean(f"{path} is {verdict}: {counts}"), style="bold")
    return ExitCode.OK if report.valid else ExitCode.FAILED


def print_findings(findings: list[Finding], console: Console) -> None:
    """Print one line for each finding, as compilers do."""
    for finding in findings:
        console.print(finding_text(finding.severity, str(finding)))


def _describe_limits(limits: dict[str, Any]) -> str:
    """Return a line about limits that says which of them are defaults."""
    defaults = msgspec.structs.asdict(DEFAULT_LIMITS)
    limited = ((name, value) for name, value in limits.items() if value is not None)
    return ", ".join(f"{name} {value}{' (default)' * (value == defaults[name])}" for name, value in limited)


@command
def show_agents(path: ManifestPath, as_json: AsJson = False) -> None:
    """Show agents as their models see them, with functions and parameters, and their bindings and policies.

    Example:

        errands agents show examples/support-agent
    """
    report = examine(path)
    manifests = report.manifests
    if manifests is None:
        print_findings(report.findings, err())
        raise CommandError(f"{path} cannot be shown because it is not valid")
    console, documents = out(), []
    for agent in manifests.agents:
        functions = manifests.functions(agent)
        if as_json:
            shown = [{field: getattr(function, field) for field in _FUNCTION_FIELDS} for function in functions]
            documents.append({**msgspec.to_builtins(agent), "functions": shown})
            continue
        console.print(clean(f"{agent.namespace}/{agent.name}"), style="bold")
        _print_facts("", [("", agent.description), *_agent_facts(agent)])
        console.print()
        for function in functions:
            console.print(clean(f"  {_signature(function)}"), style="cyan")
            capability = agent.capabilities.get(function.ref, Capability())
            _print_facts("    ", [("", function.description), *_function_facts(function, capability)])
            console.print()
    if as_json:
        print_json(documents)


@command
def print_schema() -> None:
    """Print the JSON Schema of manifests, with which editors complete fields and mark mistakes.

    Name the file in the first line of a manifest: # yaml-language-server: $schema=./agent.schema.json

    Example:

        errands agents schema
    """
    print_json(editor_schema())


def _print_facts(indent: str, facts: list[tuple[str, str]]) -> None:
    for name, value in facts:
        label = f"{indent}  {name:<14}" if name else f"{indent}  "
        out().print(Text.assemble((label, "dim"), one_line(value, 160)))


def _agent_facts(agent: Agent) -> Iterator[tuple[str, str]]:
    yield "model", agent.model or "the server's"
    yield "mount", agent.mount
    yield "limits", _describe_limits(msgspec.structs.asdict(with_defaults(agent.limits)))
    yield "parameters", ", ".join((agent.parameters or {}).get("properties", {})) or "only the message"
    if agent.model_capabilities:
        yield "built in", ", ".join(agent.model_capabilities)
    if agent.close_after is not None:
        yield "close after", counted(agent.close_after, "answer")
    if agent.script:
        yield "scripts", "several functions in one expression, with run_script"
    for name, source in (agent.exposes or {}).items():
        yield "exposes", f"{name} = {source}"
    for step in agent.guardrails.before or []:
        yield "guard before", _describe_step(step, Phase.GUARDRAIL_BEFORE)
    for step in agent.guardrails.after or []:
        yield "guard after", _describe_step(step, Phase.GUARDRAIL_AFTER)


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
                yield phase.value.replace("_", " "), _describe_step(step, phase)
            elif function.discovers:
                yield phase.value.replace("_", " "), f"{step.match}: {_describe_step(step, phase)}"


def _describe_step(step: StepConfig, phase: Phase) -> str:
    """Return a line about a step."""
    actions = {"assert": step.assert_, "invoke": step.invoke, "transform": step.transform}
    [text] = [f"{name} {source}" for name, source in actions.items() if source is not None]
    bound = ", ".join(f"{name} = {source}" for name, source in (step.bindings or {}).items())
    with_ = f" with {bound}" if bound else ""
    when = f", when {step.condition}" if step.condition else ""
    return f"{text}{with_}{when}, else {step.on_fail or ('lock_task' if phase.guards else 'block')}"
