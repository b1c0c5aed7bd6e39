"""`errands tasks`: list, get, watch and cancel ask an agent; running and records read the store."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from errands.cli.failures import ExitCode, UsageError, command, exit_code_of
from errands.cli.options import (
    AgentName,
    AsJson,
    Headers,
    Limit,
    RemoteAgent,
    Storage,
    TaskId,
    Timeout,
    Token,
    Url,
    existing_store,
)
from errands.cli.printing import (
    STATE_STYLES,
    clean,
    describe_part,
    duration,
    err,
    one_line,
    out,
    print_event,
    print_json,
    table,
)
from errands.client import ClientResult, StreamEvent
from errands.clock import from_iso, system_clock, to_iso
from errands.model.core import Part, Role, Task, TaskArtifactUpdateEvent, text_of
from errands.policy.records import AnyRecord
from errands.policy.reviews import asked_in
from errands.policy.run import stored_records
from errands.runtime.leases import ActiveTask

_LARGEST_PAGE = 100
#: The columns that a terminal needs to show whole context ids.
_WIDE = 130

State = Annotated[
    str | None, typer.Option("--state", metavar="STATE", help="Only tasks in this state, such as input-required.")
]
Context = Annotated[str | None, typer.Option("--context", metavar="ID", help="Only tasks of this context.")]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only tasks whose state changed since TIME, such as 2026-01-31."),
]
History = Annotated[
    int | None, typer.Option("--history", metavar="N", min=0, help="Only the newest N messages.", show_default=False)
]
After = Annotated[
    str | None,
    typer.Option(
        "--after",
        metavar="VERSION",
        help="Also show the events after this version; 0 shows all.",
        show_default=False,
    ),
]

# List


@command
async def list_tasks(
    url: Url,
    state: State = None,
    context: Context = None,
    since: Since = None,
    limit: Limit = 20,
    as_json: AsJson = False,
    header: Headers = None,
    token: Token = None,
    timeout: Timeout = None,
) -> ExitCode:
    """List an agent's tasks, the newest first.

    Example:

        errands tasks list http://localhost:8000 --state completed
    """
    try:
        from_iso(since or "2026-01-31")
    except ValueError:
        raise UsageError(f"--since {since!r}: expected a time such as 2026-01-31 or 2026-01-31T12:00:00Z") from None
    found: list[ClientResult] = []
    async with RemoteAgent(url, header, token).client() as client:
        pages = client.list_tasks(
            status=state,
            context_id=context,
            status_timestamp_after=since,
            # One more than wanted shows whether there are more.
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
    console.print(task_table(shown, console.width), soft_wrap=False)
    if len(found) > limit:
        err().print(f"There are more; --limit {limit * 5} shows them.", style="dim")
    return ExitCode.OK


def task_table(tasks: list[ClientResult], width: int) -> Table:
    """Return a table in which ids, states and ages are whole if there is room; contexts and texts are shortened."""
    rows = [(clean(task.task_id), task.state, _updated(task)) for task in tasks]
    widths = [max(map(len, cells)) for cells in zip(*rows, ("TASK", "STATE", "UPDATED"), strict=True)]
    columns = Table(box=None, pad_edge=False, header_style="bold")
    for name, least in zip(("TASK", "STATE", "UPDATED"), widths, strict=True):
        columns.add_column(name, no_wrap=True, min_width=least)
    columns.add_column("CONTEXT", no_wrap=True, overflow="ellipsis", max_width=9 if width < _WIDE else None)
    columns.add_column("FIRST WORDS", no_wrap=True, overflow="ellipsis")
    for task, (task_id, state, updated) in zip(tasks, rows, strict=True):
        raw = task.raw_task
        words = text_of(raw.history[0].parts) if raw is not None and raw.history else task.text or ""
        styled = Text(state, style=STATE_STYLES.get(state, ""))
        columns.add_row(task_id, styled, updated, clean(task.context_id or ""), one_line(words))
    return columns


def _updated(task: ClientResult) -> str:
    stamp = task.raw_task.status.timestamp if task.raw_task is not None else None
    try:
        return age(system_clock() - from_iso(stamp or ""))
    except ValueError:
        return ""


def age(ms: int) -> str:
    """Return how long ago something was, in the largest unit that fits."""
    return f"{duration(ms)} ago"


# Get


@command
async def get_task(
    url: Url,
    task_id: TaskId,
    history: History = None,
    as_json: AsJson = False,
    header: Headers = None,
    token: Token = None,
    timeout: Timeout = None,
) -> ExitCode:
    """Show a task: its state, messages and artifacts.

    Example:

        errands tasks get http://localhost:8000 TASK_ID
    """
    async with RemoteAgent(url, header, token).client() as client:
        task = (await client.get_task(task_id, history)).raw_task
    if as_json:
        print_json(task)
    elif task is not None:
        _show_task(task)
    return ExitCode.OK


def _show_task(task: Task) -> None:
    state = task.status.state.short
    out().print(Text.assemble(("task     ", "dim"), clean(task.id)))
    out().print(Text.assemble(("state    ", "dim"), (state, STATE_STYLES.get(state, ""))))
    out().print(Text.assemble(("context  ", "dim"), clean(task.context_id or "")))
    out().print(Text.assemble(("updated  ", "dim"), clean(task.status.timestamp or "")))
    messages = list(task.history or [])
    # A status message joins the history when the next message arrives; until then it is only in the status.
    last = task.status.message
    if last is not None and last.message_id not in {message.message_id for message in messages}:
        messages.append(last)
    for message in messages:
        title, parts = "agent" if message.role is Role.AGENT else "user", message.parts
        if (reviewer := asked_in(message)) is not None:
            title = "agent" if message.role is Role.AGENT else f"review by {reviewer}"
            # The question is repeated as data, for programs.
            parts = [part for part in parts if part.text is not None]
        _show_parts(title, parts)
    for artifact in task.artifacts or []:
        _show_parts(f"artifact {artifact.name or artifact.artifact_id}", artifact.parts)


def _show_parts(title: str, parts: list[Part]) -> None:
    out().print()
    out().print(clean(title), style="bold")
    if text := text_of(parts, ""):
        out().print(clean(text))
    for line in filter(None, map(describe_part, parts)):
        out().print(clean(line))


# Watch


@command
async def watch_task(
    url: Url,
    task_id: TaskId,
    after: After = None,
    as_json: AsJson = False,
    header: Headers = None,
    token: Token = None,
    timeout: Timeout = None,
) -> ExitCode:
    """Follow a task until it ends: one line for every event, with its version.

    Example:

        errands tasks watch http://localhost:8000 TASK_ID --after 0
    """
    state = ""
    async with (
        RemoteAgent(url, header, token).client() as client,
        aclosing(client.subscribe(task_id, last_event_id=after)) as events,
    ):
        async for event in events:
            if as_json:
                print_event(event)
            else:
                out().print(_event_line(event))
            state = event.state or state
    return exit_code_of(state)


def _event_line(event: StreamEvent) -> Text:
    what = event.state or event.artifact_id or ""
    if event.gap:
        what += " (older events are no longer kept)"
    content = event.text or ""
    if isinstance(event.raw, TaskArtifactUpdateEvent):
        others = filter(None, map(describe_part, event.raw.artifact.parts))
        content = " ".join([content, *others, "(sealed)" if event.last_chunk else ""])
    return Text.assemble(
        (f"{one_line(event.event_id or '-'):>6}", "dim"),
        f"  {event.kind:<8}  ",
        (f"{one_line(what):<14}  ", STATE_STYLES.get(event.state or "", "")),
        one_line(content, 100),
    )


# Cancel


@command
async def cancel_task(
    url: Url,
    task_id: TaskId,
    as_json: AsJson = False,
    header: Headers = None,
    token: Token = None,
    timeout: Timeout = None,
) -> ExitCode:
    """Cancel a task and wait until it is canceled.

    Example:

        errands tasks cancel http://localhost:8000 TASK_ID
    """
    async with RemoteAgent(url, header, token).client() as client:
        result = await client.cancel(task_id)
    if as_json:
        print_json(result.raw_task)
    else:
        out().print(clean(f"Task {result.task_id} is {result.state}."))
    return ExitCode.OK


# Running


@command
async def running_tasks(storage: Storage = None, agent: AgentName = None, as_json: AsJson = False) -> ExitCode:
    """Show the running tasks of all owners, with their processes and ages. Reads the store.

    Example:

        errands tasks running --storage sqlite:///.errands/tasks.db
    """
    async with existing_store(storage) as engine:
        now = engine.clock()
        found = [ActiveTask.of(running, now) for running in await engine.running()]
    active = [task for task in found if agent is None or task.agent == agent]
    if as_json:
        print_json([_active_document(task) for task in active])
    elif active:
        rows = table("TASK", "STATE", "ATTEMPT", "AGE", "LEASE", "AGENT", "WORKER")
        for task in active:
            state = "canceling" if task.cancel_requested else task.state.short
            rows.add_row(
                clean(task.task_id),
                Text(state, style=STATE_STYLES.get(state, "")),
                str(task.attempt),
                duration(task.age),
                duration(task.lease_until - now),
                clean(task.agent),
                clean(task.worker),
            )
        out().print(rows, soft_wrap=False)
    else:
        err().print("Nothing is running.")
    return ExitCode.OK


def _active_document(task: ActiveTask) -> dict[str, object]:
    return {
        "taskId": task.task_id,
        "contextId": task.context_id,
        "state": task.state,
        "agent": task.agent,
        "owner": task.owner,
        "tenant": task.tenant,
        "worker": task.worker,
        "attempt": task.attempt,
        "leaseUntil": to_iso(task.lease_until),
        "ageSeconds": task.age / 1000,
        "cancelRequested": task.cancel_requested,
    }


# Records


@command
async def task_records(task_id: TaskId, storage: Storage = None, as_json: AsJson = False) -> ExitCode:
    """Show the records of a task: inputs, model calls, capability calls, decisions, answers.

    A file with the output of --json is what `errands policy test --records` reads.

    Example:

        errands tasks records TASK_ID --json
    """
    found = await records_of(storage, task_id)
    if as_json:
        print_json(found)
    elif found:
        rows = table("AT", "RECORD", "WHAT")
        for record in found:
            fields = msgspec.to_builtins(record)
            what = {name: value for name, value in fields.items() if name not in ("record", "at")}
            rows.add_row(clean(record.at), fields["record"], one_line(msgspec.json.encode(what).decode(), 120))
        out().print(rows, soft_wrap=False)
    else:
        err().print("The task has no records: its agent recorded nothing, and there was no policy.")
    return ExitCode.OK


async def records_of(storage: str | None, task_id: str) -> list[AnyRecord]:
    """Return the records of a task of any owner."""
    async with existing_store(storage) as engine:
        return await stored_records(engine, task_id, (await engine.load(task_id, None)).scope)
