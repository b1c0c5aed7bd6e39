"""`errands db`: create and upgrade the tables of a store, and find the tasks that cannot be read."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Annotated

from typer import Option

from errands.cli.failures import UsageError, command
from errands.cli.options import AsJson, Storage, existing_store
from errands.cli.printing import SlowWork, clean, note, one_line, out, print_json, table
from errands.engines import damage
from errands.engines.base import Schema
from errands.engines.urls import engine_from_url
from errands.errors import StorageError
from errands.model.log import StoredTask
from errands.runtime.settings import get_settings


@command
async def upgrade_db(storage: Storage = None, as_json: AsJson = False) -> None:
    """Create the tables of a store, or upgrade them to this release.

    Replicas of the previous release keep working during and after the upgrade.

    Example:

        errands db upgrade --storage sqlite:///tasks.db
    """
    async with SlowWork("Upgrading the tables"):
        before, after = await _schema(storage).upgrade()
    if as_json:
        print_json({"before": before, "after": after})
    elif before == after:
        out().print(f"The tables already have schema version {after}.")
    elif before:
        out().print(f"The tables were upgraded from schema version {before} to {after}.")
    else:
        out().print(f"The tables were created with schema version {after}.")


@command
async def check_db(storage: Storage = None, as_json: AsJson = False) -> None:
    """Check whether this release can use the tables of a store. Nothing is changed.

    Example:

        errands db check --storage sqlite:///tasks.db
    """
    version = await _schema(storage).check()
    if as_json:
        print_json({"version": version})
        return
    out().print(f"The tables have schema version {version}; this release can use them.")


@command
async def print_sql(storage: Storage = None) -> None:
    """Print the SQL that `errands db upgrade` would run, without running it.

    Example:

        errands db sql --storage sqlite:///tasks.db
    """
    script = await _schema(storage).sql()
    sys.stdout.write(script)
    if not script:
        note("There is nothing to do.")


@command
async def damaged_tasks(
    storage: Storage = None,
    delete: Annotated[
        list[str] | None, Option(metavar="TASK_ID", help="Delete this task; may be given several times.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the tasks whose stored data cannot be read, or delete some of them.

    The command reads every task of the store. Listing changes nothing.

    Example:

        errands db damaged --storage sqlite:///tasks.db
    """
    damage.logger.disabled = True  # the command itself prints damaged tasks
    try:
        async with existing_store(storage) as engine:
            for task_id in delete or []:
                stored = await engine.load(task_id, None)
                if not stored.damage:
                    raise UsageError(
                        f"task {task_id} can be read: this command only deletes damaged tasks; retention deletes others"
                    )
                # If its failure cannot be written, the task is deleted as it is.
                with suppress(StorageError):
                    await engine.set_aside(stored, stored.head.worker)
                await engine.delete(task_id, stored.scope)
                if not as_json:
                    out().print(f"Task {clean(task_id)} is deleted.")
            if delete:
                if as_json:
                    print_json([{"taskId": task_id} for task_id in delete])
                return
            async with SlowWork("Reading", "task") as work:
                found = []
                async for stored in engine.every_task():
                    work.advance()
                    if stored.damage:
                        found.append(_document(stored))
    finally:
        damage.logger.disabled = False
    if as_json:
        print_json(found)
    elif found:
        names = ("taskId", "statusTimestamp", "agent", "owner")
        rows = [[*(task[name] for name in names), one_line(task["damage"], 120)] for task in found]
        out().print(table(("TASK", "CHANGED", "AGENT", "OWNER", "WHY"), rows), soft_wrap=False)
    else:
        note("Every task can be read.")


def _document(stored: StoredTask) -> dict[str, str]:
    return {
        "taskId": stored.task.id,
        "contextId": stored.task.context_id or "",
        "agent": stored.scope.agent,
        "owner": stored.scope.owner,
        "tenant": stored.scope.tenant,
        "statusTimestamp": stored.task.status.timestamp or "",
        "damage": stored.damage,
    }


def _schema(storage: str | None) -> Schema:
    url = storage or get_settings().storage
    schema = engine_from_url(url).schema
    if schema is None:
        raise UsageError(f"storage {url.partition(':')[0]!r} has no tables; there is nothing to do")
    return schema
