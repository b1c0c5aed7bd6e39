"""`errands tasks get`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from errands.cli.answers import describe
from errands.cli.failures import ExitCode, run
from errands.cli.options import AsJson, Headers, Remote, TaskId, Timeout, Token, Url
from errands.cli.terminal import STATE_STYLES, clean, out, print_json
from errands.model.core import Message, Part, Role, Task, text_of
from errands.policy.reviews import asked_in

History = Annotated[
    int | None, typer.Option("--history", metavar="N", min=0, help="Only the newest N messages.", show_default=False)
]


def get_task(
    url: Url,
    task_id: TaskId,
    history: History = None,
    as_json: AsJson = False,
    header: Headers = None,
    token: Token = None,
    timeout: Timeout = None,
) -> None:
    """Show a task: its state, what was said and what it produced.

    Example:

        errands tasks get http://localhost:8000 TASK_ID
    """
    run(_get(Remote(url, header, token), task_id, history, as_json), timeout)


async def _get(remote: Remote, task_id: str, history: int | None, as_json: bool) -> ExitCode:
    async with remote.client() as client:
        task = (await client.get_task(task_id, history)).raw_task
    if as_json:
        print_json(task)
    elif task is not None:
        show_task(task)
    return ExitCode.OK


def show_task(task: Task) -> None:
    state = task.status.state.short
    out().print(Text.assemble(("task     ", "dim"), clean(task.id)))
    out().print(Text.assemble(("state    ", "dim"), (state, STATE_STYLES.get(state, ""))))
    out().print(Text.assemble(("context  ", "dim"), clean(task.context_id or "")))
    out().print(Text.assemble(("updated  ", "dim"), clean(task.status.timestamp or "")))
    for message in task.history or []:
        _message(message)
    # What a status says joins the history when the next message comes; until then it stands alone.
    said = task.status.message
    if said is not None and said.message_id not in {message.message_id for message in task.history or []}:
        _message(said)
    for artifact in task.artifacts or []:
        _block(f"artifact {artifact.name or artifact.artifact_id}", artifact.parts)


def _message(message: Message) -> None:
    reviewer = asked_in(message)
    if reviewer is None:
        _block("agent" if message.role is Role.AGENT else "user", message.parts)
    else:
        # The question is told again as data, for programs.
        words = [part for part in message.parts if part.text is not None]
        _block("agent" if message.role is Role.AGENT else f"review by {reviewer}", words)


def _block(title: str, parts: list[Part]) -> None:
    out().print()
    out().print(clean(title), style="bold")
    if text := text_of(parts, ""):
        out().print(clean(text))
    for line in filter(None, map(describe, parts)):
        out().print(clean(line))
