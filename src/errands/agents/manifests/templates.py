r"""Templates: texts with paths in braces, such as `Hello {context.user.email}`. A path is no CEL.

A brace that is followed by a letter begins a path; any other is an ordinary character, so a piece of JSON can stand in
a prompt. `\{` is a brace before a letter. A path is a root and its steps: `.name`, `[0]` or `['any name']`;
`auth.github()` may be written with and without the parentheses.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec

from errands.agents.manifests.findings import Place, quoted, suggestion

#: What a root has below it: these names, nothing, or (None) anything.
Roots = Mapping[str, Collection[str] | None]

CONTEXT = ("agent", "user", "llm", "_history", "input", "output", "capabilities", "cap")
RUNTIME = ("version", "dashboard_url", "api_root")

PROMPT: Roots = {"context": CONTEXT, "runtime": RUNTIME, "now": ()}

_OPENING = re.compile(r"\\\{|\{(?=\s*[A-Za-z_])")
_PATH = re.compile(r"\s*([A-Za-z_]\w*)((?:\.[\w-]+|\[\d{1,9}\]|\['[^'\]]*'\])*)(\(\))?\s*\}", re.ASCII)
_STEP = re.compile(r"\.([\w-]+)|\[(\d+)\]|\['([^']*)'\]", re.ASCII)


class Reference(msgspec.Struct, frozen=True):
    """A path in braces."""

    root: str
    steps: tuple[str | int, ...]
    #: As it was written.
    text: str

    @property
    def dotted(self) -> str:
        """The steps as the name of a setting, which may have dots in it."""
        return ".".join(map(str, self.steps))


class TemplateError(ValueError):
    """A brace begins no path."""


def parse(text: str) -> list[str | Reference]:
    """The pieces of a template. Raises `TemplateError`."""
    pieces: list[str | Reference] = []
    position = 0
    while opening := _OPENING.search(text, position):
        pieces.append(text[position : opening.start()])
        position = opening.end()
        if opening[0] == "\\{":
            pieces.append("{")
            continue
        path = _PATH.match(text, position)
        if path is None:
            raise TemplateError(quoted(text[opening.start() : opening.start() + 40]))
        steps = tuple(name or other if not index else int(index) for name, index, other in _STEP.findall(path[2]))
        pieces.append(Reference(path[1], steps, "{" + path[0].strip()))
        position = path.end()
    pieces.append(text[position:])
    return [piece for piece in pieces if piece != ""]


def references(value: Any) -> Iterator[Reference]:
    """Those of all texts inside a value; a text that is no template has none."""
    if isinstance(value, str):
        try:
            yield from (piece for piece in parse(value) if isinstance(piece, Reference))
        except TemplateError:
            return
    elif isinstance(value, dict):
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from references(getattr(value, name))


def check_template(value: Any, roots: Roots, place: Place) -> None:
    """Checks a template, or all of them inside a value."""
    if isinstance(value, dict):
        for key, item in value.items():
            check_template(item, roots, place / key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            check_template(item, roots, place / index)
    elif isinstance(value, str):
        try:
            found = parse(value)
        except TemplateError as error:
            place.error(f"has {error}, which is no path in braces", _REMEDY)
        else:
            for piece in found:
                if isinstance(piece, Reference):
                    _check_reference(piece, roots, place)


_REMEDY = r"write a path such as {context.user.id}, or \{ for a brace that is meant as one"


def _check_reference(reference: Reference, roots: Roots, place: Place) -> None:
    root = reference.root
    if root not in roots:
        remedy = suggestion(root, roots, r"take it away, or write \{ for a brace that is meant as one")
        return place.error(f"uses {reference.text}, and {root} is not known there", remedy)
    below = roots[root]
    if below is None or _is_below(reference, below):
        return None
    if not below:
        return place.error(f"uses {reference.text}, and {root} has nothing below it", f"write {{{root}}}")
    name = reference.dotted if root == "settings" else str(reference.steps[0]) if reference.steps else ""
    remedy = suggestion(name, below, f"write {{{root}.NAME}}")
    return place.error(f"uses {reference.text}, which {root} does not have", remedy)


def _is_below(reference: Reference, below: Collection[str]) -> bool:
    if not reference.steps:
        return not below
    if reference.root == "settings":
        return any(reference.dotted == key or reference.dotted.startswith(f"{key}.") for key in below)
    return reference.steps[0] in below
