"""A page of commands and what they print, run as a reader would: a server in one terminal, commands in another.

A block of `errands` commands may be followed by a block of text: what they print. Other commands are left alone. A
block with `errands serve` starts the server, or ends it and starts it again.

Ids, times and the port differ each time. An id of the page stands for the one that is printed in its place, also in
later commands; times are only compared in their form.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.docs.pages import ROOT, Block, blocks
from tests.unit.cli.processes import LongServed, Running, Served

#: As the page writes it.
ADDRESS = "127.0.0.1:8000"

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[47][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_MOVING = [
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r"\b\d+[smh]\b"), "SPAN"),
    (re.compile(" +"), " "),
]


def commands(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "bash" and "errands " in _first(block)]


def _first(block: Block) -> str:
    """The first line, unless the block prepares something first, which this place has already."""
    line = block.source.splitlines()[0]
    return "" if line.startswith(("pip ", "python")) else line


class Transcript:
    def __init__(self, folder: Path) -> None:
        (folder / "examples").symlink_to(ROOT / "examples")
        self._folder = folder
        self._stack = ExitStack()
        self._server: Served | None = None
        #: Of the page: printed.
        self._ids: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(self, block: Block) -> str:
        """What is printed, with the address and ids of the page. Both streams, as a terminal shows them."""
        if block.source.startswith("errands serve "):
            printed = self._serve(shlex.split(block.source)[2:])
        else:
            source = _replaced(block.source, self._ids)
            if block.source.startswith("errands tasks get"):
                self._settle(source.split()[-1])
            printed = self._command(source)
        self._learn(block.output or "", printed)
        return _replaced(printed, {there: here for here, there in self._ids.items()})

    def _serve(self, arguments: list[str]) -> str:
        if self._server is not None:
            self._server.stop()
        target, *options = arguments
        self._server = self._stack.enter_context(LongServed(target, *options, cwd=self._folder))
        self._ids[ADDRESS] = self._server.url.removeprefix("http://")
        return self._server.greeting

    def _command(self, source: str) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ERRANDS_")}
        program = f'set -o pipefail; errands() {{ {shlex.quote(sys.executable)} -m errands "$@"; }}\n{source}'
        done = subprocess.run(
            ["bash", "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self._folder,
            env=environment,
            timeout=170,
            check=False,
        )
        return done.stdout

    def _settle(self, task_id: str) -> None:
        """A reader is slower than the server."""
        assert self._server is not None
        with Running("tasks", "watch", self._server.url, task_id, cwd=self._folder) as watch:
            watch.read_until("input-required")

    def _learn(self, written: str, printed: str) -> None:
        for here, there in zip(_ID.findall(written), _ID.findall(printed), strict=False):
            self._ids.setdefault(here, there)


def _replaced(text: str, replacements: dict[str, str]) -> str:
    for old, new in replacements.items():
        text = text.replace(old, new)
    return text


def comparable(text: str) -> list[str]:
    """The lines without what differs each time."""
    for pattern, name in _MOVING:
        text = pattern.sub(name, text)
    return [line.rstrip() for line in text.strip().splitlines()]
