"""`errands db`: the tables of a store."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from errands.cli.failures import ExitCode, UsageError, run
from errands.cli.terminal import err, out
from errands.engines.base import Schema
from errands.engines.urls import engine_from_url
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
