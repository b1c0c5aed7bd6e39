"""The animated terminal of the README: what it shows was printed by real commands, and it is only a picture."""

from __future__ import annotations

import os
import re
import runpy
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "terminal_session.py"))
Output, Screen, Terminal, picture = (SCRIPT[name] for name in ("Output", "Screen", "Terminal", "picture"))
COMMITTED = (ROOT / "docs" / "images" / "terminal.svg").read_text()


def lines_of(svg: str) -> list[str]:
    """The lines of a picture as they stand at the end."""
    rows: dict[str, list[tuple[float, str]]] = {}
    for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        if "gone" not in text.attrib["class"].split():
            rows.setdefault(text.attrib["y"], []).append((float(text.attrib["x"]), text.text or ""))
    ordered = sorted(rows.items(), key=lambda row: float(row[0]))
    return ["".join(part for _, part in sorted(parts)).replace(" ", "") for _, parts in ordered]


def test_what_is_typed_and_printed_is_in_the_picture(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, dict(os.environ))
    try:
        terminal.wait()
        assert "5050\r\n" in terminal.run("echo $((100 * 101 / 2))")
        terminal.run("printf 'wrong\\rright\\n'")
    finally:
        terminal.close()
    lines = lines_of(picture(terminal.outputs))
    assert "$echo$((100*101/2))" in lines
    assert "5050" in lines
    assert "right" in lines
    assert "wrong" not in lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[32mgreen\x1b[0m", [("green", "g")]),
        ("\x1b[1;31mred\x1b[39;22m\x1b[0m.", [("red", "r bold"), (".", "")]),
        ("half\r\x1b[Kwhole", [("whole", "")]),
    ],
)
def test_colours_are_kept_and_what_is_erased_goes(text: str, shown: list[tuple[str, str]]) -> None:
    screen = Screen()
    screen.feed(Output(0.0, text))
    cells = [cell for cell in screen.cells if cell.until is None]
    styles = dict.fromkeys(cell.style for cell in cells)
    assert [("".join(cell.text for cell in cells if cell.style == style), style) for style in styles] == shown


def test_the_picture_of_the_readme_shows_a_task_that_survives_its_server() -> None:
    lines = lines_of(COMMITTED)
    assert any(line.startswith("$kill-9%1") for line in lines)
    assert [line for line in lines if re.search(r"^\d+statuscompleted$", line)]


def test_the_picture_of_the_readme_needs_nothing_else() -> None:
    assert "<script" not in COMMITTED
    assert re.findall(r"(?:href|src)=|url\(|@import", COMMITTED) == []
    assert "prefers-reduced-motion" in COMMITTED
    assert len(COMMITTED) < 100_000
