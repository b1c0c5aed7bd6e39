"""`errands tasks running`: the one command on tasks that asks the store and not an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from errands.cli.failures import ExitCode, UsageError, run
from errands.cli.options import AsJson
from errands.cli.terminal import STATE_STYLES, clean, duration, err, out, print_json
from errands.clock import to_iso
from errands.engines.base import Engine
from errands.engines.sqlite import SQLiteEngine
from errands.engines.urls import engine_from_url
from errands.runtime.active import ActiveTask
from errands.runtime.settings import Settings

Storage = Annotated[
    str | None,
    typer.Option("--storage", metavar="URL", help="Where tasks live.", show_default="ERRANDS_STORAGE, as for serve"),
]
Agent = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only tasks of the agent of this name.")]


def running_tasks(storage: Storage = None, agent: Agent = None, as_json: AsJson = False) -> None:
    """Show what is running, in which process, since when: from the store, whoever owns the tasks.

    Example:

        errands tasks running --storage sqlite:///.errands/tasks.db
    """
    run(_running(storage or Settings.from_env().storage, agent, as_json))


async def _running(storage: str, agent: str | None, as_json: bool) -> ExitCode:
    engine = _existing(storage)
    async with engine:
        now = engine.clock()
        found = [ActiveTask.of(running, now) for running in await engine.running()]
    active = [task for task in found if agent is None or task.agent == agent]
    if as_json:
        print_json([_document(task) for task in active])
    elif active:
        out().print(_table(active, now), soft_wrap=False)
    else:
        err().print("Nothing is running.")
    return ExitCode.OK


def _existing(storage: str) -> Engine:
    engine = engine_from_url(storage)
    if not engine.durable:
        raise UsageError(
            f"--storage {storage}: what a server keeps in memory only it can see; name the store of one that keeps "
            "its tasks, such as sqlite:///.errands/tasks.db"
        )
    # Looking must not make a store where there is none.
    if isinstance(engine, SQLiteEngine) and not Path(engine.path).exists():
        raise UsageError(f"there is no {engine.path}; name the store with --storage sqlite:///PATH")
    return engine


def _document(task: ActiveTask) -> dict[str, object]:
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


def _table(tasks: list[ActiveTask], now: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("TASK", "STATE", "ATTEMPT", "AGE", "LEASE", "AGENT"):
        table.add_column(name, no_wrap=True)
    table.add_column("WORKER", no_wrap=True, overflow="ellipsis")
    for task in tasks:
        state = "canceling" if task.cancel_requested else task.state.short
        table.add_row(
            clean(task.task_id),
            Text(state, style=STATE_STYLES.get(state, "")),
            str(task.attempt),
            duration(task.age),
            duration(task.lease_until - now),
            clean(task.agent),
            clean(task.worker),
        )
    return table
