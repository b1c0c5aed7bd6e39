"""The paths that an expression reads, as far as its text tells, and whether what they name can exist.

A path that leads nowhere would fail at every evaluation, or make `has(...)` false for ever. So it is an error when the
expression is compiled.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from errands.policy.cel.errors import CelError
from errands.policy.cel.scopes import ALIASES, Scope
from errands.policy.cel.tokens import CAPABILITIES, Token, closing, is_macro, tokens

#: A step to an item of a list by its number, and one to an item or a field that only an evaluation knows.
Item = 0
Unknown = None
Step = str | int | None
Path = tuple[Step, ...]


class Open(dict[str, Any]):
    """A map that may have more fields than the listed ones; `rest` is the shape of the others."""

    def __init__(self, fields: Mapping[str, Any], rest: Any = None) -> None:
        super().__init__(fields)
        self.rest = rest


#: What a value has below it: fields by name, the same for each item of a list, or nothing that is known.
Shape = dict[str, Any] | list[Any] | None


def _fields(names: str) -> dict[str, Shape]:
    return dict.fromkeys(names.split())


#: An input or an output. Parameters, exposed values and metadata stand beside its message.
TASK_IO: Shape = Open({"message": [None]})

#: All calls of one function.
RECORD: dict[str, Shape] = {
    **_fields("count_successful count_errored count_restricted"),
    **{name: [None] for name in _fields("timestamps inputs outputs successful errored restricted task_ids")},
}

#: The context, as `errands.policy.context` makes it.
CONTEXT: dict[str, Shape] = {
    "agent": _fields("name namespace started_at"),
    "user": _fields("id email"),
    "llm": {"model": None, "tokens": _fields("total prompt completion")},
    "_history": {"turns": [None], "turn_count": None},
    "input": [TASK_IO],
    "output": [TASK_IO],
    "capabilities": Open({"_meta": {"invocations": [None], **_fields("count delegation_count")}}, rest=RECORD),
}

RUNTIME: dict[str, Shape] = _fields("version dashboard_url api_root")


class Read(NamedTuple):
    """A path that an expression reads, such as `("context", "input", Item, "region")` for `c.input[0].region`."""

    path: Path
    #: Where it begins in the source.
    start: int
    #: Whether `has(...)` asks for its end, which may be missing then.
    is_asked: bool


def reads_in(source: str) -> Iterator[Read]:
    """Each path from a variable on, with short names written out."""
    row = list(tokens(source))
    texts = [token.text for token in row]
    # The variable of a macro hides another of its name, as in `list.exists(c, c > 1)`.
    local = {texts[index + 2] for index in range(len(row) - 2) if is_macro(row, index)}
    for index, token in enumerate(row):
        if token.kind != "name" or (index and texts[index - 1] == ".") or token.text in local:
            continue
        steps = list(_steps(row, index + 1))
        root = ALIASES.get(token.text, token.text)
        if root == "context" and steps and steps[0] in CAPABILITIES:
            steps[0] = CAPABILITIES[0]
        if steps:
            yield Read((root, *steps), token.start, index > 1 and texts[index - 2 : index] == ["has", "("])


def written(path: Path) -> str:
    """Return a path as people write it."""
    return "".join(f".{step}" if isinstance(step, str) else "[…]" for step in path).removeprefix(".")


def _steps(row: Sequence[Token], index: int) -> Iterator[Step]:
    """The steps from the token at `index` on, up to the first that is no field and no item."""
    while index < len(row):
        texts = [token.text for token in row[index : index + 4]]
        if texts[0] == "[":
            end = closing(row, index)
            inside = row[index + 1 : end]
            yield _literal(inside[0]) if len(inside) == 1 else Unknown
            index = end + 1
        elif texts == [".", "last", "(", ")"]:
            yield Item
            index += 4
        elif texts[0] == "." and len(texts) > 1 and row[index + 1].kind == "name" and texts[2:3] != ["("]:
            yield texts[1]
            index += 2
        else:
            return


def _literal(token: Token) -> Step:
    """The field or item that a literal names. What other tokens name is not known."""
    if token.kind == "number" and token.text.isdecimal():
        return Item
    if token.kind == "string" and "\\" not in token.text:
        for quote in ('"""', "'''", '"', "'"):
            if token.text.startswith(quote):
                return token.text.removeprefix(quote).removesuffix(quote)
    return Unknown


class Missing(NamedTuple):
    """The first step of a path that leads nowhere."""

    #: The path up to the step.
    before: Path
    step: Step
    #: The fields that there are instead; None in place of a list.
    names: list[str] | None


def missing(shape: Shape, path: Path) -> Missing | None:
    """Return where a path leaves the shape, or None when all of it can exist."""
    for depth, step in enumerate(path):
        if shape is None or step is Unknown:
            return None
        if isinstance(shape, list):
            if isinstance(step, str):
                return Missing(path[:depth], step, None)
            shape = shape[0]
        elif step in shape:
            shape = shape[step]
        elif isinstance(shape, Open) and isinstance(step, str):
            shape = shape.rest
        else:
            return Missing(path[:depth], step, list(shape))
    return None


def check_paths(scope: Scope, source: str) -> None:
    """Raises `CelError` for the first path that names something which never exists in `scope`."""
    known: dict[str, Shape] = {"context": CONTEXT, "runtime": RUNTIME, "input": Open({})}
    known |= dict.fromkeys(scope.task_ios, TASK_IO)
    variables = {name: known.get(name) for name in scope.variables}
    for read in reads_in(source):
        if read.path[0] not in variables:
            continue
        lost = missing(variables, read.path)
        if lost is not None:
            before = source[: read.start]
            problem, hint = _told(scope, lost)
            line, column = before.count("\n") + 1, read.start - before.rfind("\n")
            raise CelError(source, problem, hint=hint, line=line, column=column)


def _told(scope: Scope, lost: Missing) -> tuple[str, str]:
    name = written(lost.before)
    if lost.names is None:
        return f"{name} is a list and has no field {lost.step!r}", f"write {name}[0].{lost.step} or a macro"
    if isinstance(lost.step, str):
        close = difflib.get_close_matches(lost.step, lost.names, 1)
        hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(lost.names)}"
        return f"{name} has no field {lost.step!r}", hint
    if name in scope.task_ios:
        per_part = f"{name}.message.all(part, !has(part.text) || size(part.text) < 50000)"
        return f"{name} is a map, not a list", f"write {name}.message; for the length of its texts write {per_part}"
    return f"{name} is a map and has no item by number", "write the name of a field"
