"""An expression as tokens and paths: what its text says before the engine sees it.

The text says which parts of the context an expression needs, how much it may multiply its values, and which fields
it reads. A path that leads nowhere would fail at every evaluation, or make `has(...)` false forever, so it is an error
when the expression is compiled.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, islice, takewhile
from typing import Any, NamedTuple

from errands.policy.cel.scopes import ALIASES, NameScope
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

#: A text without escapes: its quotes and its content.
_QUOTED = re.compile(r"""("{3}|'{3}|"|')([^\\]*)\1""")
_COMPARISONS = (["=", "="], ["!", "="])
_NESTING = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}
_MACROS = frozenset({"map", "filter", "all", "exists", "exists_one", "existsOne"})
_GROWS = frozenset({"+", "[", "{"})


class Token(NamedTuple):
    """A string keeps its quotes, so its text is never that of a name or a sign."""

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


def without_texts(source: str) -> str:
    """Return the source with spaces in place of strings and comments."""
    return _TOKEN.sub(lambda match: " " * len(match[0]) if match.lastgroup in ("string", "space") else match[0], source)


def closing(row: Sequence[Token], opening: int) -> int:
    """Return the index of the token that closes the one at `opening`; the end of the row when none does."""
    level = 0
    for index in range(opening, len(row)):
        level += _NESTING.get(row[index].text, 0)
        if level == 0:
            return index
    return len(row)


def depth(row: Sequence[Token]) -> int:
    """Return how deep brackets are nested."""
    return max(accumulate((_NESTING.get(token.text, 0) for token in row), initial=0))


def macros(row: Sequence[Token]) -> list[int]:
    """Return the indexes of the names of macros that loop."""
    texts = [token.text for token in row]
    called = range(1, len(row) - 1)
    return [at for at in called if texts[at] in _MACROS and texts[at - 1] == "." and texts[at + 1] == "("]


def growth(row: Sequence[Token]) -> int:
    """Return by how much macros may multiply a value: the product of how often each copies its variable.

    The engine bounds iterations and nesting, but `['x'].map(x, x + x).map(x, x + x)…` doubles a value with each step.
    """
    product = 1
    for index in macros(row):
        variable, *body = [token.text for token in row[index + 2 : closing(row, index + 1)]] or [""]
        if row[index].text == "map" or not _GROWS.isdisjoint(body):
            product *= max(1, body.count(variable), body.count("+"))
    return product


def copying(row: Sequence[Token]) -> int:
    """Return by how much a list may have grown before another is built of it item by item; 0 when none is built."""
    if not any(row[index].text in ("map", "filter") for index in macros(row)):
        return 0
    sums = sum(token.text == "+" for token in row)
    return max(sums + 1, growth(row)) if sums else 1


def without_has_event(scope: NameScope, source: str, row: Sequence[Token]) -> str:
    """Return the source with `false` in place of `has(event)`: errands has no events that activate capabilities.

    `has(event)` asks whether a variable exists, which the language can ask of fields only. Where the scope has no
    events at all, the name is left for the engine to refuse. Everything else keeps its place, so that errors name the
    right line and column.
    """
    instead = "false" if "event" in scope.variables else "event"
    for index in range(len(row) - 3):
        if [token.text for token in row[index : index + 4]] == ["has", "(", "event", ")"]:
            start, end = row[index].start, row[index + 3].start + 1
            rest = re.sub(r"[^\n]", " ", source[start + len(instead) : end])
            source = f"{source[:start]}{instead}{rest}{source[end:]}"
    return source


# Paths

#: A step to an item of a list by its number, and a step to an item or a field that only an evaluation knows.
Item = 0
Unknown = None
Step = str | int | None
Path = tuple[Step, ...]

#: Under which names the context has its capabilities.
CAPABILITIES = ("capabilities", "cap")
#: The lists of a record that hold values of calls; the others hold counts and times.
_HELD = ("inputs", "outputs")


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
    local = {text for index in macros(row) for text in texts[index + 2 : index + 3]}
    for index, token in enumerate(row):
        if token.kind != "name" or (index and texts[index - 1] == ".") or token.text in local:
            continue
        steps = [step for step, _ in _steps(row, index + 1)]
        root = ALIASES.get(token.text, token.text)
        if root == "context" and steps and steps[0] in CAPABILITIES:
            steps[0] = CAPABILITIES[0]
        if steps:
            yield Read((root, *steps), token.start, index > 1 and texts[index - 2 : index] == ["has", "("])


def _steps(row: Sequence[Token], index: int) -> Iterator[tuple[Step, int]]:
    """Yield the steps from the token at `index` on, each with its end, up to one that is neither field nor item."""
    while index < len(row):
        texts = [token.text for token in row[index : index + 4]]
        step: Step
        if texts[0] == "[":
            end = closing(row, index)
            inside, step, index = row[index + 1 : end], Unknown, end + 1
            if len(inside) == 1 and inside[0].kind == "number" and inside[0].text.isdecimal():
                step = Item
            elif len(inside) == 1 and (quoted := _QUOTED.fullmatch(inside[0].text)):
                step = quoted[2]
        elif texts == [".", "last", "(", ")"]:
            step, index = Item, index + 4
        elif texts[0] == "." and len(texts) > 1 and row[index + 1].kind == "name" and texts[2:3] != ["("]:
            step, index = texts[1], index + 2
        else:
            return
        yield step, index


def written(path: Path) -> str:
    """Return a path as people write it."""
    return "".join(f".{step}" if isinstance(step, str) else "[…]" for step in path).removeprefix(".")


#: Paths into the context: `()` is all of it, `("user",)` a section, `("capabilities", "search")` one function.
Parts = frozenset[tuple[str, ...]]


def context_parts(row: Sequence[Token]) -> tuple[Parts, Parts]:
    """Return which parts of the context an expression needs, and into which it can look, as far as its text tells.

    It needs more than it looks into when it only asks how many items or which fields there are, or for counts and
    times. Converting all of the context costs far more than the evaluation.
    """
    needed: set[tuple[str, ...]] = set()
    looked_into: set[tuple[str, ...]] = set()
    for index, token in enumerate(row):
        if token.text not in ("context", "c"):
            continue
        fields = list(takewhile(lambda step: isinstance(step[0], str), islice(_steps(row, index + 1), 3)))
        path = tuple(str(step) for step, _ in fields)
        if not path or (index and row[index - 1].text == "."):
            # All of it, or a field of the name `context`: rare, and never wrong.
            short = {CAPABILITIES[1:]} if any(token.text.strip("'\"") == CAPABILITIES[1] for token in row) else set()
            return frozenset({(), *short}), frozenset({()})
        is_function = path[0] in CAPABILITIES
        needed.add(path[:2] if is_function else path[:1])
        before = [token.text for token in row[max(0, index - 2) : index]]
        after = [token.text for token in row[fields[-1][1] :][:4]]
        is_counted = (
            after == [".", "size", "(", ")"]
            or (before in (["size", "("], ["has", "("]) and after[:1] == [")"])
            or (is_function and len(path) < 3 and before[-1:] == ["in"] and after[:1] not in (["."], ["["]))
            or (is_function and len(path) == 3 and path[2] not in _HELD)
        )
        if not is_counted:
            looked_into.add((CAPABILITIES[0], *path[1:2]) if is_function else path[:1])
    return frozenset(needed), frozenset(looked_into)


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

#: The context, as `errands.policy.context_object` makes it.
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

#: What access rules see of a caller and a message. Fields of the message that it does not have are absent.
CALLER: dict[str, Shape] = _fields("owner tenant email scopes claims scheme")
MESSAGE: dict[str, Shape] = {
    **_fields("messageId contextId taskId role metadata extensions referenceTaskIds"),
    "parts": [_fields("text raw url data metadata filename mediaType")],
}


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


def check_paths(scope: NameScope, source: str) -> None:
    """Raise `CelError` for the first path that names something which never exists in `scope`."""
    known: dict[str, Shape] = {"context": CONTEXT, "runtime": RUNTIME, "input": Open({})}
    known |= {"caller": CALLER, "message": MESSAGE}
    known |= dict.fromkeys(scope.task_ios, TASK_IO)
    variables = {name: known.get(name) for name in scope.variables}
    for read in reads_in(source):
        lost = missing(variables, read.path) if read.path[0] in variables else None
        if lost is None:
            continue
        name, step = written(lost.before), lost.step
        if lost.names is None:
            problem, hint = f"is a list and has no field {step!r}", f"write {name}[0].{step} or a macro"
        elif isinstance(step, str):
            close = difflib.get_close_matches(step, lost.names, 1)
            problem = f"has no field {step!r}"
            hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(lost.names)}"
        elif name in scope.task_ios:
            per_part = f"{name}.message.all(part, !has(part.text) || size(part.text) < 50000)"
            problem = "is a map, not a list"
            hint = f"write {name}.message; for the length of its texts write {per_part}"
        else:
            problem, hint = "is a map and has no item by number", "write the name of a field"
        raise CelError.at(source, read.start, f"{name} {problem}", hint=hint)


def check_choices(scope: NameScope, source: str, row: Sequence[Token]) -> None:
    """Raise `CelError` for a comparison with a word that the variable or field never is, as in `operation == 'Get'`."""
    texts = [token.text for token in row]
    for name, words in scope.choices:
        path = [token.text for token in tokens(name)]
        for start in range(len(row)):
            end = start + len(path)
            if texts[start:end] != path or texts[start - 1 : start] == ["."]:
                continue
            compared: list[Token] = []
            if texts[end : end + 2] in _COMPARISONS:
                compared = list(row[end + 2 : end + 3])
            elif texts[end : end + 2] == ["in", "["]:
                compared = list(row[end + 2 : closing(row, end + 1)])
            if start > 2 and texts[start - 2 : start] in _COMPARISONS:
                compared.append(row[start - 3])
            for token in compared:
                quoted = _QUOTED.fullmatch(token.text)
                if quoted is not None and quoted[2] not in words:
                    close = difflib.get_close_matches(quoted[2], words, 1)
                    hint = f"did you mean '{close[0]}'?" if close else f"it is one of {', '.join(sorted(words))}"
                    raise CelError.at(source, token.start, f"{name} is never {token.text}", hint=hint)
