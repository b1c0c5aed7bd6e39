"""The tables of a page in Markdown, as data."""

from __future__ import annotations

import re
from typing import NamedTuple


class Table(NamedTuple):
    header: list[str]
    rows: list[list[str]]


def tables(text: str) -> list[Table]:
    """Return the tables outside of blocks."""
    found: list[Table] = []
    inside = False
    for line in prose(text):
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not inside:
            found.append(Table(cells, []))
        elif not all(set(cell) <= set("-: ") and cell for cell in cells):
            found[-1].rows.append(cells)
        inside = True
    return found


def code(cell: str) -> str:
    """Return the text in backticks."""
    found = re.search(r"`([^`]+)`", cell)
    return found[1] if found else cell


def prose(text: str) -> list[str]:
    """Return the lines outside of blocks."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside:
            lines.append(line)
    return lines
