"""`errands top`: a live dashboard of a server and the processes that share its store."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

from rich.live import Live
from typer import Option

from errands.cli.dashboard import (
    SORT_KEYS,
    FiguresPage,
    Look,
    OutboxRow,
    Overview,
    ReportHistory,
    ReviewRow,
    RunningRow,
    draw,
    overview,
)
from errands.cli.failures import CommandError, ExitCode, UsageError, command
from errands.cli.operator_client import OperatorClient
from errands.cli.options import AllowOrigins, ApiKeyOption, AsJson, Headers, RemoteAgent, Token, Url
from errands.cli.printing import CleanConsole, out, print_json
from errands.client import AgentUnreachableError
from errands.errors import A2AError, MethodNotFoundError, PermissionDeniedError, UnavailableError

#: Seconds between two drawings, so that leases count down between updates.
_REDRAW = 0.25
#: Lines that are not about running tasks.
_OTHER_LINES = 24
_KEYS = "q quit   p pause   s sort"


@command
async def top(
    url: Url,
    once: Annotated[bool, Option("--once", help="Print the state once, and do not open the dashboard.")] = False,
    interval: Annotated[float, Option(metavar="SECONDS", min=0.2, help="The time between two updates.")] = 2.0,
    as_json: AsJson = False,
    header: Headers = None,
    token: Token = None,
    api_key: ApiKeyOption = None,
    allow_origin: AllowOrigins = None,
) -> ExitCode:
    """Show how a server is doing: throughput, latency, queue, running tasks, reviews, webhooks, processes.

    Keys: q quits, p pauses, s sorts the tasks by another column. It needs the operator API of the server.

    Example:

        errands top http://localhost:8000 --once
    """
    remote = RemoteAgent(url, header, token, api_key, allow_origin)
    async with OperatorClient(remote) as operator:
        try:
            look = await _look(operator)
        except (MethodNotFoundError, PermissionDeniedError) as error:
            raise CommandError(
                f"the operator API is not available to you: {error.message}. `errands tasks running --storage URL` "
                "reads the store itself",
                ExitCode.UNREACHABLE,
            ) from None
        history = ReportHistory()
        history.add(look)
        found = overview(look, history)
        if as_json:
            print_json(found)
        elif once:
            console = out()
            console.print(draw(found, remote.url, _about(found), "age", found.now, 1000), soft_wrap=False)
        elif not (sys.stdout.isatty() and sys.stdin.isatty()):
            raise UsageError("the dashboard needs a terminal; use --once or --json")
        else:
            await Dashboard(operator, remote.url, history, found, interval).run()
    return ExitCode.OK


async def _look(operator: OperatorClient, since: int = 0) -> Look:
    """Read what the dashboard shows, with the history of the answering process: `since` a time, or all of it."""
    # Wait for all requests even after an error, because the client may be closed then.
    answers: tuple[Any, ...] = await asyncio.gather(
        operator.get("figures", FiguresPage, since=since),
        operator.get("running", list[RunningRow]),
        operator.get("reviews", list[ReviewRow]),
        operator.get("outbox", list[OutboxRow], limit=20),
        return_exceptions=True,
    )
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return Look(*answers)


def _about(found: Overview) -> str:
    return f"rates of the last {found.window_seconds:.0f} s"


class Dashboard:
    """The screen, until the user quits."""

    def __init__(
        self, operator: OperatorClient, title: str, history: ReportHistory, found: Overview, interval: float
    ) -> None:
        self._operator = operator
        self._title = title
        self._interval = interval
        self._history = history
        self._found = found
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._looked_at = loop.time()
        self._problem = ""
        self._paused = False
        self._sort = "age"
        self._quit = asyncio.Event()

    async def run(self) -> None:
        """Show the dashboard until the user quits. Raises `CommandError` if the server refuses to answer."""
        console = CleanConsole()
        with _keys(self._press), Live(console=console, screen=True, auto_refresh=False) as live:
            asking = asyncio.create_task(self._ask())
            try:
                while not self._quit.is_set() and not asking.done():
                    found, since = self._found, 0.0 if self._paused else self._loop.time() - self._looked_at
                    hint = f"{_KEYS}   {_about(found)}"
                    if self._paused:
                        hint = f"PAUSED   {hint}"
                    elif self._problem:
                        hint = f"NO ANSWER for {since:.0f} s: {self._problem}   {hint}"
                    room = max(console.height - _OTHER_LINES, 3)
                    now = found.now + int(since * 1000)
                    live.update(draw(found, self._title, hint, self._sort, now, room), refresh=True)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_REDRAW):
                            await self._quit.wait()
            finally:
                asking.cancel()
                await asyncio.wait({asking})
        if not asking.cancelled():
            asking.result()

    def _press(self, key: str) -> None:
        if key in ("q", "Q"):
            self._quit.set()
        elif key in ("p", "P", " "):
            self._paused = not self._paused
        elif key in ("s", "S"):
            names = list(SORT_KEYS)
            self._sort = names[(names.index(self._sort) + 1) % len(names)]

    async def _ask(self) -> None:
        """Update what is shown, also after a time without answers. Raises `CommandError` for a refusal."""
        while True:
            await asyncio.sleep(self._interval)
            if self._paused:
                continue
            try:
                look = await _look(self._operator, since=self._found.now)
            except (AgentUnreachableError, UnavailableError) as error:
                self._problem = str(error)
                continue
            except A2AError as error:
                raise CommandError(f"the server refuses: {error.message}", ExitCode.UNREACHABLE) from None
            self._problem, self._looked_at = "", self._loop.time()
            self._history.add(look)
            self._found = overview(look, self._history)


@contextmanager
def _keys(press: Callable[[str], None]) -> Iterator[None]:
    """Call `press` with each key, without waiting for Enter, where the system can do that."""
    try:
        termios, tty = importlib.import_module("termios"), importlib.import_module("tty")
    except ImportError:
        yield
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    loop = asyncio.get_running_loop()

    def read() -> None:
        for key in os.read(number, 64).decode(errors="replace"):
            press(key)

    tty.setcbreak(number)
    loop.add_reader(number, read)
    try:
        yield
    finally:
        loop.remove_reader(number)
        termios.tcsetattr(number, termios.TCSADRAIN, before)
