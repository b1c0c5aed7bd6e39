"""CEL in manifests. What it may say is known elsewhere: a `Check` is given to whoever loads manifests."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from errands.agents.manifests.documents import Agent, Document
from errands.agents.manifests.findings import Place, suggestion
from errands.agents.manifests.functions import MESSAGE, Function, Library
from errands.agents.manifests.schemas import properties
from errands.policy import cel
from errands.policy.cel import Scope
from errands.policy.cel.paths import CONTEXT, RECORD, Item, Path, Shape, missing, reads_in, written
from errands.policy.steps import StepConfig, capability_name
from errands.policy.template import compile_binding, compile_template

# expressions

#: What it is: a truth, a truth that waits for nobody, a map, any value, or a text with expressions in braces.
Role = Literal["assert", "condition", "map", "value", "binding", "template"]

_TEMPLATE = re.compile(r"\{[\w.\[\]'\"]+\}")
#: The specification's own example means the length of a text, and a message is a list of parts.
_COUNTED = re.compile(r"(?<![\w.])size\(\s*((?:i|o|input|output)\.message)\s*\)\s*[<>]=?\s*\d{4}")
_REVIEW = re.compile(r"(?<![\w.])review\s*\(")
_MOUNT = re.compile(r"(?<![\w.'\"])mount\.\w+")


class Problem(NamedTuple):
    """What is wrong with an expression."""

    text: str
    remedy: str = ""
    #: Of the expression, from 1.
    line: int | None = None


class Check(Protocol):
    """Says what is wrong with an expression in a scope; nothing if it can be used there."""

    def __call__(self, scope: Scope, source: str, role: Role) -> Sequence[Problem]: ...


def check_expression(source: str | None, scope: Scope, check: Check, place: Place, role: Role = "value") -> None:
    if source is None or place.is_wrong:
        return
    for counted in _COUNTED.findall(source) if scope.task_ios else ():
        remedy = f"write {counted}.all(part, !has(part.text) || size(part.text) < ...) for the length of its texts"
        place.warn(f"compares the number of parts in {counted} with a large number", remedy)
    for problem in check(scope, source, role):
        remedy = _remedy(source, scope, role) or problem.remedy or "mend the expression"
        place.error(problem.text, remedy, line=problem.line)


def _remedy(source: str, scope: Scope, role: Role) -> str:
    """What people mistake CEL for."""
    if role == "template":
        return ""
    if role == "condition" and _REVIEW.search(source):
        return "a condition cannot wait: put review(...) into the assert"
    if _TEMPLATE.fullmatch(source.strip()) and not uses_mount(source):
        return "write it without braces: this is CEL, no template"
    if role == "binding" and re.fullmatch(r"[\w -]+", source):
        return f"a fixed text needs quotes of its own: \"'{source}'\""
    return ""


def uses_mount(source: str) -> bool:
    return _MOUNT.search(source) is not None


def cel_check(scope: Scope, source: str, role: Role) -> Sequence[Problem]:
    """What `errands.policy` says. Raises `ConfigurationError` when its extra is not installed."""
    try:
        if role == "template":
            compile_template(scope, source)
        elif role == "binding":
            compile_binding(scope, source)
        elif role == "condition":
            cel.compile(scope.without_calls(), source, condition=True)
        else:
            program = cel.compile(scope, source, condition=role == "assert")
            if role == "map" and not program.may_be_map:
                return [Problem("gives no map", "write input.put('name', ...), or a map such as {'name': input.name}")]
    except cel.CelError as error:
        return [Problem(error.problem, error.hint, _line(source, error))]
    return ()


def _line(source: str, error: cel.CelError) -> int | None:
    """The line in the whole text; the error of a template may be about one expression in it."""
    start = source.find(error.source) if error.source != source else -1
    return source.count("\n", 0, start) + (error.line or 1) if start >= 0 else error.line


# templates

#: The names below some roots. What a root that is not here has below it is not known.
Roots = Mapping[str, Collection[str]]

_INSIDE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
_DOUBLED = re.compile(r"\{\{\s*(([A-Za-z_]\w*)\.[\w.]+)\s*\}\}")
_TEXT = re.compile(r"(?<!\[)('[^']*'|\"[^\"]*\")")
_PATH = re.compile(r"(?<![\w.'\"])([A-Za-z_]\w*)((?:\.[A-Za-z_][\w-]*|\['[^'\]]*'\])+)")
_STEP = re.compile(r"\.([\w-]+)|\['([^']*)'\]")


class Reference(msgspec.Struct, frozen=True):
    """A path that is read in a template."""

    root: str
    steps: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join([self.root, *self.steps])


def expressions_in(text: str) -> list[str]:
    """What stands in braces."""
    return list(filter(None, _INSIDE.findall(text)))


def filled(text: str) -> str:
    """Return the text with a digit in place of each expression: what can be said about it whatever their values are."""
    return _INSIDE.sub(lambda match: "1" if match[1] else match[0][0], text)


def references(value: Any) -> Iterator[Reference]:
    """The paths in all templates inside a value."""
    if isinstance(value, str):
        for inside in _INSIDE.findall(value):
            for root, steps in _PATH.findall(_TEXT.sub("''", inside)):
                yield Reference(root, tuple(name or other for name, other in _STEP.findall(steps)))
    elif isinstance(value, dict):
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from references(getattr(value, name))


def check_template(value: Any, scope: Scope, roots: Roots, check: Check, place: Place) -> None:
    """Checks a template, or all of them inside a value."""
    if isinstance(value, dict):
        for key, item in value.items():
            check_template(item, scope, roots, check, place / key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            check_template(item, scope, roots, check, place / index)
    elif isinstance(value, str) and "{" in value:
        for doubled, root in _DOUBLED.findall(value):
            if root in scope.variables:
                problem = f"has {{{{{doubled}}}}}, which stays as it is but for one pair of braces"
                place.warn(problem, f"write {{{doubled}}} to have it filled in")
        for reference in references(value):
            if reference.root in roots and not _is_declared(reference, roots[reference.root]):
                _tell(reference, roots[reference.root], place)
        check_expression(value, scope, check, place, "template")


def _is_declared(reference: Reference, names: Collection[str]) -> bool:
    # Settings may have dots in their names.
    path = ".".join(reference.steps)
    return any(path == name or path.startswith(f"{name}.") for name in names)


def _tell(reference: Reference, names: Collection[str], place: Place) -> None:
    remedy = suggestion(reference.steps[0], names, f"declare it, or take {{{reference}}} away")
    place.error(f"uses {{{reference}}}, and there is no {'.'.join(reference.steps)} in {reference.root}", remedy)


# path_rules

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
