"""Expressions about parts of the context or the input that are never there: they would fail whenever evaluated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from errands.agents.manifests.documents import Agent, Document
from errands.agents.manifests.findings import Place
from errands.agents.manifests.functions import MESSAGE, Function
from errands.agents.manifests.library import Library
from errands.agents.manifests.paths import Shape, check_reads
from errands.agents.manifests.schemas import properties
from errands.agents.manifests.templates import expressions_in
from errands.policy import context as parts
from errands.policy.steps import StepConfig


def check_paths(agent: Agent, functions: Sequence[Function], library: Library, place: Place) -> None:
    context = _context(agent, functions, _is_known(agent, library))
    prefixes = tuple(function.name + "_" for function in functions if function.discovers)
    for inner, source, known in _expressions(agent, functions, place):
        check_reads({"context": context, "input": known}, source, inner, prefixes)


def _is_known(agent: Agent, library: Library) -> bool:
    """Whether all functions are known. What could not be resolved has its own finding."""
    refs = agent.capabilities.items()
    return library.is_complete and all(library.capability_functions(agent, ref, one) for ref, one in refs)


def _context(agent: Agent, functions: Sequence[Function], is_known: bool) -> Shape:
    records = {function.name: _record(function) for function in functions}
    return {
        "agent": _fields(parts.Agent),
        "user": _fields(parts.User),
        "llm": {**_fields(parts.Llm), "tokens": _fields(parts.Tokens)},
        "_history": _fields(parts.History),
        "input": [dict.fromkeys((MESSAGE, *properties(agent.parameters)))],
        "output": [dict.fromkeys((MESSAGE, *(agent.exposes or {})))],
        "capabilities": {"_meta": _fields(parts.Meta), **records} if is_known else None,
    }


def _record(function: Function) -> Shape:
    fields = _fields(parts.Capability)
    if function.target == "tool":
        del fields["task_ids"]
    return fields


def _fields(part: type[msgspec.Struct]) -> dict[str, Any]:
    return dict.fromkeys(part.__struct_fields__)


# Where expressions stand


def _expressions(agent: Agent, functions: Sequence[Function], place: Place) -> Iterator[tuple[Place, str, Shape]]:
    """Each expression, with what is known of its input."""
    arriving: Shape = dict.fromkeys((MESSAGE, *properties(agent.parameters)))
    yield from ((place / "prompt", source, None) for source in expressions_in(agent.prompt))
    for key, source in (agent.exposes or {}).items():
        yield place / "exposes" / key, source, arriving
    for field in ("before", "after"):
        yield from _in_steps(agent.guardrails, (field,), place / "guardrails", lambda _: arriving)
    for ref, capability in agent.capabilities.items():
        inner = place / "capabilities" / ref
        for key, source in (capability.bindings or {}).items():
            yield inner / "bindings" / key, source, None
        for fields in (("before_first", "before"), ("after",)):
            yield from _in_steps(capability, fields, inner, partial(_arguments, functions, ref))


def _in_steps(
    owner: Document, fields: Sequence[str], place: Place, known: Callable[[StepConfig], Shape]
) -> Iterator[tuple[Place, str, Shape]]:
    """The expressions of steps that follow each other. What one before a call makes of the input is for the next."""
    is_transformed = False
    for field in fields:
        for index, step in enumerate(getattr(owner, field) or []):
            yield from _in_step(step, place / field / index, None if is_transformed else known(step))
            is_transformed = is_transformed or (field != "after" and step.transform is not None)


def _in_step(step: StepConfig, place: Place, known: Shape) -> Iterator[tuple[Place, str, Shape]]:
    said = {"assert": step.assert_, "transform": step.transform, "condition": step.condition}
    yield from ((place / name, source, known) for name, source in said.items() if source is not None)
    yield from ((place / "bindings" / key, source, known) for key, source in (step.bindings or {}).items())
    yield from ((place / "error_message", source, known) for source in expressions_in(step.error_message or ""))


def _arguments(functions: Sequence[Function], ref: str, step: StepConfig) -> Shape:
    """The arguments of the functions around which a step stands, as far as they are written down."""
    around = [one for one in functions if one.ref == ref and step.match in (None, one.action)]
    if not around or any(one.discovers or one.target == "remote" for one in around):
        return None
    return dict.fromkeys(name for one in around for name in one.declared)
