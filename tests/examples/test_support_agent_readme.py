"""The page of examples/support-agent shows what really happens."""

from __future__ import annotations

from pathlib import Path

from tests.docs.pages import ROOT
from tests.examples.transcripts import Transcript, commands, comparable

PAGE = ROOT / "examples" / "support-agent" / "README.md"


def test_every_command_of_the_page_prints_what_the_page_says(tmp_path: Path) -> None:
    with Transcript(tmp_path) as transcript:
        for block in commands(PAGE):
            printed = transcript.run(block)
            if block.output is not None:
                assert comparable(printed) == comparable(block.output), f"{block.place}: {block.source}"
