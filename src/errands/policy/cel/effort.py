"""How much work an evaluation may be, told before it is begun: the engine holds its process until it is done.

The estimate is rough, and rather high. The text of an expression says how often it goes over what it sees, and what it
sees has a size. A unit is one byte that is passed over once: 3 ns for texts, 100 ns for long lists of small values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from errands.policy.cel.tokens import Token, closing, copying, growth, is_macro

#: More than this is work for a process of its own.
LONG = 4_000_000

#: The engine's own bound for all loops of an evaluation together.
_MOST_LOOPS = 10_000
#: A regular expression that does not stand in the expression.
_UNKNOWN_PATTERN = 10_000
_LARGEST_PATTERN = 100_000
_PIECE = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{(\d{1,5})(?:,(\d{0,5}))?\}|.", re.DOTALL)
#: For each item of a list that is copied whenever it grows by one.
_COPIED = 10
#: The square of the bytes that a search goes over, per unit. The worst texts take longer than that, a second at
#: most; ordinary ones take no time, and need no process of their own.
_SEARCHED = 50_000
#: Values that are as good as nothing take time, too.
_SMALLEST = 100
_CONSTANTS = frozenset({"true", "false", "null", "in"})


class Effort(NamedTuple):
    """What the text of an expression tells."""

    #: How often it goes over what it sees, outside of loops.
    passes: int
    #: How deep loops are nested that see more than their own items; the others go over everything once.
    nesting: int
    #: Items of the longest list that stands in it.
    items: int
    #: Whether it has loops, and whether they build lists.
    loops: bool
    copies: bool
    #: Searches for texts that do not stand in it: the work grows with the square of what they go over.
    searches: int

    def least(self, size: int) -> int:
        """The work over values of `size` bytes when nothing is to be looped over."""
        return self._once(size) * self.passes

    def of(self, size: int, items: int) -> int:
        """The work over values of `size` bytes, the longest list or map of which has `items`."""
        items = max(items, self.items)
        copied = items * items * _COPIED if self.copies else 0
        loops: int = min(items**self.nesting, _MOST_LOOPS)
        return (self._once(size) + copied) * self.passes * loops

    def _once(self, size: int) -> int:
        size = max(size, _SMALLEST)
        return size + self.searches * size * size // _SEARCHED


def effort(row: Sequence[Token]) -> Effort:
    operations = sum(_is_operation(row, index) for index in range(len(row)))
    sums = sum(token.kind == "sign" and token.text == "+" for token in row)
    patterns = sum(_pattern(row, index) for index, token in enumerate(row) if token.text == "matches")
    return Effort(
        passes=(1 + operations + patterns) * (1 + sums) * growth(row),
        nesting=_nesting(row),
        items=1 + sum(token.kind == "sign" and token.text == "," for token in row),
        loops=any(is_macro(row, index) for index in range(len(row))),
        copies=copying(row) > 0,
        searches=sum(_is_search(row, index) for index in range(len(row))),
    )


def _is_operation(row: Sequence[Token], index: int) -> bool:
    """A call, or an operator that may look at all of its operands."""
    token = row[index]
    if token.kind == "sign":
        return token.text in ("+", "=")
    return token.text == "in" or (token.kind == "name" and _is_called(row, index))


def _is_search(row: Sequence[Token], index: int) -> bool:
    """A search for a text that only an evaluation knows."""
    if row[index].text != "contains" or not _is_called(row, index):
        return False
    return any(token.kind == "name" for token in row[index + 2 : closing(row, index + 1)])


def _is_called(row: Sequence[Token], index: int) -> bool:
    return index + 1 < len(row) and row[index + 1].text == "("


def _pattern(row: Sequence[Token], index: int) -> int:
    """How much work a regular expression is for each character at most: as much as it is long when written out."""
    inside = row[index + 2 : closing(row, index + 1)] if _is_called(row, index) else ()
    texts = [token.text for token in inside if token.kind == "string"]
    return max(map(pattern_size, texts), default=_UNKNOWN_PATTERN)


def pattern_size(pattern: str) -> int:
    """Return the length of a regular expression when `(ab){3}` is written as `ababab`."""
    groups, last = [0], 0
    for piece in _PIECE.finditer(pattern):
        if piece[1]:
            times = max(1, int(piece[1]), int(piece[2] or 0))
            groups[-1] += last * (times - 1)
            last *= times
        elif piece[0] == "(":
            groups.append(0)
        elif piece[0] == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        else:
            last = 1
            groups[-1] += 1
    return min(sum(groups), _LARGEST_PATTERN)


def _nesting(row: Sequence[Token]) -> int:
    deepest = 0
    ends: list[int] = []
    for index in range(len(row)):
        ends = [end for end in ends if end > index]
        if is_macro(row, index):
            end = closing(row, index + 1)
            if _sees_more(row, index + 2, end):
                ends.append(end)
                deepest = max(deepest, len(ends))
    return deepest


def _sees_more(row: Sequence[Token], begin: int, end: int) -> bool:
    """Whether the body of a loop, from its variable on, names anything but its items and what is in them."""
    inner = {row[index + 2].text for index in range(begin, end - 2) if is_macro(row, index)}
    known = {row[begin].text, *inner} | _CONSTANTS if begin < len(row) else set()
    return any(
        row[index].kind == "name"
        and row[index].text not in known
        and row[index - 1].text != "."
        and not _is_called(row, index)
        for index in range(begin, end)
    )
