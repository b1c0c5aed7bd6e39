"""What commands share that ask the store and not an agent: they see the tasks of every agent and owner in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from errands.cli.failures import UsageError
from errands.engines.base import Engine
from errands.engines.sqlite import SQLiteEngine
from errands.engines.urls import engine_from_url
from errands.runtime.settings import Settings

Storage = Annotated[
    str | None,
    typer.Option("--storage", metavar="URL", help="Where tasks live.", show_default="ERRANDS_STORAGE, as for serve"),
]
Agent = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only tasks of the agent of this name.")]


def existing(storage: str | None) -> Engine:
    """The engine of a store that is there. Raises `UsageError` for one that only its server can reach."""
    storage = storage or Settings.from_env().storage
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
