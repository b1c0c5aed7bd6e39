"""Check the CEL expressions and templates of manifests.

`errands.policy` compiles them and knows the fields that every context has. Added here are hints for common mistakes,
and the names that only an agent or a tool declares: functions, parameters, exposed values and settings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from errands.agents.manifests.findings import Place, suggestion
from errands.policy import cel
from errands.policy.cel import NameScope
from errands.policy.cel.syntax import Item, Path, Shape, missing, reads_in, written
from errands.policy.template import compile_binding, compile_template

#: What an expression must be: a boolean, a boolean that waits for nothing, a map, any value, a bound value, or a string
#: with expressions in braces.
Role = Literal["assert", "condition", "map", "value", "binding", "template"]
#: The names below some variables. What is below a variable that is missing here is not known.
Roots = Mapping[str, Collection[str]]

_BRACED = re.compile(r"\{[\w.\[\]'\"]+\}")
#: The specification's own example means the length of a text, but a message is a list of parts.
_COUNTED = re.compile(r"(?<![\w.])size\(\s*((?:i|o|input|output)\.message)\s*\)\s*[<>]=?\s*\d{4}")
_REVIEW = re.compile(r"(?<![\w.])review\s*\(")
_MOUNT = re.compile(r"(?<![\w.'\"])mount\.\w+")
_INSIDE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
_DOUBLED = re.compile(r"\{\{\s*(([A-Za-z_]\w*)\.[\w.]+)\s*\}\}")
_STRING = re.compile(r"(?<!\[)('[^']*'|\"[^\"]*\")")
_PATH = re.compile(r"(?<![\w.'\"])([A-Za-z_]\w*)((?:\.[A-Za-z_][\w-]*|\['[^'\]]*'\])+)")
_STEP = re.compile(r"\.([\w-]+)|\['([^']*)'\]")

_FUNCTIONS: Path = ("context", "capabilities")
#: The problem with a name that is missing below a path.
_MISSING: dict[Path, str] = {
    ("input",): "there is no such parameter",
    ("context", "input", Item): "the agent has no such parameter",
    ("context", "output", Item): "the agent exposes nothing of that name",
    _FUNCTIONS: "there is no such function",
}


class Readable(NamedTuple):
    """What expressions may read beyond what every context has."""

    context: Shape = None
    input: Shape = None
    #: Functions that begin with one of these are only known when the agent runs.
    prefixes: tuple[str, ...] = ()


def check_expression(
    source: str | None, scope: NameScope, place: Place, role: Role = "value", readable: Readable | None = None
) -> None:
    """Report what is wrong with an expression in this scope."""
    if source is None or place.is_wrong:
        return
    for counted in _COUNTED.findall(source) if scope.task_ios else ():
        remedy = f"write {counted}.all(part, !has(part.text) || size(part.text) < ...) for the length of its texts"
        place.warn(f"compares the number of parts in {counted} with a large number", remedy)
    try:
        if role == "template":
            compile_template(scope, source)
        elif role == "binding":
            compile_binding(scope, source)
        elif role == "condition":
            cel.compile(scope.without_calls(), source, condition=True)
        elif not cel.compile(scope, source, condition=role == "assert").may_be_map and role == "map":
            place.error("does not return a map", "write input.put('name', ...), or a map such as {'name': input.name}")
    except cel.CelError as error:
        # The error of a template may be about one expression in it.
        start = source.find(error.source) if error.source != source else -1
        line = source.count("\n", 0, start) + (error.line or 1) if start >= 0 else error.line
        place.error(error.problem, _mistaken(source, role) or error.hint or "fix the expression", line=line)
    for expression in expressions_in(source) if role == "template" else [source]:
        check_reads(expression, readable or Readable(), place.error)


def _mistaken(source: str, role: Role) -> str:
    """Return the remedy if CEL was mistaken for something else."""
    if role == "template":
        return ""
    if role == "condition" and _REVIEW.search(source):
        return "a condition cannot wait: put review(...) into the assert"
    if _BRACED.fullmatch(source.strip()) and not uses_mount(source):
        return "write it without braces: this is CEL, not a template"
    if role == "binding" and re.fullmatch(r"[\w -]+", source):
        return f"a fixed string needs its own quotes: \"'{source}'\""
    return ""


def check_reads(source: str, readable: Readable, report: Callable[[str, str], None]) -> None:
    """Report what an expression reads that does not exist, except what it tests with `has(...)`."""
    shape = {"context": readable.context, "input": readable.input}
    reads = list(reads_in(source))
    tested = {read.path for read in reads if read.is_asked}
    for path in dict.fromkeys(read.path for read in reads):
        lost = missing(dict(shape), path) if path[0] in shape else None
        if lost is None or not isinstance(lost.step, str) or (*lost.before, lost.step) in tested:
            continue
        if lost.before == _FUNCTIONS and lost.step.startswith(readable.prefixes):
            continue
        problem = _MISSING.get(lost.before, "there is no such field")
        remedy = suggestion(lost.step, lost.names or (), "change the name")
        report(f"reads {written((*lost.before, lost.step))}, but {problem}", remedy)


def uses_mount(source: str) -> bool:
    return _MOUNT.search(source) is not None


# Templates: strings with expressions in braces, such as `Hello {context.user.email}`


class Reference(msgspec.Struct, frozen=True):
    """A path that a template reads."""

    root: str
    steps: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join([self.root, *self.steps])


def expressions_in(text: str) -> list[str]:
    return list(filter(None, _INSIDE.findall(text)))


def filled(text: str) -> str:
    """Return the text with a digit in place of each expression, to check what holds for all values."""
    return _INSIDE.sub(lambda match: "1" if match[1] else match[0][0], text)


def references(value: Any) -> Iterator[Reference]:
    """Yield the paths in all templates inside a value."""
    if isinstance(value, str):
        for inside in _INSIDE.findall(value):
            for root, steps in _PATH.findall(_STRING.sub("''", inside)):
                yield Reference(root, tuple(name or other for name, other in _STEP.findall(steps)))
    elif isinstance(value, dict | list | msgspec.Struct):
        if isinstance(value, msgspec.Struct):
            value = [getattr(value, name) for name in value.__struct_fields__]
        for item in value.values() if isinstance(value, dict) else value:
            yield from references(item)


def check_template(
    value: Any, scope: NameScope, place: Place, roots: Roots | None = None, readable: Readable | None = None
) -> None:
    """Check a template, or all templates inside a value; `roots` has the names that are declared."""
    if isinstance(value, dict | list):
        for step, item in value.items() if isinstance(value, dict) else enumerate(value):
            check_template(item, scope, place / step, roots, readable)
    elif isinstance(value, str) and "{" in value:
        for doubled, root in _DOUBLED.findall(value):
            if root in scope.variables:
                problem = f"has {{{{{doubled}}}}}, which is kept as text with single braces"
                place.warn(problem, f"write {{{doubled}}} to have it filled in")
        for reference in references(value):
            names = (roots or {}).get(reference.root)
            path = ".".join(reference.steps)
            # Settings may have dots in their names.
            if names is not None and not any(path == name or path.startswith(f"{name}.") for name in names):
                remedy = suggestion(reference.steps[0], names, f"declare it, or remove {{{reference}}}")
                place.error(f"uses {{{reference}}}, but {reference.root} has no {path}", remedy)
        check_expression(value, scope, place, "template", readable)
