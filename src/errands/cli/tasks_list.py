"""`errands tasks list`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from errands.cli.failures import ExitCode, UsageError, run
from errands.cli.options import AsJson, Headers, Remote, Timeout, Token, Url
from errands.cli.terminal import STATE_STYLES, clean, duration, err, one_line, out, print_json
from errands.client import ClientResult
from errands.clock import from_iso, system_clock
from errands.model.core import text_of

_LARGEST_PAGE = 100
#: Columns of a terminal in which a whole context id leaves room for words.
_WIDE = 130

State = Annotated[
    str | None, typer.Option("--state", metavar="STATE", help="Only tasks in this state, such as input-required.")
]
Context = Annotated[str | None, typer.Option("--context", metavar="ID", help="Only tasks of this conversation.")]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only tasks whose state changed since, such as 2026-01-31."),
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Show at most so many.")]


def list_tasks(
    url: Url,
    state: State = None,
    context: Context = None,
    since: Since = None,
    limit: Limit = 20,
    as_json: AsJson = False,
    header: Headers = None,
    token: Token = None,
    timeout: Timeout = None,
) -> None:
    """List an agent's tasks, the newest first.

    Example:

        errands tasks list http://localhost:8000 --state completed
    """
    run(_list(Remote(url, header, token), state, context, since, limit, as_json), timeout)


async def _list(
    remote: Remote, state: str | None, context: str | None, since: str | None, limit: int, as_json: bool
) -> ExitCode:
    _check_time(since)
    found: list[ClientResult] = []
    async with remote.client() as client:
        pages = client.list_tasks(
            status=state,
            context_id=context,
            status_timestamp_after=since,
            # One more than wanted tells whether there are more.
            page_size=min(limit + 1, _LARGEST_PAGE),
        )
        async for task in pages:
            found.append(task)
            if len(found) > limit:
                break
    shown = found[:limit]
    if as_json:
        print_json([task.raw_task for task in shown])
        return ExitCode.OK
    if not shown:
        err().print("No tasks.")
        return ExitCode.OK
    console = out()
    console.print(table(shown, console.width), soft_wrap=False)
    if len(found) > limit:
        err().print(f"There are more; --limit {limit * 5} shows them.", style="dim")
    return ExitCode.OK


def _check_time(since: str | None) -> None:
    try:
        from_iso(since or "2026-01-31")
    except ValueError:
        raise UsageError(f"--since {since!r}: write a time such as 2026-01-31 or 2026-01-31T12:00:00Z") from None


def table(tasks: list[ClientResult], width: int) -> Table:
    """Ids, states and ages are always whole, as far as there is room; contexts and words give way."""
    rows = [(clean(task.task_id), task.state, _updated(task)) for task in tasks]
    whole = [max(map(len, cells)) for cells in zip(*rows, ("TASK", "STATE", "UPDATED"), strict=True)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, least in zip(("TASK", "STATE", "UPDATED"), whole, strict=True):
        table.add_column(name, no_wrap=True, min_width=least)
    table.add_column("CONTEXT", no_wrap=True, overflow="ellipsis", max_width=9 if width < _WIDE else None)
    table.add_column("FIRST WORDS", no_wrap=True, overflow="ellipsis")
    for task, (task_id, state, updated) in zip(tasks, rows, strict=True):
        styled = Text(state, style=STATE_STYLES.get(state, ""))
        table.add_row(task_id, styled, updated, clean(task.context_id or ""), _first_words(task))
    return table


def _first_words(task: ClientResult) -> str:
    raw = task.raw_task
    if raw is not None and raw.history:
        return one_line(text_of(raw.history[0].parts))
    return one_line(task.text or "")


def _updated(task: ClientResult) -> str:
    stamp = task.raw_task.status.timestamp if task.raw_task is not None else None
    try:
        return age(system_clock() - from_iso(stamp or ""))
    except ValueError:
        return ""


def age(ms: int) -> str:
    """How long ago, in the largest unit that fits."""
    return f"{duration(ms)} ago"
