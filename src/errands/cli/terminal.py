"""Where commands write: answers to stdout, everything about them to stderr, colours only on a terminal."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
from rich.console import Console

#: Width of tables in a pipe, where nobody's screen is too narrow.
_PIPE_WIDTH = 200
#: Left alone they could drive the terminal: clear it, retitle it, hide what was written before.
_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}

STATE_STYLES = {
    "completed": "green",
    "failed": "red",
    "rejected": "red",
    "canceled": "yellow",
    "input-required": "magenta",
    "auth-required": "magenta",
}


def out() -> Console:
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(width=width, highlight=False, markup=False, emoji=False, soft_wrap=True)


def err() -> Console:
    return Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


def clean(text: str) -> str:
    """Somebody else's text without control characters, fit for a terminal."""
    return text.translate(_CONTROLS)


def one_line(text: str, limit: int = 60) -> str:
    """The first words of a text."""
    words = " ".join(clean(text).split())
    return words if len(words) <= limit else words[: limit - 1] + "…"


def duration(ms: int) -> str:
    """A span of time in the largest unit that fits."""
    seconds = max(ms, 0) // 1000
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def print_json(value: Any, *, pretty: bool = True) -> None:
    """The value as the protocol writes it: indented, or on one line."""
    raw = msgspec.json.encode(value)
    sys.stdout.write((msgspec.json.format(raw, indent=2) if pretty else raw).decode() + "\n")
    sys.stdout.flush()


class Writer:
    """Text that arrives in pieces on stdout, and whole lines that must not run into it."""

    def __init__(self) -> None:
        self._open = False

    def piece(self, text: str) -> None:
        text = clean(text)
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._open = not text.endswith("\n")

    def line(self, text: str) -> None:
        self.end()
        self.piece(text + "\n")

    def note(self, text: str) -> None:
        """A line about the answer, on stderr."""
        if sys.stdout.isatty():
            self.end()
        err().print(clean(text), style="dim")

    def end(self) -> None:
        if self._open:
            self.piece("\n")
