"""An expression as tokens and paths: what its text says before the engine sees it.

The text says which parts of the context an expression needs, how much it may multiply its values, and which fields
it reads. A path that leads nowhere would fail at every evaluation, or make `has(...)` false forever, so it is an error
when the expression is compiled.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from errands.policy.cel.scopes import ALIASES, Scope
from errands.policy.cel.session import CelError

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|//[^\n]*)
  | (?P<string>(?:[bB]?[rR]|[rR][bB])(?:\"{3}.*?\"{3}|'{3}.*?'{3}|"[^"\n]*"|'[^'\n]*')
             | [bB]?(?:\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<number>\d[\w.]*)
  | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)

_OPENING = ("(", "[", "{")
_CLOSING = (")", "]", "}")
_MACROS = frozenset({"map", "filter", "all", "exists", "exists_one", "existsOne"})
_GROWS = frozenset({"+", "[", "{"})
#: A string literal without escapes.
_PLAIN = re.compile(r"""'[^'"\\]*'$|"[^'"\\]*"$""")


class Token(NamedTuple):
    kind: str
    text: str
    #: Where it begins in the source.
    start: int


def tokens(source: str, start: int = 0) -> Iterator[Token]:
    """Yield the tokens one by one, so that a reader may stop at the first that is not its own."""
    for match in _TOKEN.finditer(source, start):
        kind = match.lastgroup or "sign"
        if kind != "space":
            yield Token(kind, match.group(), match.start())


def closing(row: Sequence[Token], opening: int) -> int:
    """Return the index of the token that closes the one at `opening`; the end of the row when none does."""
    depth = 0
    for index in range(opening, len(row)):
        text = row[index].text if row[index].kind == "sign" else ""
        if text in _OPENING:
            depth += 1
        elif text in _CLOSING:
            depth -= 1
            if depth == 0:
                return index
    return len(row)


def depth(row: Sequence[Token]) -> int:
    """Return how deep brackets are nested."""
    deepest = level = 0
    for token in row:
        if token.kind == "sign":
            level += (token.text in _OPENING) - (token.text in _CLOSING)
            deepest = max(deepest, level)
    return deepest


def is_macro(row: Sequence[Token], index: int) -> bool:
    """Return whether the token is the name of a macro that loops."""
    if row[index].text not in _MACROS or not 0 < index < len(row) - 1:
        return False
    return row[index - 1].text == "." and row[index + 1].text == "("


def growth(row: Sequence[Token]) -> int:
    """Return by how much macros may multiply a value: the product of how often each copies its variable.

    The engine bounds iterations and nesting, but `['x'].map(x, x + x).map(x, x + x)…` doubles a value with each step.
    """
    product = 1
    for index in range(1, len(row) - 3):
        if not is_macro(row, index):
            continue
        variable = row[index + 2].text
        body = row[index + 4 : closing(row, index + 1)]
        if row[index].text == "map" or any(token.text in _GROWS for token in body if token.kind == "sign"):
            copies = sum(token.kind == "name" and token.text == variable for token in body)
            sums = sum(token.kind == "sign" and token.text == "+" for token in body)
            product *= max(1, copies, sums)
    return product


def copying(row: Sequence[Token]) -> int:
    """Return by how much a list may have grown before another is built of it item by item; 0 when none is built."""
    if not any(
        row[index].text in ("map", "filter") and row[index - 1].text == "." and row[index + 1].text == "("
        for index in range(1, len(row) - 1)
    ):
        return 0
    sums = sum(token.kind == "sign" and token.text == "+" for token in row)
    return max(sums + 1, growth(row)) if sums else 1


def names(row: Sequence[Token]) -> frozenset[str]:
    """Return all names that may be those of variables, in their long forms."""
    return frozenset(ALIASES.get(token.text, token.text) for token in row if token.kind == "name")


class Needs(NamedTuple):
    """The parts of the context that an expression can touch, as far as its text tells."""

    #: All of it.
    whole: bool = False
    #: The short name `cap` occurs.
    cap: bool = False
    #: Sections, such as `user`.
    sections: frozenset[str] = frozenset()
    #: Single records, as `("capabilities", "search")`.
    records: frozenset[tuple[str, str]] = frozenset()


#: Under which names the context has its capabilities.
CAPABILITIES = ("capabilities", "cap")


def needs(row: Sequence[Token]) -> Needs:
    """Return what an expression needs of the context: converting all of it costs far more than the evaluation."""
    sections: set[str] = set()
    records: set[tuple[str, str]] = set()
    cap = any(token.text.strip("'\"") == "cap" for token in row)
    for index, token in enumerate(row):
        if token.kind != "name" or token.text not in ("context", "c"):
            continue
        path, _ = _path(row, index)
        if not path or (index and row[index - 1].text == "."):
            # All of it, or a field of the name `context`: rare, and never wrong.
            return Needs(whole=True, cap=cap)
        if path[0] in CAPABILITIES and len(path) > 1:
            records.add((path[0], path[1]))
        else:
            sections.add(path[0])
    return Needs(False, cap, frozenset(sections), frozenset(records))


#: The lists of a record that hold values of calls; the others hold counts and times.
_HELD = ("inputs", "outputs")


def reads(row: Sequence[Token]) -> frozenset[tuple[str, ...]]:
    """Return the parts of the context whose values an expression can look into, as far as its text tells.

    They are written as in `SeenContext.cut`, or shorter for all of them: `()` is the whole context.
    """
    found: set[tuple[str, ...]] = set()
    for index, token in enumerate(row):
        if token.kind != "name" or token.text not in ("context", "c"):
            continue
        path, end = _path(row, index, 3)
        if not path or (index and row[index - 1].text == "."):
            return frozenset({()})
        of_function = path[0] in CAPABILITIES
        if of_function and len(path) == 3 and path[2] not in _HELD:
            continue
        if not _is_counted(row, index, end, is_map=of_function and len(path) < 3):
            found.add((CAPABILITIES[0], *path[1:2]) if of_function else (path[0],))
    return frozenset(found)


def _is_counted(row: Sequence[Token], start: int, end: int, *, is_map: bool) -> bool:
    """Return whether an expression only asks how many items or which fields there are.

    Examples are `size(context.input)`, `context.input.size()`, `has(context.capabilities.search)`, and for a map
    `'search' in context.capabilities`.
    """
    before = [token.text for token in row[max(0, start - 2) : start]]
    after = [token.text for token in row[end : end + 4]]
    if after == [".", "size", "(", ")"]:
        return True
    if before in (["size", "("], ["has", "("]) and after[:1] == [")"]:
        return True
    return is_map and before[-1:] == ["in"] and after[:1] not in (["."], ["["])


def _path(row: Sequence[Token], index: int, most: int = 2) -> tuple[list[str], int]:
    """Return the first fields selected from the name at `index`, and where they end. A method is not a field."""
    path: list[str] = []
    end = index + 1
    while len(path) < most:
        field, length = _field(row[end : end + 3])
        if field is None:
            break
        path.append(field)
        end += length
    return path, end


def _field(row: Sequence[Token]) -> tuple[str | None, int]:
    """Return the field that `.name` or `['name']` selects, and the number of its tokens."""
    texts = [token.text for token in row]
    if texts[:1] == ["."] and len(row) > 1 and row[1].kind == "name" and texts[2:] != ["("]:
        return texts[1], 2
    if len(row) == 3 and texts[0] == "[" and texts[2] == "]" and _PLAIN.match(texts[1]):
        return texts[1][1:-1], 3
    return None, 0


#: `has(event)` asks whether a variable exists, which the language can ask of fields only.
_HAS_EVENT = ("has", "(", "event", ")")


def without_has_event(scope: Scope, source: str, row: Sequence[Token]) -> str:
    """Return the source with `false` in place of `has(event)`: errands has no events that activate capabilities.

    Where the scope has no events at all, the name is left for the engine to refuse. Everything else keeps its place, so
    that errors name the right line and column.
    """
    instead = "false" if "event" in scope.variables else "event"
    for index in range(len(row) - 3):
        part = row[index : index + 4]
        if tuple(token.text for token in part) == _HAS_EVENT and all(token.kind != "string" for token in part):
            start, end = part[0].start, part[3].start + 1
            rest = re.sub(r"[^\n]", " ", source[start + len(instead) : end])
            source = f"{source[:start]}{instead}{rest}{source[end:]}"
    return source


# Paths

#: A step to an item of a list by its number, and a step to an item or a field that only an evaluation knows.
Item = 0
Unknown = None
Step = str | int | None
Path = tuple[Step, ...]


class Open(dict[str, Any]):
    """A map that may have more fields than the listed ones; `rest` is the shape of the others."""

    def __init__(self, fields: Mapping[str, Any], rest: Any = None) -> None:
        super().__init__(fields)
        self.rest = rest


#: What a value contains: fields by name, the shape of each item of a list, or None when it is not known.
Shape = dict[str, Any] | list[Any] | None


def _fields(names: str) -> dict[str, Shape]:
    return dict.fromkeys(names.split())


#: An input or an output. It has parameters, exposed values and metadata beside its message.
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
    """Yield each path from a variable on, with short names written out."""
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
    """Yield the steps from the token at `index` on, up to the first that is neither a field nor an item."""
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
    """Return the field or item that a literal names; `Unknown` for other tokens."""
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
    """Raise `CelError` for the first path that names something which never exists in `scope`."""
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
