"""`errands tasks records`: what a task has left in its log beside its messages."""

from __future__ import annotations

import msgspec
from rich.table import Table

from errands.cli.failures import ExitCode, run
from errands.cli.options import AsJson, TaskId
from errands.cli.stores import Storage, existing
from errands.cli.terminal import clean, err, one_line, out, print_json
from errands.policy.records import AnyRecord
from errands.policy.run import stored_records

#: What every record has.
_COMMON = ("record", "at")


def task_records(task_id: TaskId, storage: Storage = None, as_json: AsJson = False) -> None:
    """Show the records of a task: inputs, model calls, capability calls, decisions, answers.

    With --json they can be kept in a file, for `errands policy test --records`.

    Example:

        errands tasks records TASK_ID --json
    """
    run(_show(storage, task_id, as_json))


async def records_of(storage: str | None, task_id: str) -> list[AnyRecord]:
    """The records of a task, whoever owns it."""
    async with existing(storage) as engine:
        return await stored_records(engine, task_id, await engine.scope_of(task_id))


async def _show(storage: str | None, task_id: str, as_json: bool) -> ExitCode:
    found = await records_of(storage, task_id)
    if as_json:
        print_json(found)
    elif found:
        out().print(_table(found), soft_wrap=False)
    else:
        err().print("The task has no records: its agent has recorded nothing, and there was no policy.")
    return ExitCode.OK


def _table(found: list[AnyRecord]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("AT", no_wrap=True)
    table.add_column("RECORD", no_wrap=True)
    table.add_column("WHAT", no_wrap=True, overflow="ellipsis")
    for record in found:
        plain = msgspec.to_builtins(record)
        what = {name: value for name, value in plain.items() if name not in _COMMON}
        table.add_row(clean(record.at), plain["record"], one_line(msgspec.json.encode(what).decode(), 120))
    return table
