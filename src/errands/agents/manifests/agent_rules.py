"""What an agent must be like beyond the form of its fields, by itself and together with what it uses."""

from __future__ import annotations

import re

from errands.agents.manifests import schemas
from errands.agents.manifests.capability_rules import CapabilityRules
from errands.agents.manifests.documents import Agent
from errands.agents.manifests.expressions import Check, check_expression
from errands.agents.manifests.findings import Place, quoted, suggestion
from errands.agents.manifests.functions import MESSAGE, Function
from errands.agents.manifests.library import Library
from errands.agents.manifests.names import check_function_name, check_resource_name
from errands.agents.manifests.path_rules import check_paths
from errands.agents.manifests.step_rules import StepRules
from errands.agents.manifests.templates import check_template
from errands.policy.cel import scopes
from errands.policy.steps import Phase

#: A provider and its model; only the scripted model has no provider.
_MODEL = re.compile(r"scripted|[^/\s]+/\S+")

#: Given by model providers; those that make something need a place for it.
MODEL_CAPABILITIES = {
    "web-search": False,
    "image-generation": True,
    "audio-generation": True,
    "video-generation": True,
}


def check_agent(agent: Agent, place: Place, library: Library, check: Check) -> None:
    check_resource_name(agent.name, place / "name")
    check_resource_name(agent.namespace, place / "namespace")
    check_template(agent.prompt, scopes.PROMPT, {}, check, place / "prompt")
    if agent.priority is not None:
        problem = "has no effect: every agent has a queue of its own"
        (place / "priority").warn(problem, "take it away, or leave it for other runtimes")
    if agent.model is not None and not _MODEL.fullmatch(agent.model):
        remedy = "write provider/model, such as openai/gpt-4o-mini"
        (place / "model").warn(f"is {quoted(agent.model)}, which names no provider", remedy)
    _check_parameters(agent, place / "parameters")
    _check_model_capabilities(agent, place / "model_capabilities")
    _check_exposes(agent, place / "exposes", check)
    steps = StepRules(agent, library, check)
    steps.check(agent.guardrails.before, Phase.GUARDRAIL_BEFORE, place / "guardrails" / "before")
    steps.check(agent.guardrails.after, Phase.GUARDRAIL_AFTER, place / "guardrails" / "after")
    capabilities = CapabilityRules(agent, library, check, steps)
    for ref, capability in agent.capabilities.items():
        capabilities.check(ref, capability, place / "capabilities" / ref)
    functions = library.functions(agent)
    _check_functions(functions, place / "capabilities")
    if agent.script:
        _check_script(functions, place / "capabilities")
    check_paths(agent, functions, library, place)


def _check_parameters(agent: Agent, place: Place) -> None:
    schema = agent.parameters
    message = schemas.properties(schema).get(MESSAGE)
    if schema is not None and message is not None and schema["properties"][MESSAGE] is message:
        schemas.check_message(message, place / "properties" / MESSAGE)
        others = {name: parameter for name, parameter in schema["properties"].items() if name != MESSAGE}
        schema = {**schema, "properties": others}
    schemas.check_schema(schema, place)


def _check_model_capabilities(agent: Agent, place: Place) -> None:
    for index, name in enumerate(agent.model_capabilities or []):
        inner = place / index
        if name in agent.capabilities:
            inner.error(f"is {quoted(name)}, which stands among the capabilities, too", "rename one of the two")
        elif name not in MODEL_CAPABILITIES:
            inner.warn(f"is {quoted(name)}, which few providers know", suggestion(name, MODEL_CAPABILITIES, "check it"))
        elif MODEL_CAPABILITIES[name] and agent.mount == "none":
            inner.error(f"is {name}, and there is no mount for what it makes", "add mount: task")


def _check_exposes(agent: Agent, place: Place, check: Check) -> None:
    for key, source in (agent.exposes or {}).items():
        if key == MESSAGE:
            (place / key).error("is what the agent says, in every output", "expose it under another name")
        check_expression(source, scopes.EXPOSES, check, place / key)


def _check_functions(functions: list[Function], place: Place) -> None:
    seen: dict[str, Function] = {}
    for function in functions:
        inner = place / function.ref
        check_function_name(function.name, inner)
        other = seen.setdefault(function.name, function)
        # Two actions of one tool have their finding there.
        if other.ref != function.ref:
            problem = f"becomes the function {function.name}, like {_told(other)}"
            inner.error(problem, "rename one of the two: '-' and '_' are the same in a function's name")


def _check_script(functions: list[Function], place: Place) -> None:
    for function in functions:
        if function.name == scopes.SCRIPT or (function.offered and not scopes.is_script_name(function.name)):
            problem = f"becomes the function {function.name}, which a script cannot call, and script is true"
            (place / function.ref).error(problem, "rename it, or take script away")


def _told(function: Function) -> str:
    return f"{function.ref}:{function.action}" if function.action else function.ref
