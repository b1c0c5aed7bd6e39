"""The documentation as data: its pages, their blocks, tables, headings and links.

A fenced block may follow a line with a directive, an HTML comment that readers do not see:

    <!-- continues -->         the block goes on where the last Python block of the page ended
    <!-- fragment -->          the block is no program: it is compiled and not run
    <!-- file: NAME -->        readers save the block under this name, and later commands of the page use it
    <!-- agent: FILE.py -->    while the block runs, the server of this file answers at http://localhost:8000
"""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from markdown_tables import code as code
from markdown_tables import prose
from markdown_tables import tables as tables

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / "README.md", ROOT / "SECURITY.md"),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]

_FENCE = re.compile(r"^(?P<indent>\s*)```(?P<language>\w*)\s*$")
_COMMENT = re.compile(r"^\s*<!--\s*(?P<name>[\w-]+)(?::\s*(?P<value>.+?))?\s*-->\s*$")
_DIRECTIVES = {"continues", "fragment", "file", "agent"}


@dataclass
class Block:
    page: Path
    #: Of the block's first line of code, from 1.
    line: int
    language: str
    source: str
    directives: dict[str, str] = field(default_factory=dict)
    #: The block of plain text right after it: what it prints.
    output: str | None = None

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"

    def expected_output(self) -> list[str] | None:
        """What it prints, by the text after it or the comments beside its prints; None when it does not say."""
        if self.output is not None:
            return self.output.splitlines()
        prints = [n for n in ast.walk(ast.parse(self.source)) if isinstance(n, ast.Call) and _is_print(n)]
        tokens = tokenize.generate_tokens(io.StringIO(self.source).readline)
        comments = {t.start[0]: t.string.removeprefix("#").strip() for t in tokens if t.type == tokenize.COMMENT}
        beside = [comments.get(call.end_lineno or 0) for call in sorted(prints, key=lambda call: call.lineno)]
        told = [comment for comment in beside if comment is not None]
        assert not told or len(told) == len(beside), f"{self.place}: some prints say what they print, others do not"
        return told or None


def _is_print(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "print"


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    lines = page.read_text().splitlines()
    position = 0
    while position < len(lines):
        opening = _FENCE.match(lines[position])
        position += 1
        if opening is None:
            continue
        end = next(n for n in range(position, len(lines)) if lines[n].strip() == "```")
        source = textwrap.dedent("\n".join(lines[position:end])) + "\n"
        follows = (
            bool(found) and not "".join(lines[found[-1].line + found[-1].source.count("\n") : position - 1]).strip()
        )
        if opening["language"] == "text" and follows:
            found[-1].output = source
        directives = _directives(lines[: position - 1], f"{page.name}:{position}")
        found.append(Block(page, position + 1, opening["language"], source, directives))
        position = end + 1
    return found


def _directives(before: list[str], place: str) -> dict[str, str]:
    directives: dict[str, str] = {}
    while before and (comment := _COMMENT.match(before[-1])):
        assert comment["name"] in _DIRECTIVES, f"{place}: unknown directive {comment['name']}"
        directives[comment["name"]] = comment["value"] or ""
        before = before[:-1]
    return directives


def programs() -> list[list[Block]]:
    """Every Python block; those that continue another are with it."""
    found: list[list[Block]] = []
    for page in PAGES:
        begun = False
        for block in blocks(page):
            if block.language != "python":
                continue
            if "continues" in block.directives:
                assert begun, f"{block.place}: there is nothing to continue"
                found[-1].append(block)
            else:
                found.append([block])
            begun = True
    return found


def table(page: str, header: str) -> dict[str, list[str]]:
    """The rows of the tables whose first column is called `header`, by the code in their first cell."""
    matching = [t for t in tables((ROOT / page).read_text()) if t.header[0] == header]
    assert matching, f"{page} has no table with a first column {header!r}"
    return {code(row[0]): row for t in matching for row in t.rows}


def names_in_code(text: str) -> set[str]:
    """Every name in backticks and in blocks."""
    pieces = re.findall(r"```\w*\n(.*?)```|`([^`\n]+)`", text, re.DOTALL)
    return {name for piece in pieces for name in re.findall(r"\w+", "".join(piece))}


def sections(page: str) -> dict[str, str]:
    """The text below each heading, by the heading without its marks."""
    found: dict[str, list[str]] = {}
    heading = ""
    inside = False
    for line in (ROOT / page).read_text().splitlines():
        inside = inside != line.lstrip().startswith("```")
        if line.startswith("#") and not inside:
            heading = line.lstrip("#").strip().replace("`", "")
        found.setdefault(heading, []).append(line)
    return {heading: "\n".join(lines) for heading, lines in found.items()}


def anchors(page: Path) -> set[str]:
    headings = [line.lstrip("#").strip() for line in prose(page.read_text()) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


class Link(NamedTuple):
    page: Path
    target: str


def links() -> list[Link]:
    """Links to other places in this repository."""
    found = [
        Link(page, target)
        for page in PAGES
        for line in prose(page.read_text())
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line))
    ]
    return [link for link in found if not re.match(r"[a-z]+:", link.target)]
