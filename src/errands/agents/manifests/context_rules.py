"""Expressions about parts of the context that an agent does not have: they would fail whenever they are evaluated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from errands.agents.manifests.context_paths import Item, Path, context_paths, written
from errands.agents.manifests.documents import Agent
from errands.agents.manifests.findings import Place, suggestion
from errands.agents.manifests.functions import MESSAGE, Function
from errands.agents.manifests.library import Library
from errands.agents.manifests.schemas import properties
from errands.agents.manifests.step_rules import MIDDLEWARE
from errands.agents.manifests.templates import expressions_in
from errands.policy import context as parts
from errands.policy.steps import StepConfig

#: What a value has below it: fields by name, the same for each item of a list, or nothing that is known.
Shape = dict[str, Any] | list[Any] | None

_CAPABILITIES = "capabilities"
#: What is missing, by the first step of the path.
_WORDS = {
    "input": "the agent has no such parameter",
    "output": "the agent exposes nothing of that name",
    _CAPABILITIES: "there is no such function",
}


def check_context(agent: Agent, functions: Sequence[Function], library: Library, place: Place) -> None:
    shape = _context(agent, functions, _is_known(agent, library))
    prefixes = tuple(function.name + "_" for function in functions if function.discovers)
    for inner, source in _expressions(agent, place):
        for path in dict.fromkeys(context_paths(source)):
            found = _missing(shape, path, prefixes)
            if found is not None:
                depth, names = found
                is_named = depth == (1 if path[0] == _CAPABILITIES else 2)
                word = _WORDS.get(str(path[0])) if is_named else None
                problem = f"reads {written(path[: depth + 1])}, and {word or 'there is no such field'}"
                inner.warn(problem, suggestion(str(path[depth]), names, "change the name"))


def _is_known(agent: Agent, library: Library) -> bool:
    """Whether all functions are known. What could not be resolved has its own finding."""
    refs = agent.capabilities.items()
    return library.is_complete and all(library.capability_functions(agent, ref, one) for ref, one in refs)


def _missing(shape: Shape, path: Path, prefixes: tuple[str, ...]) -> tuple[int, list[str]] | None:
    """The first step of a path that leads nowhere, and where one could go instead."""
    for depth, step in enumerate(path):
        if isinstance(shape, list) and step is Item:
            shape = shape[0]
        elif isinstance(shape, dict) and isinstance(step, str):
            if step not in shape:
                is_discovered = depth == 1 and path[0] == _CAPABILITIES and step.startswith(prefixes)
                return None if is_discovered else (depth, list(shape))
            shape = shape[step]
        else:
            return None
    return None


def _context(agent: Agent, functions: Sequence[Function], is_known: bool) -> Shape:
    records = {function.name: _record(function) for function in functions}
    return {
        "agent": _fields(parts.Agent),
        "user": _fields(parts.User),
        "llm": {**_fields(parts.Llm), "tokens": _fields(parts.Tokens)},
        "_history": _fields(parts.History),
        "input": [dict.fromkeys((MESSAGE, *properties(agent.parameters)))],
        "output": [dict.fromkeys((MESSAGE, *(agent.exposes or {})))],
        _CAPABILITIES: {"_meta": _fields(parts.Meta), **records} if is_known else None,
    }


def _record(function: Function) -> Shape:
    fields = _fields(parts.Capability)
    if function.target == "tool":
        del fields["task_ids"]
    return fields


def _fields(part: type[msgspec.Struct]) -> dict[str, Any]:
    return dict.fromkeys(part.__struct_fields__)


# Where expressions stand


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
        yield from ((inner / "error_message", source) for source in expressions_in(step.error_message or ""))
    yield from ((place / "prompt", source) for source in expressions_in(agent.prompt))


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
