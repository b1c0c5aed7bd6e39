"""`errands tasks watch`."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated

import typer
from rich.text import Text

from errands.cli.answers import describe, exit_code_of, print_event
from errands.cli.failures import ExitCode, run
from errands.cli.options import AsJson, Headers, Remote, TaskId, Timeout, Token, Url
from errands.cli.terminal import STATE_STYLES, one_line, out
from errands.client import StreamEvent
from errands.model.core import TaskArtifactUpdateEvent

After = Annotated[
    str | None,
    typer.Option(
        "--after",
        metavar="VERSION",
        help="Also show what happened after this version; 0 shows all.",
        show_default=False,
    ),
]


def watch_task(
    url: Url,
    task_id: TaskId,
    after: After = None,
    as_json: AsJson = False,
    header: Headers = None,
    token: Token = None,
    timeout: Timeout = None,
) -> None:
    """Follow a task until it ends, one line for every event with its version.

    Example:

        errands tasks watch http://localhost:8000 TASK_ID --after 0
    """
    run(_watch(Remote(url, header, token), task_id, after, as_json), timeout)


async def _watch(remote: Remote, task_id: str, after: str | None, as_json: bool) -> ExitCode:
    state = ""
    async with remote.client() as client, aclosing(client.subscribe(task_id, last_event_id=after)) as events:
        async for event in events:
            if as_json:
                print_event(event)
            else:
                out().print(_line(event))
            state = event.state or state
    return exit_code_of(state)


def _line(event: StreamEvent) -> Text:
    what = event.state or event.artifact_id or ""
    if event.gap:
        what += " (older events are no longer kept)"
    return Text.assemble(
        (f"{one_line(event.event_id or '-'):>6}", "dim"),
        f"  {event.kind:<8}  ",
        (f"{one_line(what):<14}  ", STATE_STYLES.get(event.state or "", "")),
        one_line(_content(event), 100),
    )


def _content(event: StreamEvent) -> str:
    if isinstance(event.raw, TaskArtifactUpdateEvent):
        others = filter(None, map(describe, event.raw.artifact.parts))
        return " ".join([event.text or "", *others, "(sealed)" if event.last_chunk else ""])
    return event.text or ""
