"""Expressions about functions, parameters and exposed values that the agent does not have.

They would fail whenever evaluated. What every agent's context has is checked when an expression is compiled: see
`errands.policy.cel.paths`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from errands.agents.manifests.documents import Agent, Document
from errands.agents.manifests.findings import Place, suggestion
from errands.agents.manifests.functions import MESSAGE, Function
from errands.agents.manifests.library import Library
from errands.agents.manifests.schemas import properties
from errands.agents.manifests.templates import expressions_in
from errands.policy.cel.paths import CONTEXT, RECORD, Item, Path, Shape, missing, reads_in, written
from errands.policy.steps import StepConfig, capability_name

#: What is missing after this beginning of a path.
_WORDS: dict[Path, str] = {
    ("input",): "there is no such parameter",
    ("context", "input", Item): "the agent has no such parameter",
    ("context", "output", Item): "the agent exposes nothing of that name",
    ("context", "capabilities"): "there is no such function",
}
_FUNCTIONS: Path = ("context", "capabilities")


def check_reads(
    shape: Mapping[str, Shape], source: str, tell: Callable[[str, str], None], prefixes: tuple[str, ...] = ()
) -> None:
    """Tells of what an expression reads and `shape` does not have, except what it asks for with `has(...)`.

    Functions that begin with one of `prefixes` are only known when the agent runs.
    """
    reads = list(reads_in(source))
    asked = {read.path for read in reads if read.is_asked}
    for path in dict.fromkeys(read.path for read in reads):
        lost = missing(dict(shape), path) if path[0] in shape else None
        if lost is None or not isinstance(lost.step, str) or (*lost.before, lost.step) in asked:
            continue
        if lost.before == _FUNCTIONS and lost.step.startswith(prefixes):
            continue
        word = _WORDS.get(lost.before, "there is no such field")
        remedy = suggestion(lost.step, lost.names or (), "change the name")
        tell(f"reads {written((*lost.before, lost.step))}, and {word}", remedy)


def check_paths(agent: Agent, functions: Sequence[Function], library: Library, place: Place) -> None:
    context = _context(agent, functions, _is_known(agent, library))
    prefixes = tuple(function.name + "_" for function in functions if function.discovers)
    for inner, source, known in _expressions(agent, functions, place):
        check_reads({"context": context, "input": known}, source, inner.error, prefixes)


def _is_known(agent: Agent, library: Library) -> bool:
    """Whether all functions are known. What could not be resolved has its own finding."""
    refs = agent.capabilities.items()
    return library.is_complete and all(library.capability_functions(agent, ref, one) for ref, one in refs)


def _context(agent: Agent, functions: Sequence[Function], is_known: bool) -> Shape:
    capabilities = {"_meta": None, **{function.name: _record(function) for function in functions}}
    return {
        **CONTEXT,
        "input": [dict.fromkeys((MESSAGE, *properties(agent.parameters)))],
        "output": [dict.fromkeys((MESSAGE, *(agent.exposes or {})))],
        "capabilities": capabilities if is_known else None,
    }


def _record(function: Function) -> Shape:
    """Only delegations have the ids of tasks."""
    return {name: shape for name, shape in RECORD.items() if function.target != "tool" or name != "task_ids"}


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
    around = [one for one in functions if one.ref == ref and _is_matched(step, one)]
    if not around or any(one.discovers or one.target == "remote" for one in around):
        return None
    return dict.fromkeys(name for one in around for name in one.declared)


def _is_matched(step: StepConfig, function: Function) -> bool:
    return step.match is None or capability_name(step.match) == capability_name(function.action or "")
