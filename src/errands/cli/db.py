"""`errands db`: the tables of a store, and the tasks in it that cannot be read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

import typer
from rich.table import Table

from errands.cli import stores
from errands.cli.failures import ExitCode, UsageError, run
from errands.cli.options import AsJson
from errands.cli.terminal import clean, err, one_line, out, print_json
from errands.engines import stored as stored_tasks
from errands.engines.base import Engine, Schema
from errands.engines.urls import engine_from_url
from errands.errors import StorageError
from errands.model.log import StoredTask
from errands.runtime.settings import get_settings

Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="URL",
        help="Where tasks live, such as postgresql://USER@HOST/DATABASE or sqlite:///PATH.",
        show_default="the setting",
    ),
]


def upgrade_db(storage: Storage = None) -> None:
    """Make the tables of a store, or bring them up to this release.

    Replicas of the release before go on while and after this runs.

    Example:

        errands db upgrade --storage sqlite:///tasks.db
    """
    run(_upgrade(storage))


def check_db(storage: Storage = None) -> None:
    """Say whether this release can use the tables of a store; nothing is changed.

    Example:

        errands db check --storage sqlite:///tasks.db
    """
    run(_check(storage))


def print_sql(storage: Storage = None) -> None:
    """Print the SQL that `errands db upgrade` would run, and run nothing.

    Example:

        errands db sql --storage sqlite:///tasks.db
    """
    run(_sql(storage))


def damaged_tasks(
    storage: stores.Storage = None,
    delete: Annotated[
        list[str] | None,
        typer.Option(
            "--delete", metavar="TASK_ID", help="Delete this task; may be given several times.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the tasks whose stored data cannot be read, or delete some of them.

    Every task of the store is read for it. Listing changes nothing.

    Example:

        errands db damaged --storage sqlite:///tasks.db
    """
    run(_delete_damaged(storage, delete) if delete else _list_damaged(storage, as_json))


def _schema(storage: str | None) -> Schema:
    url = storage or get_settings().storage
    schema = engine_from_url(url).schema
    if schema is None:
        raise UsageError(f"storage {url.partition(':')[0]!r} has no tables to look after; nothing is to be done")
    return schema


async def _upgrade(storage: str | None) -> ExitCode:
    before, after = await _schema(storage).upgrade()
    if before == after:
        out().print(f"The tables have schema version {after} already.")
    elif before:
        out().print(f"The tables were brought from schema version {before} to {after}.")
    else:
        out().print(f"The tables were made, with schema version {after}.")
    return ExitCode.OK


async def _check(storage: str | None) -> ExitCode:
    version = await _schema(storage).check()
    out().print(f"The tables have schema version {version}; this release can use them.")
    return ExitCode.OK


async def _sql(storage: str | None) -> ExitCode:
    script = await _schema(storage).sql()
    sys.stdout.write(script)
    if not script:
        err().print("Nothing is to be done.")
    return ExitCode.OK


async def _list_damaged(storage: str | None, as_json: bool) -> ExitCode:
    with _without_log():
        async with stores.existing(storage) as engine:
            found = [_document(stored) async for stored in engine.every_task() if stored.damage]
    if as_json:
        print_json(found)
    elif found:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("TASK", "CHANGED", "AGENT", "OWNER"):
            table.add_column(name, no_wrap=True)
        table.add_column("WHY", no_wrap=True, overflow="ellipsis")
        for task in found:
            task_id, *cells, why = (task[name] for name in ("taskId", "statusTimestamp", "agent", "owner", "damage"))
            table.add_row(*map(clean, (task_id, *cells)), one_line(why, 120))
        out().print(table, soft_wrap=False)
    else:
        err().print("Every task can be read.")
    return ExitCode.OK


@contextmanager
def _without_log() -> Iterator[None]:
    """Keep damaged tasks out of the log: what this command prints says the same."""
    stored_tasks.logger.disabled = True
    try:
        yield
    finally:
        stored_tasks.logger.disabled = False


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


async def _delete_damaged(storage: str | None, task_ids: list[str]) -> ExitCode:
    with _without_log():
        async with stores.existing(storage) as engine:
            for task_id in task_ids:
                await _delete_one(engine, task_id)
                out().print(f"Task {clean(task_id)} is deleted.")
    return ExitCode.OK


async def _delete_one(engine: Engine, task_id: str) -> None:
    scope = await engine.scope_of(task_id)
    stored = await engine.load(task_id, scope)
    if not stored.damage:
        raise UsageError(f"task {task_id} can be read: only damaged tasks are deleted here; retention deletes others")
    # Where nothing can be written about it, it is deleted as it is.
    with suppress(StorageError):
        await engine.set_aside(stored, stored.head.worker)
    await engine.delete(task_id, scope)
