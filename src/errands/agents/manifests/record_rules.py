"""Expressions about functions that an agent does not have: they would fail whenever they are evaluated."""

from __future__ import annotations

from collections.abc import Iterator

from errands.agents.manifests.documents import Agent
from errands.agents.manifests.expressions import capabilities_in
from errands.agents.manifests.findings import Place, suggestion
from errands.agents.manifests.functions import Function
from errands.agents.manifests.library import Library
from errands.agents.manifests.step_rules import MIDDLEWARE
from errands.agents.manifests.templates import references
from errands.policy.steps import StepConfig


def check_records(agent: Agent, functions: list[Function], library: Library, place: Place) -> None:
    # What could not be resolved has its own finding.
    refs = agent.capabilities.items()
    if not library.is_complete or not all(library.capability_functions(agent, ref, one) for ref, one in refs):
        return
    names = {"_meta"} | {function.name for function in functions}
    prefixes = tuple(function.name + "_" for function in functions if function.discovers)
    for inner, name in _records_read(agent, place):
        if name not in names and not name.startswith(prefixes):
            problem = f"reads context.capabilities.{name}, and there is no such function"
            inner.warn(problem, suggestion(name, names, "change the name"))


def _records_read(agent: Agent, place: Place) -> Iterator[tuple[Place, str]]:
    """The names of records, and where each is read."""
    for inner, source in _expressions(agent, place):
        for name in dict.fromkeys(capabilities_in(source)):
            yield inner, name
    for inner, text in _templates(agent, place):
        for reference in references(text):
            match reference.steps:
                case ("capabilities" | "cap", name, *_) if reference.root in ("context", "c"):
                    yield inner, name


def _expressions(agent: Agent, place: Place) -> Iterator[tuple[Place, str]]:
    for key, source in (agent.exposes or {}).items():
        yield place / "exposes" / key, source
    for ref, capability in agent.capabilities.items():
        for key, source in (capability.bindings or {}).items():
            yield place / "capabilities" / ref / "bindings" / key, source
    for inner, step in _steps(agent, place):
        said = {"assert": step.assert_, "transform": step.transform, "condition": step.condition}
        yield from ((inner / name, source) for name, source in said.items() if source is not None)
        yield from ((inner / "bindings" / key, source) for key, source in (step.bindings or {}).items())


def _templates(agent: Agent, place: Place) -> Iterator[tuple[Place, str]]:
    yield place / "prompt", agent.prompt
    for inner, step in _steps(agent, place):
        if step.error_message is not None:
            yield inner / "error_message", step.error_message


def _steps(agent: Agent, place: Place) -> Iterator[tuple[Place, StepConfig]]:
    lists = [(place / "guardrails" / field, getattr(agent.guardrails, field)) for field in ("before", "after")]
    lists += [
        (place / "capabilities" / ref / field, getattr(capability, field))
        for ref, capability in agent.capabilities.items()
        for field in MIDDLEWARE
    ]
    for inner, steps in lists:
        for index, step in enumerate(steps or []):
            yield inner / index, step
