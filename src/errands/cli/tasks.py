"""`errands tasks`: list, get, watch and cancel ask an agent; running and records read the store."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated

import msgspec
from rich.table import Table
from rich.text import Text
from typer import Option

from errands.cli import options, printing
from errands.cli.failures import ExitCode, UsageError, command, exit_code_of
from errands.cli.options import (
    AllowOrigins,
    ApiKeyOption,
    AsJson,
    Headers,
    RemoteAgent,
    TaskId,
    Timeout,
    Token,
    Url,
    existing_store,
)
from errands.client import ClientResult, StreamEvent
from errands.clock import from_iso, stored_to_iso, system_clock
from errands.model.core import Role, TaskArtifactUpdateEvent, text_of
from errands.policy.records import AnyRecord
from errands.policy.reviews import asked_in
from errands.policy.run import stored_records
from errands.runtime.leases import ActiveTask

_LARGEST_PAGE = 100
#: The columns that a terminal needs to show whole context ids.
_WIDE = 130


# Commands that ask an agent


@command
async def list_tasks(
    url: Url,
    state: Annotated[
        str | None, Option(metavar="STATE", help="Only tasks in this state, such as input-required.")
    ] = None,
    context: Annotated[str | None, Option(metavar="ID", help="Only tasks of this context.")] = None,
    since: Annotated[
        str | None, Option(metavar="TIME", help="Only tasks whose state changed since TIME, such as 2026-01-31.")
    ] = None,
    limit: options.Limit = 20,
    as_json: AsJson = False,
    header: Headers = None,
    token: Token = None,
    api_key: ApiKeyOption = None,
    allow_origin: AllowOrigins = None,
    timeout: Timeout = None,
) -> None:
    """List an agent's tasks, the newest first.

    Example:

        errands tasks list http://localhost:8000 --state completed
    """
    try:
        from_iso(since or "2026-01-31")
    except ValueError:
        raise UsageError(f"--since {since!r}: expected a time such as 2026-01-31 or 2026-01-31T12:00:00Z") from None
    found: list[ClientResult] = []
    async with RemoteAgent(url, header, token, api_key, allow_origin).client() as client:
        # One more than wanted shows whether there are more.
        size = min(limit + 1, _LARGEST_PAGE)
        pages = client.list_tasks(status=state, context_id=context, status_timestamp_after=since, page_size=size)
        async for task in pages:
            found.append(task)
            if len(found) > limit:
                break
    shown = found[:limit]
    if as_json:
        printing.print_json([task.raw_task for task in shown])
    elif shown:
        console = printing.out()
        console.print(task_table(shown, console.width), soft_wrap=False)
        if len(found) > limit:
            printing.note(f"There are more; --limit {limit * 5} shows them.", "dim")
    else:
        printing.note("No tasks.")


def task_table(tasks: list[ClientResult], width: int) -> Table:
    """Return a table in which ids, states and ages are whole if there is room; contexts and texts are shortened."""
    rows: list[tuple[str | Text, ...]] = []
    for result in tasks:
        task = result.raw_task
        try:
            stamp = task.status.timestamp if task is not None else None
            updated = f"{printing.duration(system_clock() - from_iso(stamp or ''))} ago"
        except ValueError:
            updated = ""
        context = printing.one_line(result.context_id or "", 100 if width >= _WIDE else 9)
        words = text_of(task.history[0].parts) if task is not None and task.history else result.text or ""
        rows.append((result.task_id, printing.state_text(result.state), updated, context, printing.one_line(words)))
    return printing.table(("TASK", "STATE", "UPDATED", "CONTEXT", "FIRST WORDS"), rows, whole=3)


@command
async def get_task(
    url: Url,
    task_id: TaskId,
    history: Annotated[int | None, Option(metavar="N", min=0, help="Only the newest N messages.")] = None,
    as_json: AsJson = False,
    header: Headers = None,
    token: Token = None,
    api_key: ApiKeyOption = None,
    allow_origin: AllowOrigins = None,
    timeout: Timeout = None,
) -> None:
    """Show a task: its state, messages and artifacts.

    Example:

        errands tasks get http://localhost:8000 TASK_ID
    """
    async with RemoteAgent(url, header, token, api_key, allow_origin).client() as client:
        task = (await client.get_task(task_id, history)).raw_task
    assert task is not None
    if as_json:
        printing.print_json(task)
        return
    console = printing.out()
    for name, value in (
        ("task", printing.clean(task.id)),
        ("state", printing.state_text(task.status.state.short)),
        ("context", printing.clean(task.context_id or "")),
        ("updated", printing.clean(task.status.timestamp or "")),
    ):
        console.print(Text.assemble((f"{name:<9}", "dim"), value))
    messages = list(task.history or [])
    # A status message is added to the history when the next message arrives. Until then it is only in the status.
    last = task.status.message
    if last is not None and last.message_id not in {message.message_id for message in messages}:
        messages.append(last)
    shown = []
    for message in messages:
        title, parts = "agent" if message.role is Role.AGENT else "user", message.parts
        if (reviewer := asked_in(message)) is not None:
            title = "agent" if message.role is Role.AGENT else f"review by {reviewer}"
            # The question is repeated as data, for programs.
            parts = [part for part in parts if part.text is not None]
        shown.append((title, parts))
    shown += [(f"artifact {made.name or made.artifact_id}", made.parts) for made in task.artifacts or []]
    for title, parts in shown:
        console.print()
        console.print(printing.clean(title), style="bold")
        for line in printing.lines_of(parts):
            console.print(printing.clean(line))


@command
async def watch_task(
    url: Url,
    task_id: TaskId,
    after: Annotated[
        str | None, Option(metavar="VERSION", help="Also show the events after this version; 0 shows all.")
    ] = None,
    as_json: AsJson = False,
    header: Headers = None,
    token: Token = None,
    api_key: ApiKeyOption = None,
    allow_origin: AllowOrigins = None,
    timeout: Timeout = None,
) -> ExitCode:
    """Follow a task until it ends: one line for every event, with its version.

    Example:

        errands tasks watch http://localhost:8000 TASK_ID --after 0
    """
    state = ""
    async with (
        RemoteAgent(url, header, token, api_key, allow_origin).client() as client,
        aclosing(client.subscribe(task_id, last_event_id=after)) as events,
    ):
        async for event in events:
            if as_json:
                printing.print_event(event)
            else:
                printing.out().print(_event_line(event))
            state = event.state or state
    return exit_code_of(state)


def _event_line(event: StreamEvent) -> Text:
    what = event.state or event.artifact_id or ""
    if event.gap:
        what += " (older events are no longer kept)"
    content = event.text or ""
    if isinstance(event.raw, TaskArtifactUpdateEvent):
        others = filter(None, map(printing.describe_part, event.raw.artifact.parts))
        content = " ".join([content, *others, "(sealed)" if event.last_chunk else ""])
    return Text.assemble(
        (f"{printing.one_line(event.event_id or '-'):>6}", "dim"),
        f"  {event.kind:<8}  ",
        (f"{printing.one_line(what):<14}  ", printing.state_text(event.state or "").style),
        printing.one_line(content, 100),
    )


@command
async def cancel_task(
    url: Url,
    task_id: TaskId,
    as_json: AsJson = False,
    header: Headers = None,
    token: Token = None,
    api_key: ApiKeyOption = None,
    allow_origin: AllowOrigins = None,
    timeout: Timeout = None,
) -> None:
    """Cancel a task and wait until it is canceled.

    Example:

        errands tasks cancel http://localhost:8000 TASK_ID
    """
    async with RemoteAgent(url, header, token, api_key, allow_origin).client() as client:
        result = await client.cancel(task_id)
    if as_json:
        printing.print_json(result.raw_task)
    else:
        printing.out().print(printing.clean(f"Task {result.task_id} is {result.state}."))


# Commands that read the store


@command
async def running_tasks(
    storage: options.Storage = None, agent: options.AgentName = None, as_json: AsJson = False
) -> None:
    """Show the running tasks of all owners, with their processes and ages. Reads the store.

    Example:

        errands tasks running --storage sqlite:///.errands/tasks.db
    """
    async with existing_store(storage) as engine:
        now = engine.clock()
        found = [ActiveTask.of(running, now) for running in await engine.running()]
    active = [task for task in found if agent is None or task.agent == agent]
    if as_json:
        documents = [
            {
                "taskId": task.task_id,
                "contextId": task.context_id,
                "state": task.state,
                "agent": task.agent,
                "owner": task.owner,
                "tenant": task.tenant,
                "worker": task.worker,
                "attempt": task.attempt,
                "leaseUntil": stored_to_iso(task.lease_until),
                "ageSeconds": task.age / 1000,
                "cancelRequested": task.cancel_requested,
            }
            for task in active
        ]
        printing.print_json(documents)
    elif active:
        rows = [
            (
                task.task_id,
                printing.state_text("canceling" if task.cancel_requested else task.state.short),
                str(task.attempt),
                printing.duration(task.age),
                printing.duration(task.lease_until - now),
                task.agent,
                task.worker,
            )
            for task in active
        ]
        printing.out().print(
            printing.table(("TASK", "STATE", "ATTEMPT", "AGE", "LEASE", "AGENT", "WORKER"), rows), soft_wrap=False
        )
    else:
        printing.note("Nothing is running.")


@command
async def task_records(task_id: TaskId, storage: options.Storage = None, as_json: AsJson = False) -> None:
    """Show the records of a task: inputs, model calls, capability calls, decisions, answers.

    `errands policy test --records` reads a file with the output of --json.

    Example:

        errands tasks records TASK_ID --json
    """
    found = await records_of(storage, task_id)
    if as_json:
        printing.print_json(found)
    elif found:
        rows = []
        for record in found:
            fields = msgspec.to_builtins(record)
            what = {name: value for name, value in fields.items() if name not in ("record", "at")}
            rows.append((record.at, fields["record"], printing.one_line(msgspec.json.encode(what).decode(), 120)))
        printing.out().print(printing.table(("AT", "RECORD", "WHAT"), rows), soft_wrap=False)
    else:
        printing.note("The task has no records: its agent recorded nothing, and there was no policy.")


async def records_of(storage: str | None, task_id: str) -> list[AnyRecord]:
    """Return the records of a task of any owner."""
    async with existing_store(storage) as engine:
        return await stored_records(engine, task_id, (await engine.load(task_id, None)).scope)
