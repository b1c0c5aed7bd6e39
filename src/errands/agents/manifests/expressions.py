"""CEL in manifests. What it may say is known elsewhere: a `Check` is given to whoever loads manifests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from errands.agents.manifests.findings import Place
from errands.policy import cel
from errands.policy.cel import Scope
from errands.policy.template import compile_binding, compile_template

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
