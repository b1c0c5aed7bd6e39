"""An expression as a row of tokens: enough to rewrite and to judge it before the engine sees it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from errands.policy.cel.scopes import ALIASES

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
#: A text in which every character stands for itself.
_PLAIN = re.compile(r"""'[^'"\\]*'$|"[^'"\\]*"$""")


class Token(NamedTuple):
    kind: str
    text: str
    #: Where it begins in the source.
    start: int


def tokens(source: str, start: int = 0) -> Iterator[Token]:
    """Lazily, so that a reader may stop at the first token that is not its own."""
    for match in _TOKEN.finditer(source, start):
        kind = match.lastgroup or "sign"
        if kind != "space":
            yield Token(kind, match.group(), match.start())


def closing(row: Sequence[Token], opening: int) -> int:
    """The index of the token that closes the one at `opening`; the end of the row when nothing does."""
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
    """How deep brackets are nested."""
    deepest = level = 0
    for token in row:
        if token.kind == "sign":
            level += (token.text in _OPENING) - (token.text in _CLOSING)
            deepest = max(deepest, level)
    return deepest


def is_macro(row: Sequence[Token], index: int) -> bool:
    """Whether the token is the name of a macro that loops."""
    if row[index].text not in _MACROS or not 0 < index < len(row) - 1:
        return False
    return row[index - 1].text == "." and row[index + 1].text == "("


def growth(row: Sequence[Token]) -> int:
    """By how much macros may multiply a value: the product, over all of them, of how often one copies its variable.

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
    """0 when no list is built item by item; otherwise by how much a list may have grown before that."""
    if not any(
        row[index].text in ("map", "filter") and row[index - 1].text == "." and row[index + 1].text == "("
        for index in range(1, len(row) - 1)
    ):
        return 0
    sums = sum(token.kind == "sign" and token.text == "+" for token in row)
    return max(sums + 1, growth(row)) if sums else 1


def names(row: Sequence[Token]) -> frozenset[str]:
    """All names that may be those of variables, in their long forms."""
    return frozenset(ALIASES.get(token.text, token.text) for token in row if token.kind == "name")


class Needs(NamedTuple):
    """Which parts of the context an expression can touch, as far as its text tells."""

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
    """Converting a large context costs far more than evaluating an expression; so only what is named is converted."""
    sections: set[str] = set()
    records: set[tuple[str, str]] = set()
    cap = any(token.text.strip("'\"") == "cap" for token in row)
    for index, token in enumerate(row):
        if token.kind != "name" or token.text not in ("context", "c"):
            continue
        path, _ = _path(row, index)
        if not path or (index and row[index - 1].text == "."):
            # The whole is wanted, or `.context` or a field of that name: rare, and never wrong.
            return Needs(whole=True, cap=cap)
        if path[0] in CAPABILITIES and len(path) > 1:
            records.add((path[0], path[1]))
        else:
            sections.add(path[0])
    return Needs(False, cap, frozenset(sections), frozenset(records))


#: The lists of a record that hold values of others; the rest counts and dates.
_HELD = ("inputs", "outputs")


def reads(row: Sequence[Token]) -> frozenset[tuple[str, ...]]:
    """The parts of the context whose values an expression can look into, as far as its text tells.

    They are written as in `SeenContext.cut`, or shorter when it is all of them: `()` is the whole context.
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
    """Whether it is only asked how many items there are, or which fields, of what stands there.

    That is `size(context.input)`, `context.input.size()`, `has(context.capabilities.search)`, and of a map
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
    """The fields selected from the name at `index`, the first of them, and where they end; a method is no field."""
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
    """The field that `.name` or `['name']` selects, and the number of its tokens."""
    texts = [token.text for token in row]
    if texts[:1] == ["."] and len(row) > 1 and row[1].kind == "name" and texts[2:] != ["("]:
        return texts[1], 2
    if len(row) == 3 and texts[0] == "[" and texts[2] == "]" and _PLAIN.match(texts[1]):
        return texts[1][1:-1], 3
    return None, 0


#: `has(event)` asks whether a variable exists, which the language can ask of fields only.
_PRESENCE = ("has", "(", "event", ")")
#: The map whose fields are the variables that exist.
PRESENT = "_present"


class Rewritten(NamedTuple):
    source: str
    #: Where in the original something was put in.
    insertions: tuple[int, ...]

    def original(self, line: int, column: int) -> tuple[int, int]:
        """The place in the original of a place in the rewritten source."""
        lines = self.source.split("\n")
        offset = sum(len(text) + 1 for text in lines[: line - 1]) + column - 1
        added = len(PRESENT) + 1
        begin = offset - column + 1
        before = [place for number, place in enumerate(self.insertions) if place + number * added < offset]
        earlier = [place for number, place in enumerate(before) if place + number * added < begin]
        return line, max(1, column - added * (len(before) - len(earlier)))


def rewrite_presence(source: str, row: Sequence[Token]) -> Rewritten:
    """`has(event)` as `has(_present.event)`; what stands in a string literal is one token and stays."""
    places = tuple(
        row[index + 2].start
        for index in range(len(row) - 3)
        if tuple(token.text for token in row[index : index + 4]) == _PRESENCE
        and all(token.kind != "string" for token in row[index : index + 4])
    )
    pieces = [source[begin:end] for begin, end in zip((0, *places), (*places, len(source)), strict=True)]
    return Rewritten(f"{PRESENT}.".join(pieces), places)
