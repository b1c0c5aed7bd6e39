"""What takes longer than two seconds shows its progress, in a terminal only."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from errands.cli.printing import SlowWork
from tests.terminal import Terminal
from tests.unit.cli.conftest import Errands
from tests.unit.cli.test_archives import fill, store


def test_an_import_that_waits_for_its_file_shows_how_far_it_is(errands: Errands, tmp_path: Path) -> None:
    source, archive = store("sqlite", tmp_path / "source"), tmp_path / "tasks.jsonl"
    asyncio.run(fill(source))
    errands("tasks", "export", str(archive), "--storage", source)
    *lines, end = archive.read_bytes().splitlines(keepends=True)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    target = f"sqlite:///{tmp_path / 'target.db'}"
    with Terminal("tasks", "import", str(pipe), "--storage", target, cwd=tmp_path) as terminal:
        with pipe.open("wb") as writer:
            writer.writelines(lines)
            writer.flush()
            terminal.shows("Importing: ")
            writer.write(end)
        terminal.shows("4 tasks imported; 0 existed already.")
        assert terminal.exit_code() == 0
        assert "Importing" not in terminal.display


def test_a_pipe_sees_nothing_of_it(errands: Errands, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        async with SlowWork("Working", "task", patience=0) as slow:
            slow.advance()
            await asyncio.sleep(0)

    asyncio.run(work())
    assert capsys.readouterr() == ("", "")
