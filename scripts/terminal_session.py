"""Record commands in a real terminal, and write the session as an animated picture for the README.

    .venv/bin/python scripts/terminal_session.py docs/images/terminal.svg

The commands are typed into bash in a pseudo-terminal; what they print is recorded with its times. The SVG shows it with
keyframes of CSS: it needs no script, and stands still at the end for readers who prefer reduced motion.
"""

from __future__ import annotations

import codecs
import fcntl
import html
import os
import pty
import re
import select
import shutil
import signal
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROWS, COLUMNS = 24, 100
#: Nothing happens for longer than this, in seconds; the picture shortens longer waits to it.
LONGEST_WAIT = 1.2
#: Seconds between two characters that are typed.
TYPING = 0.045
#: Seconds for which the end is shown before the picture begins again.
AT_THE_END = 5.0
_PROMPT = "$ "
_ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_DEADLINE = 60.0

AGENT = """
import asyncio

from errands import A2AServer, AgentCardConfig, CapabilitiesConfig, TaskContext, Worker


class Planner(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        days = ctx.answer(int)
        if days is None:
            await ctx.request_input(f"How many days in {ctx.user_text}?", schema=int)
            return
        async with ctx.artifact(name="plan") as plan:
            for day in range(1, days + 1):
                await asyncio.sleep(0.6)
                await plan.write(f"Day {day} in {ctx.history[0].text}.\\n")
        await ctx.complete()


card = AgentCardConfig(
    name="Planner", description="Plans a trip.", capabilities=CapabilitiesConfig(streaming=True)
)
server = A2AServer(worker=Planner(), agent_card=card)
"""


# Recording


class Output(NamedTuple):
    """What the terminal was sent at a moment."""

    at: float
    text: str


class Terminal:
    """bash in a pseudo-terminal."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.outputs: list[Output] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._pid, self._master = pty.fork()
        if self._pid == 0:
            os.chdir(folder)
            command = ["bash", "--noprofile", "--norc", "--noediting", "-i"]
            os.execvpe(command[0], command, {**environment, "PS1": _PROMPT, "TERM": "xterm-256color"})
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))

    def run(self, command: str, until: str | None = None) -> str:
        """Type a command, wait for the prompt, or for a text and then the prompt, and return what was printed."""
        begun = len(self.outputs)
        # Identifiers are pasted, as a person would.
        for piece in re.findall(rf"{_ID}|.", command):
            os.write(self._master, piece.encode())
            self._read(TYPING)
        os.write(self._master, b"\n")
        return self.wait(until, begun)

    def wait(self, until: str | None = None, begun: int = 0) -> str:
        """Wait for the prompt, or for a text first. Return what was printed since the output of number `begun`."""
        deadline = time.monotonic() + _DEADLINE
        while True:
            printed = "".join(output.text for output in self.outputs[begun:])
            seen = until is None or until in printed
            if seen and printed.endswith(_PROMPT) and (begun == 0 or "\n" in printed):
                return printed
            if time.monotonic() > deadline:
                raise TimeoutError(f"no prompt after: {printed}")
            self._read(0.05)

    def _read(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self._master], [], [], left)[0]:
                text = self._decoder.decode(os.read(self._master, 65536))
                self.outputs.append(Output(time.monotonic(), text))

    def close(self) -> None:
        """End bash and what it has started."""
        os.kill(self._pid, signal.SIGHUP)
        os.close(self._master)
        os.waitpid(self._pid, 0)


def record(folder: Path) -> list[Output]:
    """Record the session of the README: a server is killed while its agent works, and no work is lost."""
    (folder / "agent.py").write_text(AGENT)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ERRANDS_")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    url = "http://localhost:8000"
    terminal = Terminal(folder, environment)
    try:
        terminal.wait()
        serve = "ERRANDS_LEASE_SECONDS=2 errands serve agent.py > server.log &"
        terminal.run(serve)
        _await(folder / "server.log", "Ctrl-C")
        asked = terminal.run(f"errands send {url} Lisbon")
        task = re.findall(_ID, asked)[0]
        terminal.run(f"errands send {url} 8 --task {task} --no-wait")
        terminal.run("kill -9 %1   # the server dies in the middle of its work")
        (folder / "server.log").unlink()
        terminal.run(serve)
        _await(folder / "server.log", "Ctrl-C")
        terminal.run(f"errands tasks watch {url} {task}", until="completed")
        terminal.run(f"errands tasks list {url}")
        return terminal.outputs
    finally:
        terminal.close()


def _await(path: Path, text: str) -> None:
    deadline = time.monotonic() + _DEADLINE
    while not (path.exists() and text in path.read_text()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path.name} does not say {text!r}")
        time.sleep(0.05)


# What the terminal shows


@dataclass
class Cell:
    """A character at a place, from one moment to another."""

    row: int
    column: int
    text: str
    style: str
    since: float
    until: float | None = None


_SEQUENCE = re.compile(
    r"\x1b\[(?P<numbers>[\d;?]*)(?P<kind>[A-Za-z])|\x1b\][^\x07]*\x07|\x1b[=>]|(?P<character>.)", re.DOTALL
)
_COLOURS = {30: "k", 31: "r", 32: "g", 33: "y", 34: "b", 35: "m", 36: "c", 37: "w", 90: "d"}


class Screen:
    """The state of a terminal that prints lines, colours them, and writes over the current line."""

    def __init__(self) -> None:
        self.cells: list[Cell] = []
        #: The first row that is shown, from each moment on.
        self.tops: list[tuple[float, int]] = [(0.0, 0)]
        self._shown: dict[tuple[int, int], Cell] = {}
        self._row = self._column = 0
        self._colour, self._bold, self._dim = "", False, False

    def feed(self, output: Output) -> None:
        """Apply what the terminal was sent."""
        for token in _SEQUENCE.finditer(output.text):
            if token["character"] is not None:
                self._character(token["character"], output.at)
            elif token["kind"] == "m":
                self._colours(token["numbers"])
            elif token["kind"] == "K":
                self._erase(output.at, from_column=0 if token["numbers"] == "2" else self._column)

    def _character(self, character: str, at: float) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._row += 1
            if self._row - ROWS + 1 > self.tops[-1][1]:
                self.tops.append((at, self._row - ROWS + 1))
        elif character == "\b":
            self._column = max(0, self._column - 1)
        elif character >= " ":
            if self._column == COLUMNS:
                self._column = 0
                self._character("\n", at)
            self._put(character, at)
            self._column += 1

    def _put(self, character: str, at: float) -> None:
        place = (self._row, self._column)
        if old := self._shown.pop(place, None):
            old.until = at
        if character != " ":
            style = " ".join(filter(None, (self._colour, "bold" if self._bold else "", "dim" if self._dim else "")))
            self._shown[place] = Cell(*place, character, style, at)
            self.cells.append(self._shown[place])

    def _erase(self, at: float, from_column: int) -> None:
        for column in range(from_column, COLUMNS):
            if old := self._shown.pop((self._row, column), None):
                old.until = at

    def _colours(self, numbers: str) -> None:
        for number in map(int, filter(str.isdigit, numbers.split(";") or ["0"])):
            if number == 0:
                self._colour, self._bold, self._dim = "", False, False
            elif number in (1, 2):
                self._bold, self._dim = number == 1 or self._bold, number == 2 or self._dim
            elif number in _COLOURS or number - 60 in _COLOURS:
                self._colour = _COLOURS.get(number) or _COLOURS[number - 60]
            elif number == 39:
                self._colour = ""


def shortened(outputs: list[Output]) -> list[Output]:
    """Return the outputs from moment 0 on, without long waits, at multiples of a tenth of a second."""
    moment = 0.0
    last = outputs[0].at
    found: list[Output] = []
    for output in outputs:
        moment += min(output.at - last, LONGEST_WAIT)
        last = output.at
        found.append(Output(round(moment, 1), output.text))
    return found


# The picture

_WIDTH, _HEIGHT, _PADDING, _BAR = 8.4, 19, 16, 34
_STYLE = """
    text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; fill: #d8dee9;
      white-space: pre; }
    .bold { font-weight: 700; } .dim { opacity: .65; }
    .k { fill: #7b8496; } .r { fill: #e88388; } .g { fill: #a8cc8c; } .y { fill: #dbab79; } .b { fill: #71bef2; }
    .m { fill: #d290e4; } .c { fill: #66c2cd; } .w { fill: #ffffff; } .d { fill: #8b95a7; }
    .gone { visibility: hidden; }
"""


def picture(outputs: list[Output]) -> str:
    """Return the SVG of a session."""
    screen = Screen()
    outputs = shortened(outputs)
    for output in outputs:
        screen.feed(output)
    seconds = outputs[-1].at + AT_THE_END
    spans: dict[tuple[float, float | None], str] = {}
    texts = "".join(_text(run, spans) for run in _runs(screen.cells))
    rules = [_STYLE, *(_keyframes(name, span, seconds) for span, name in spans.items())]
    rules.append(_scrolling(screen.tops, seconds))
    # Without motion: the end, as it stays.
    rules.append("    @media (prefers-reduced-motion: reduce) { * { animation: none !important; } }\n")
    width, height = COLUMNS * _WIDTH + 2 * _PADDING, ROWS * _HEIGHT + _BAR + _PADDING
    top = -screen.tops[-1][1] * _HEIGHT
    dots = "".join(
        f'<circle cx="{20 + 18 * n}" cy="17" r="5.5" fill="{c}"/>'
        for n, c in enumerate(("#e88388", "#dbab79", "#a8cc8c"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" role="img" '
        f'aria-label="A session in a terminal">\n<style>{"".join(rules)}</style>\n'
        f'<rect width="100%" height="100%" rx="8" fill="#1d2330"/>{dots}\n'
        f'<svg x="{_PADDING}" y="{_BAR}" width="{COLUMNS * _WIDTH:g}" height="{ROWS * _HEIGHT}" overflow="hidden">'
        f'<g class="scroll" style="transform: translateY({top}px)">\n{texts}</g></svg>\n</svg>\n'
    )


def _runs(cells: list[Cell]) -> Iterator[list[Cell]]:
    """Yield neighbours that come and go together and look the same. Gaps of one space are part of a run."""
    ordered = sorted(cells, key=lambda cell: (cell.row, cell.since, cell.column))
    run: list[Cell] = []
    for cell in ordered:
        alike = run and (cell.row, cell.style, cell.since, cell.until) == (
            run[-1].row,
            run[-1].style,
            run[-1].since,
            run[-1].until,
        )
        if run and not (alike and 0 < cell.column - run[-1].column <= 2):
            yield run
            run = []
        run.append(cell)
    if run:
        yield run


def _text(run: list[Cell], spans: dict[tuple[float, float | None], str]) -> str:
    text, column = "", run[0].column
    for cell in run:
        text += " " * (cell.column - column - len(text)) + cell.text
    name = spans.setdefault((run[0].since, run[0].until), f"a{len(spans)}")
    classes = " ".join(filter(None, (name, run[0].style, "gone" if run[0].until is not None else "")))
    x, y = column * _WIDTH, (run[0].row + 1) * _HEIGHT - 5
    return (
        f'<text class="{classes}" x="{x:.1f}" y="{y}" textLength="{len(text) * _WIDTH:.1f}" '
        f'lengthAdjust="spacingAndGlyphs" xml:space="preserve">{html.escape(text)}</text>\n'
    )


def _keyframes(name: str, span: tuple[float, float | None], seconds: float) -> str:
    since, until = span
    frames = "0% { visibility: hidden; } " if since > 0 else ""
    frames += f"{100 * since / seconds:.3f}% {{ visibility: visible; }} "
    frames += (
        f"{100 * until / seconds:.3f}%, 100% {{ visibility: hidden; }}"
        if until is not None
        else "100% { visibility: visible; }"
    )
    return f"    @keyframes {name} {{ {frames} }} .{name} {{ animation: {name} {seconds:.1f}s step-end infinite; }}\n"


def _scrolling(tops: list[tuple[float, int]], seconds: float) -> str:
    frames = " ".join(f"{100 * at / seconds:.3f}% {{ transform: translateY({-top * _HEIGHT}px); }}" for at, top in tops)
    frames += f" 100% {{ transform: translateY({-tops[-1][1] * _HEIGHT}px); }}"
    return f"    @keyframes scroll {{ {frames} }} .scroll {{ animation: scroll {seconds:.1f}s step-end infinite; }}\n"


def main() -> None:
    """Record the session, and write its picture to the path that is given."""
    folder = Path(tempfile.mkdtemp())
    try:
        Path(sys.argv[1]).write_text(picture(record(folder)))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
