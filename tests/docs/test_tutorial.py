"""The pages of the tutorial, followed to the letter: files are saved, commands run, and what they print is compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.examples.transcripts import Transcript, commands, comparable


@pytest.mark.parametrize("name", ["first-agent.md", "first-manifest.md"])
def test_a_reader_who_follows_the_page_sees_what_it_says(name: str, tmp_path: Path) -> None:
    page = ROOT / "docs" / name
    for block in blocks(page):
        if saved := block.directives.get("file"):
            (tmp_path / saved).parent.mkdir(exist_ok=True)
            (tmp_path / saved).write_text(block.source)
    with Transcript(tmp_path) as transcript:
        for block in commands(page):
            printed = transcript.run(block)
            if block.output is not None:
                assert comparable(printed) == comparable(block.output), f"{block.place}: {block.source}"


@pytest.mark.parametrize(("name", "most"), [("first-agent.md", 120), ("first-manifest.md", 150)])
def test_a_page_of_the_tutorial_is_short(name: str, most: int) -> None:
    assert len((ROOT / "docs" / name).read_text().splitlines()) <= most
