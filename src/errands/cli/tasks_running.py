"""`errands tasks running`: the one command on tasks that asks the store and not an agent."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from errands.cli.failures import ExitCode, run
from errands.cli.options import AsJson
from errands.cli.stores import Agent, Storage, existing
from errands.cli.terminal import STATE_STYLES, clean, duration, err, out, print_json
from errands.clock import to_iso
from errands.runtime.leases import ActiveTask


def running_tasks(storage: Storage = None, agent: Agent = None, as_json: AsJson = False) -> None:
    """Show what is running, in which process, since when: from the store, whoever owns the tasks.

    Example:

        errands tasks running --storage sqlite:///.errands/tasks.db
    """
    run(_running(storage, agent, as_json))


async def _running(storage: str | None, agent: str | None, as_json: bool) -> ExitCode:
    async with existing(storage) as engine:
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
