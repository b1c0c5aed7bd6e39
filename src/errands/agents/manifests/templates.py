"""Templates in manifests: texts with expressions in braces, such as `Hello {context.user.email}`.

`errands.policy.template` says what they are and whether one can be used in its place. Here it is looked up whether the
parameters, settings and the like that they name are declared.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec

from errands.agents.manifests.expressions import Check, check_expression
from errands.agents.manifests.findings import Place, suggestion
from errands.policy.cel import Scope

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
