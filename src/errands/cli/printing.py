"""Prints for commands: answers to stdout, notes and progress to stderr, colours only on a terminal."""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
from msgspec import UNSET
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.status import Status
from rich.table import Table
from rich.text import Text

from errands.client import StreamEvent
from errands.model.core import Part, text_of
from errands.model.marks import exposed_values

#: Seconds before the progress of slow work is shown.
PATIENCE = 2.0
#: The width of tables in a pipe, where no screen can be too narrow.
_PIPE_WIDTH = 200
#: Characters that change the order in which a text is shown: a file name could seem to have another ending.
_REORDERING = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
#: Control characters in an agent's text could clear or retitle the terminal, or hide what was written before.
_CONTROLS = {code: None for code in (*range(32), *range(127, 160), *_REORDERING) if chr(code) not in "\n\t"}
#: Such characters that an encoder of JSON does not escape. They only occur in strings.
_UNESCAPED = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

_STATE_STYLES = {
    "completed": "green",
    "failed": "red",
    "rejected": "red",
    "canceled": "yellow",
    "input-required": "magenta",
    "auth-required": "magenta",
}
_SEVERITY_STYLES = {"error": "red", "warning": "yellow"}


class CleanConsole(Console):
    """A console that prints no control characters but its own, whatever the texts of agents contain."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean(segment.text), segment.style)


def out() -> Console:
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return CleanConsole(width=width, soft_wrap=True)


def err() -> Console:
    return CleanConsole(stderr=True, soft_wrap=True)


def note(text: str, style: str = "") -> None:
    """Print a line about the answer on stderr."""
    err().print(clean(text), style=style)


def clean(text: str) -> str:
    """Return a text for a terminal, without control characters."""
    return text.translate(_CONTROLS)


def one_line(text: str, limit: int = 60) -> str:
    """Return the first words of a text."""
    words = " ".join(clean(text).split())
    return words if len(words) <= limit else words[: limit - 1] + "…"


def duration(ms: int) -> str:
    """Return a time span in the largest unit that fits."""
    seconds = max(ms, 0) // 1000
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def counted(count: int, word: str) -> str:
    """Return for example `1 agent` or `2 agents`."""
    return f"{count} {word}{'s' * (count != 1)}"


def count_severities(findings: Iterable[Any]) -> str:
    """Return for example `1 error, 2 warnings`."""
    counts = Counter(finding.severity for finding in findings)
    return ", ".join(counted(count, severity) for severity, count in counts.items())


def finding_text(severity: str, text: str) -> Text:
    """Return a line about a finding, as compilers print them."""
    return Text.assemble((f"{severity:<8} ", _SEVERITY_STYLES[severity]), clean(text))


def state_text(state: str) -> Text:
    """Return a state in its colour."""
    return Text(state, style=_STATE_STYLES.get(state, ""))


def table(names: Sequence[str], rows: Sequence[Sequence[str | Text]], *, whole: int = 0, folds: bool = False) -> Table:
    """Return a table without borders.

    In a narrow terminal the first `whole` columns are not shortened, and the last one is folded if `folds` is true.
    """
    columns = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(names):
        least = max(len(row[number]) for row in [names, *rows]) if number < whole else None
        columns.add_column(name, no_wrap=True, overflow="ellipsis", min_width=least)
    if folds:
        columns.columns[-1].no_wrap = False
        columns.columns[-1].overflow = "fold"
    for row in rows:
        columns.add_row(*(clean(cell) if isinstance(cell, str) else cell for cell in row))
    return columns


def print_json(value: Any, *, pretty: bool = True) -> None:
    """Print a value as the protocol writes it: indented, or on one line."""
    raw = msgspec.json.encode(value)
    print_raw_json(msgspec.json.format(raw, indent=2) if pretty else raw)
    sys.stdout.flush()


def print_raw_json(raw: bytes) -> None:
    """Print encoded JSON, with the characters escaped that a terminal would interpret."""
    sys.stdout.write(_UNESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", raw.decode()) + "\n")


def print_event(event: StreamEvent) -> None:
    """Print an event on one line: a `StreamResponse` of the protocol, and its id in the stream."""
    print_json({"eventId": event.event_id, **msgspec.to_builtins(event.response)}, pretty=False)


def describe_part(part: Part) -> str | None:
    """Return a line about a part that is not text, None for a text."""
    if (values := exposed_values(part)) is not None:
        return ", ".join(f"{name}: {msgspec.json.encode(value).decode()}" for name, value in values.items()) or None
    if part.data is not UNSET:
        return msgspec.json.encode(part.data).decode()
    facts = [part.filename, part.media_type]
    if part.raw is not None:
        facts.append(f"{len(part.raw)} bytes")
    elif part.url is not None:
        facts.append(part.url)
    else:
        return None
    return f"[file: {', '.join(fact for fact in facts if fact)}]"


def lines_of(parts: list[Part]) -> Iterator[str]:
    """Yield the text of the parts, and a line about each of the others."""
    yield from filter(None, (text_of(parts, ""), *map(describe_part, parts)))


class SlowWork:
    """An asynchronous context manager around work that may take long; `advance` counts what is done."""

    def __init__(self, doing: str, unit: str = "", *, prints: bool = False, patience: float = PATIENCE) -> None:
        """`doing` is a word such as "Exporting", `unit` what is counted, such as "task".

        Work that `prints` lines on stdout meanwhile shows no progress between them, if both go to a terminal.
        """
        self._is_shown = sys.stderr.isatty() and not (prints and sys.stdout.isatty())
        self._doing = doing
        self._unit = unit
        self._patience = patience
        self._count = 0
        self._shown: asyncio.Task[None] | None = None

    def advance(self, count: int = 1) -> None:
        """Add to the count of what is done."""
        self._count += count

    async def __aenter__(self) -> Self:
        if self._is_shown:
            self._shown = asyncio.create_task(self._show())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown is not None:
            self._shown.cancel()
            await asyncio.wait([self._shown])

    async def _show(self) -> None:
        await asyncio.sleep(self._patience)
        with Status(self._words(), console=err()) as status:
            while True:
                await asyncio.sleep(0.1)
                status.update(self._words())

    def _words(self) -> str:
        return f"{self._doing}: {counted(self._count, self._unit)}" if self._unit else f"{self._doing} …"
